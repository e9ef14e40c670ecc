"""One file per architecture: what config.json means, and where each tensor is stored.

A family is a table of facts. To add one, copy the nearest file, write down what its config.json
calls each field of `Config` and where each tensor is, and add a tiny random checkpoint to
tests/sources/test_families.py, which compares logits with those of transformers.
"""

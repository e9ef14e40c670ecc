"""Benchmarks against other libraries, in one run, as ratios: `make bench`."""

"""Why a token was predicted and why a head attended: totals, strongest paths, score cells."""

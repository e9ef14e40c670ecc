"""Why a token was predicted, and why a head attended where it did.

target         the number that is explained: a logit at one position of each sequence
breakdown      named shares of a number
flows          every total toward a target, from one sweep up and one down
toward         Toward: these totals as a result
search         the strongest single paths, with a proof or a bound
answer         PathsAnswer: all of the above for one prediction, and where paths came from
attribution    direct attribution and logit effects of the next token at every position
score_cells    the strongest terms of a head's attention scores
"""

"""Q-, K- and V-composition: which heads read what other heads write, compared with chance.

composition        scores of all pairs of heads, with z and p
edges              the same as a list: thresholds, order, how many chance gives
pair_components    one pair, direction by direction, and its projection kernel
projection_kernel  all pairs by the overlap of subspaces alone
empirical          all pairs against other nulls: permuted heads, untrained twins; single directions
virtual_weights    any write times any later read: heads, MLPs, embedding, unembedding
reads_and_writes   what a head writes and reads with, as factors and as forms
forms              inner products of many low-rank forms in bounded memory
"""

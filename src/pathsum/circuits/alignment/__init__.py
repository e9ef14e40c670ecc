"""Alignment: which heads of two models do the same. In reading order:

head_functions  heads as functions of tokens and offsets, and their inner products
rotated_heads   the null: the same heads in random directions of their stream
align_heads     similarities of all pairs, the best one-to-one matching, p-values (`align_heads`)
"""

"""Term importance: how much paths of each order reduce the loss.

truncation        the streams of a run truncated by order, in one pass
term_importance   losses and gains of every order, and of sets of terms
"""

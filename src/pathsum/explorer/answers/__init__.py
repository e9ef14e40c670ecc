"""Answers to the explorer's questions, one function per question.

model         sizes and examples of a model; its vocabulary
run           a text through the model; `attention`, `scores`, `why` and `paths` explain it
attention     the patterns of all heads, plain or weighted
scores        one head's attention scores in parts
prediction    a prediction as a circuit (`why`) and as a sum over paths (`paths`)
atlas         all heads with all scores
head          one head's page: weights, skip-trigrams, ablation; `tokens` has its token tables
composition   the composition graph, and one edge of it
texts         one prediction on two texts, patched from one to the other
whole_model   term importance, training dynamics, comparison of two models
"""

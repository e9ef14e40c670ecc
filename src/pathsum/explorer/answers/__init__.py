"""Answers to the explorer's questions, one function per question.

model         sizes and examples of a model; its vocabulary
run           a text through the model; `attention`, `scores` and `why` explain the run
attention     the patterns of all heads, plain or weighted
scores        one head's attention scores in parts
why           which paths made a prediction
atlas         all heads with all scores
head          one head's page: weights, skip-trigrams, ablation; `tokens` has its token tables
composition   the composition graph, and one edge of it
texts         one prediction on two texts, patched from one to the other
whole_model   term importance, training dynamics, comparison of two models
"""

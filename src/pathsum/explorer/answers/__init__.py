"""Answers to the explorer's questions, one function per question.

model         `model`, `vocabulary`, `gallery`: a model, its tokens, and the models to choose from
weights       `weights`: a small model as the page itself can run it
text          `run`, `attention`, `scores`: a text, its predictions, patterns and scores
prediction    `why`, `paths`, `without`, `texts`: one prediction, explained and intervened on
lens          `lens`, `lens_parts`: the tokens that each layer's stream reads, the parts of one
head          `head`, `copying`, `token`, `trigrams`, `contexts`, `ablation`: the page of one head
composition   `composition`, `embed_and_logit_edges`, `edge`: the composition graph, one edge
program       `program`, `rules`: a model as rules, and those that act on one prediction
whole_model   `first_scores`, `atlas`, `terms`, `training`, `compare`, `paper`, `claim`: models
"""

"""Answers to the explorer's questions, one function per question.

model          `model`, `vocabulary`, `gallery`: a model, its tokens, and the models to choose from
weights        `weights`: a small model as the page itself can run it
text           `run`, `attention`, `scores`: a text, its predictions, patterns and scores
prediction     `why`, `paths`, `sources`, `neurons`, `neuron`, `lens`, `lens_parts`: one prediction
interventions  `without`, `texts`: a prediction with parts switched off or from another text
head           `head`, `copying`, `token`, `trigrams`, `contexts`, `ablation`: the page of one head
composition    `composition`, `embed_and_logit_edges`, `edge`: the composition graph, one edge
whole_model    `first_scores`, `atlas`, `terms`, `training`, `compare`, `paper`, `claim`, `program`,
               `rules`: models
"""

"""Skip-trigrams: `[source] … [destination] → [out]`.

skip_trigrams  the strongest triples of a head or a model
on_text        triples by what they are worth to a model on text
text_effects   what single triples do there: where they fire, what each is worth
record         a triple and a list of them, as results hold them
source_table   the paper's table for one source token
triple         one triple: its score, its pattern, its evidence in a corpus
bugs           cross terms that QK × OV forces
bug_cost       what bugs cost in loss
"""

"""Skip-trigrams: `[source] … [destination] → [out]`.

skip_trigrams    the strongest triples of a head or a model, by weights or by loss saved on text
text_effects     single triples on text: where they fire, and how much loss each saves
trigram_records  the result records: a triple, and a list of them
source_table     the paper's table for one source token
triple           one triple: its score, its pattern, its evidence in a corpus
bugs             cross terms that QK × OV forces, and their cost in loss
"""

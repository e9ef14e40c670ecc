"""QK and OV circuits in the token basis.

token_basis  embeddings as a layer reads them, full OV, the shared product W_U W_E
token        tokens in results: text, values, which tokens are common
qk           token_qk: which destinations attend to which sources; attention of one token
ov           token_ov: what attending to a source does to logits; effect of one token
clusters     eigenvectors of full OV as clusters of tokens
head_card    one head on one page
"""

"""Text and tokens, without models: tokenizers, corpora, tokens to draw, probe sequences.

In reading order:

tokenizer      text to ids and back; byte-level BPE
documents      texts of the standard library, of files and folders, of datasets on the hub
packages       texts of published packages
named_corpora  corpora with a name
building       from documents to a tokenizer and shards of tokens on disk
shards         token ids in memory-mapped files
corpus         `Corpus`: training tokens, held-out tokens, counts
cache          the cache folder and its locks
token_pool     which tokens may be drawn at random and shown in tables
probes         repeated random tokens, with known answers
"""

from pathsum.text.corpus import Corpus, CorpusInfo, named_corpora
from pathsum.text.tokenizer import Tokenizer, train_bpe, visible

__all__ = ["Corpus", "CorpusInfo", "Tokenizer", "named_corpora", "train_bpe", "visible"]

"""Text and tokens: tokenizers, corpora, and probe sequences with known answers. Knows no model."""

from pathsum.text.bpe import train_bpe
from pathsum.text.corpus import Corpus, CorpusInfo, named_corpora
from pathsum.text.tokenizer import Tokenizer, visible

__all__ = ["Corpus", "CorpusInfo", "Tokenizer", "named_corpora", "train_bpe", "visible"]

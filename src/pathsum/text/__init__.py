"""Text and tokens, without models: tokenizers, corpora, tokens to draw, probe sequences.

In reading order:

tokenizer   text to ids and back; byte-level BPE
documents   texts of the standard library, of files and folders, of datasets on the hub; notices
            and repeated paragraphs are dropped
packages    texts of published packages; corpora by name, from corpora.toml
shards      token ids in memory-mapped files, and how they are built from documents
corpus      `Corpus`: training tokens, held-out tokens, counts
trigrams    patterns of skip-trigrams (copies, pieces, brackets …) and their counts in text
token_pool  tokens that may be drawn at random and shown in tables
probes      repeated random tokens, with known answers; a short neutral text
"""

from pathsum.text.corpus import Corpus, CorpusInfo, named_corpora
from pathsum.text.tokenizer import Tokenizer, train_bpe, visible

__all__ = ["Corpus", "CorpusInfo", "Tokenizer", "named_corpora", "train_bpe", "visible"]

"""The shape vocabulary, and the row convention.

**Row convention.** Vectors are rows and multiply from the left: a read is `x @ W`, so every matrix
here is the transpose of the matrix printed in the paper. A write followed by a read is `W_O @ W_V`,
left to right in the order in which data flows. A pattern has destinations as rows and sources as
columns and multiplies from the left: `A @ x` moves rows of `x` from sources to destinations. So

    (A₂ ⊗ W₂)(A₁ ⊗ W₁) = (A₂ A₁) ⊗ (W₁ W₂)

patterns compose right to left, weights left to right.

Names of axes, the same in every annotation:

    batch   sequences                      pos     positions of a sequence
    dest    positions that attend          src     positions attended to
    vocab   tokens                         ctx     positions of the context
    d       the residual stream (d_model)  k       a head's inner width (d_head)
    head    query heads of a layer         kv      key/value heads of a layer
    m       neurons of an MLP (d_mlp)
"""

from jaxtyping import Float, Int
from torch import Tensor

Tokens = Int[Tensor, "batch pos"]
Logits = Float[Tensor, "batch pos vocab"]
Stream = Float[Tensor, "batch pos d"]
Pattern = Float[Tensor, "batch head dest src"]
HeadPattern = Float[Tensor, "batch dest src"]
Scale = Float[Tensor, "batch pos"]
PerHead = Float[Tensor, "batch head pos k"]
PerKey = Float[Tensor, "batch kv pos k"]
AtDestinations = Float[Tensor, "batch head dest k"]
AtSources = Float[Tensor, "batch kv src k"]

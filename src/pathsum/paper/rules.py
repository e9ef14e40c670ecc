"""The rules of all claims in one place: thresholds that were fixed before the seeds were measured.

Where the paper gives a number, it lies on the side that holds. Thresholds for heads are those of
their kinds; where nothing suggests one, it is a round number.
"""

from pathsum.paper.rule import Rule

# The residual stream.
PATHS = Rule(
    "the error of the sum over paths, relative to the largest logit,",
    "",
    "at most",
    1e-5,
    1e-3,
    lowest=0.0,
)
BASIS = Rule(
    "the largest change of a log-probability under a random rotation",
    "nats",
    "at most",
    1e-3,
    0.1,
    lowest=0.0,
)
BANDWIDTH = Rule(
    "the number of effective dimensions that the embedding and the heads write, over d_model,",
    "of d_model",
    "at least",
    1.0,
    0.75,
    lowest=0.0,
)

# Zero layers.
CURRENT = Rule(
    "the largest change of a log-probability when the earlier tokens are reversed",
    "nats",
    "at most",
    1e-5,
    0.01,
    lowest=0.0,
)
BIGRAM = Rule(
    "the distance of the loss from that of the smoothed bigram table",
    "nats",
    "at most",
    0.05,
    0.2,
    lowest=0.0,
)

# One layer.
HEADS_GAIN = Rule("the gain of the paths through one head", "nats", "at least", 0.25, 0.05)
COPYING = Rule(
    "the share of heads that copy", "of the heads", "at least", 0.6, 0.3, lowest=0.0, highest=1.0
)
TRIGRAMS = Rule(
    "the share of the skip-trigrams' gain that falls to the paper's four patterns",
    "of the gain",
    "at least",
    0.5,
    0.2,
)
BUGS = Rule("the loss that bugs add where they act", "nats", "at least", 0.01, 0.001)
POSITIONAL = Rule(
    "the largest share of the variance of a head's scores that position explains",
    "of the variance",
    "at least",
    0.5,
    0.25,
    lowest=0.0,
    highest=1.0,
)
NO_INDUCTION = Rule(
    "the largest induction stripe",
    "of its attention",
    "at most",
    0.05,
    0.15,
    lowest=0.0,
    highest=1.0,
)

# Two layers.
COMPOSITION = Rule(
    "the number of edges with p ≤ 0.01, over that by chance,",
    "times chance",
    "at least",
    2.0,
    1.2,
    lowest=0.0,
)
SPARSE = Rule(
    "the share of edges with p ≤ 0.01",
    "of the edges",
    "at most",
    0.25,
    0.5,
    lowest=0.0,
    highest=1.0,
)
MOSTLY_K = Rule(
    "the number of edges with a larger z than the best K edge of the previous-token head",
    "edges above it",
    "at most",
    0.0,
    2.0,
    lowest=0.0,
)
PREVIOUS = Rule(
    "the most attention that a head gives to the previous token",
    "of its attention",
    "at least",
    0.5,
    0.3,
    lowest=0.0,
    highest=1.0,
)
INDUCTION = Rule(
    "the largest induction stripe",
    "of its attention",
    "at least",
    0.5,
    0.3,
    lowest=0.0,
    highest=1.0,
)
MECHANISM = Rule(
    "the share of the stripe that cutting one K edge removes",
    "of the stripe",
    "at least",
    0.5,
    0.25,
    highest=1.0,
)
CORNER = Rule(
    "the smallest eigenvalue positivity of an induction head, of OV or QK,",
    "",
    "at least",
    0.25,
    0.0,
    lowest=-1.0,
    highest=1.0,
)
RANDOM = Rule("the loss saved on the second copy", "nats", "at least", 2.0, 0.5)
RESTING = Rule(
    "the induction head's attention to the first token where no token has repeated",
    "of its attention",
    "at least",
    0.5,
    0.25,
    lowest=0.0,
    highest=1.0,
)
VIRTUAL = Rule(
    "the gain of virtual heads over that of single heads",
    "of the single heads' gain",
    "at most",
    0.1,
    0.25,
)
DIRECT = Rule(
    "the gain of single heads minus that of the direct path", "nats", "at least", 0.0, -0.5
)
LAST_LAYER = Rule(
    "the gain of the last layer minus that of the first, each given the others,",
    "nats",
    "at least",
    1.0,
    0.0,
)
FIRST_LAYER = Rule(
    "the first layer's gain given the others, over its gain alone,",
    "of its gain alone",
    "at most",
    0.1,
    0.5,
)

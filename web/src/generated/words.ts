// Generated from the records in src/pathsum by scripts/typescript.py.

export const WORDS = {
  "story": {
    "opening": "After “{before}{token}”, the model predicts “{predicted}” with {probability}",
    "first": "; {probability_first} the first time",
    "first_rises": ", up from {probability_first} the first time",
    "stop": ".",
    "induction": " This is {induction}: ",
    "one_copies": "{head} attends to “{source}”, which followed “{token}” before",
    "comma": ",",
    "many_copy": "{count} heads attend mostly to “{source}”, which followed “{token}” before: {heads}. Without any one of them, “{predicted}” keeps at least {least} ({head} matters most); without all of them, it would {without_heads}.",
    "attends_there": " {head} attends there",
    "adds_most": " {head} adds most to its {logit} ({share} of {total}) and attends to “{source}”",
    "adds_most_of_heads": " Among the heads, {head} adds most ({share}); it attends to “{source}”",
    "itself": " itself",
    "sink": ", the attention sink",
    "because": " because {reasons}",
    "partly_because": " partly because {reasons}",
    "no_reason": "; no single part of its key or query explains why",
    "without_writer": ". Without {writer_name}, its attention there would be {weight_without} instead of {weight}, and “{predicted}” would {without_writer}.",
    "without_head": ". Without {head_name}, “{predicted}” would {without_head}.",
    "mlps_most": " MLPs write most of the {logit}: {mlps} of {total}, including {mlp_share} from {mlp}",
    "mlps": " MLPs write {mlps} of the {logit}'s {total}, including {mlp_share} from {mlp}",
    "mlps_without_head": "; without {head_name}, they would write {mlps_left}",
    "mlps_without_heads": "; without these heads, they would write {mlps_left}",
    "coverage": " The circuit explains less than half of the {logit} ({coverage})."
  },
  "reasons": {
    "wrote": "{writer} moved {token}{where} into its {read}{cut}",
    "wrote_something": "{writer} wrote to its {read}{cut}",
    "previous": " from the preceding position",
    "at_position": " from position {position}",
    "token": "its {read} encodes the token {token}{cut}",
    "position": "its {read} encodes position {position}{cut}",
    "bias": "its {read} has a bias{cut}",
    "cut": " (cut: {effect})"
  },
  "circuit": {
    "no_head": "No head of the circuit adds to this prediction.",
    "adds": "{head} adds {share} of {total}{keeps}{attends}{because}.{coverage}",
    "keeps": " (but without it the probability does not fall: {after}, with it {before})",
    "attends": ", attending to {token} ({weight}, position {position}{kind})",
    "induction": ", induction",
    "sink": ", attention sink",
    "because": " because {reasons}",
    "no_reason": "; no single part of its key or query explains why",
    "coverage": " The graph explains less than half of the {total} ({share})."
  }
} as const;

/** How to read each view: what its marks mean, and what to try first. */

export interface Help {
  /** What the view is for, in a sentence or two. */
  about: string;
  /** Each mark and what it means. */
  marks: readonly (readonly [mark: string, meaning: string])[];
  /** What to do with it, one thing each. */
  steps: readonly string[];
}

export const HELP: Readonly<Record<string, Help>> = {
  text: {
    about:
      "Attention heads move information from earlier tokens (sources) to later ones (destinations). Here you see which head looks where, on any text.",
    marks: [
      ["shaded tokens", "what the focused token attends to: the darker, the more; orange and blue when effects are shown"],
      ["underline", "how badly the model predicted the token: none is certain, dark is 8 nats and more"],
      ["small pictures", "one a head, its whole pattern; the stronger lit, the more it does at the focused token"],
      ["matrix", "the focused head: a row is a destination, its cells are the sources it attends to"],
      ["information", "attention times the size of what is moved: a head may look hard and move nothing"],
      ["logit effect", "what the move adds to the logit of the token that comes next, the vocabulary's mean removed"],
      ["first position", "where heads rest when they have nothing to do; it can be hidden"],
    ],
    steps: [
      "Press Random repeat and focus a token of the second half: an induction head looks at what followed the token the first time.",
      "Click a cell of the matrix: the score there as a table of query parts and key parts that adds up to it.",
      "Type your own text; every number follows.",
    ],
  },
  atlas: {
    about: "Every head by every score, each beside what chance gives, to find the heads that are worth a look.",
    marks: [
      ["cell", "one head: later layers are higher, as data flows up; the small line is what chance gives"],
      ["dots in a cell", "eigenvalues of its OV circuit: to the right of the middle the head copies"],
      ["scatter", "one dot a head on two scores of your choice; induction heads stand in the upper right corner"],
      ["p", "how often chance alone would score as high"],
    ],
    steps: [
      "Drag over the scatter to keep only the heads inside; filters are in the address.",
      "Click a column of the table to sort by it.",
      "Click a head to open its page.",
    ],
  },
  head: {
    about:
      "Everything about one head. QK decides where it looks, OV what it writes once it looks there; both can be read from the weights alone.",
    marks: [
      ["what it is", "a name is given only where data and weights agree; evidence against is listed, too"],
      ["OV table", "looking at this token raises those"],
      ["QK table", "at this destination the head looks for those sources"],
      ["eigenvalues", "right of the middle: tokens raise themselves; gray: heads drawn at random"],
      ["skip-trigrams", "[source] … [destination] → [out]; a bug row is what the head raises too, because QK and OV do not know of each other"],
      ["what it is worth", "the loss when it is taken out, and how much of that its description in words wins back"],
    ],
    steps: ["Type a token to look it up in both circuits.", "Press ] and [ to turn to the next head and the one before."],
  },
  circuit: {
    about: "Heads read what earlier heads wrote. An edge says how strongly, measured against a random rotation between the two.",
    marks: [
      ["Q, solid", "the earlier head changes what the later one looks for"],
      ["K, dashed", "it changes what the later one finds: how induction is made"],
      ["V, dotted", "it changes what the later one moves: a virtual head"],
      ["z", "standard deviations above chance; the bar says how many edges chance alone would give"],
    ],
    steps: [
      "Move the threshold until few edges are left that chance would not give.",
      "Click an edge: the composed circuit with its eigenvalues, its strongest tokens, and what cutting it costs.",
      "Hold Shift to keep what is hovered; Ctrl or ⌘ and click pins a head.",
    ],
  },
  paths: {
    about:
      "The logit of one prediction as a sum over paths: straight from the token, through one head, through two. The sum is the model's own number.",
    marks: [
      ["bars", "blue raises the logit, orange lowers it; the last bars are what is left out and the total"],
      ["order", "how many heads a path goes through; order 0 is the direct path, what bigrams know"],
      ["shaded tokens", "what each source token adds, all paths together"],
      ["arrows", "the chosen path's strongest routes, from source to prediction"],
    ],
    steps: [
      "Click a token to ask about the prediction after it.",
      "Open a bar to its heads, a head to its paths.",
      "Type another token, or compare two: the difference of their logits.",
    ],
  },
  training: {
    about: "The same measurements at every snapshot of the training. Induction forms in a short stretch: the phase change.",
    marks: [
      ["marked stretch", "the phase change with its 95 % interval"],
      ["thin curves", "single heads; the one that ends highest is named"],
      ["in-context score", "loss late in a text minus loss early in it: below zero the model learns from context"],
      ["trajectory", "the loss at every position on its two main directions, a point a snapshot"],
    ],
    steps: ["Drag in any plot, or the scrubber: the pattern on the right and all other views follow the step."],
  },
  paper: {
    about: "“A Mathematical Framework for Transformer Circuits” (Elhage et al. 2021), claim by claim, measured here.",
    marks: [
      ["measured", "the value on this model, with an interval where one exists"],
      ["the paper’s", "the value the paper gives, where it gives one"],
      ["holds, does not hold", "the claim as it is stated, on this model; not measurable: the model lacks what it is about"],
    ],
    steps: ["Turn the page with the arrow keys.", "Click the picture: the view it belongs to opens in the state you see."],
  },
  compare: {
    about: "Which head of one model does what which head of the other does, from their QK and OV circuits.",
    marks: [
      ["cell", "how alike two heads are: 1 the same, 0 unrelated, below 0 opposed"],
      ["frame", "the best matching of all heads, one to one"],
      ["chance", "how alike the best match would be if heads were unrelated; p says how often so alike"],
    ],
    steps: ["Click a cell: both heads at work on the same text.", "Choose QK or OV alone: heads may look alike and move different things."],
  },
};

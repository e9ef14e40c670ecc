/** How to read each view: what its marks mean, and what to try first. */

interface Help {
  /** What the view is for, in a sentence or two. */
  about: string;
  /** Each mark and what it means. */
  marks: readonly (readonly [mark: string, meaning: string])[];
  /** Things to try, one each. */
  steps: readonly string[];
}

export const HELP: Readonly<Record<string, Help>> = {
  story: {
    about: "One prediction of the text: what the model expects, which heads it relies on, and what happens without them.",
    marks: [
      ["arrows over the text", "solid: where the head attends and what it copies; dotted: the note that an earlier head wrote there"],
      ["graph", "the strongest parts of the prediction, at most seven nodes; width is the share of the logit"],
      ["switches", "without a head its output is zero and everything after it is computed again"],
      ["bars", "the probabilities of the next token, as the model is or with the switched heads off"],
    ],
    steps: ["Type a name twice: the end of the text is explained as you type.", "Click a token to explain the prediction after it.", "Switch a head off and watch the bars."],
  },
  text: {
    about:
      "Attention heads move information from earlier tokens (sources) to later ones (destinations). This view shows where each head attends, on any text.",
    marks: [
      ["shaded tokens", "what the focused token attends to, darker for more; orange and blue when effects are shown"],
      ["underline", "with “loss” checked, the loss of the token: none if it was certain, dark from 8 nats on"],
      ["thumbnails", "the whole pattern of each head; brighter if the head does more at the focused token"],
      ["matrix", "the focused head: each row is a destination, its cells are the sources it attends to"],
      ["information", "attention times the size of what is moved: a head may attend strongly and move nothing"],
      ["logit effect", "what the move adds to the logit of the next token, with the vocabulary mean removed"],
      ["first position", "where heads attend when they have nothing to do; it can be hidden"],
    ],
    steps: [
      "Press Random repeat and focus a token of the second half: an induction head attends to what followed the token the first time.",
      "Click a cell of the matrix to see its score as a table of query parts and key parts that adds up to it.",
      "Type your own text; every number follows.",
    ],
  },
  why: {
    about:
      "One prediction as a graph: what was moved (V), and why each head attends where it does (Q and K), down to the tokens.",
    marks: [
      ["boxes", "heads at a layer and a position, with their contribution to the prediction; tokens are below, the predicted token is on top"],
      ["V, solid", "what a head moved, or wrote straight into the logit; attention held fixed, these add up"],
      ["K, dotted; Q, dashed", "what was written into a key or a query, so that the head attends there"],
      ["U, solid; G, dashed", "what an MLP moved with its gate held, and what set its gate: two views that are never added"],
      ["width", "the contribution of the edge to the prediction, in logits; ⊖ marks one that lowers it"],
      ["+5", "smaller inputs that are not drawn; the panel lists the sum of omitted edges"],
      ["×3", "in deep models, MLPs of a position, or heads that attend from it to the same source, as one box; click to open"],
      ["lost if it is cut", "measured: the edge carries nothing and everything after it is computed again; another head may take over"],
    ],
    steps: [
      "Click the dotted edge into the strongest head to cut it, and watch the prediction.",
      "Click a head for its inputs: they add up to its number.",
      "Type your own text and switch heads off.",
    ],
  },
  program: {
    about: "The model rewritten as rules that run without it: tables after a token, and heads that attend by rule.",
    marks: [
      ["lit rules", "act at the chosen prediction; the bar is what they add to its logit"],
      ["shaded tokens", "what the lit rules read"],
      ["number at the right", "the gain of the rule: nats per prediction that the program loses without it"],
    ],
    steps: ["Click a token: other rules fire.", "Point at a rule to see what it reads.", "Allow more numbers and watch the fidelity."],
  },
  atlas: {
    about: "Every score of every head, compared with its null distribution, to find the heads worth studying.",
    marks: [
      ["cell", "one head; later layers are higher, because data flows up; the small line is the mean of the null distribution"],
      ["ring", "a head that the story of the text names"],
      ["dots in a cell", "eigenvalues of the OV circuit: right of the middle, the head copies"],
      ["scatter", "one dot per head on two scores of your choice; induction heads are in the upper right corner"],
      ["p", "how often a random head scores as high"],
    ],
    steps: [
      "Drag over the scatter to keep only the heads inside; filters are part of the URL.",
      "Click a column of the table to sort by it.",
      "Click a head to open its page.",
    ],
  },
  head: {
    about:
      "Everything about one head. QK decides where it attends, OV what it writes from there; both can be read from the weights alone.",
    marks: [
      ["kind", "named only if data and weights agree; evidence against it is listed too"],
      ["OV table", "attending to this token raises those"],
      ["QK table", "this destination token attends to those source tokens"],
      ["eigenvalues", "right of the middle: tokens raise themselves; gray: random heads"],
      ["skip-trigrams", "[source] … [destination] → [out]; a bug is a cross term that the head must raise too, because QK and OV are independent"],
      ["ablation", "the loss without the head, and how much of that a description of the head recovers"],
    ],
    steps: ["Type a token to look it up in both circuits.", "Press ] and [ for the next and the previous head."],
  },
  composition: {
    about: "Heads read what earlier heads wrote. An edge shows how strongly, compared with a random rotation between the two.",
    marks: [
      ["Q, dashed", "the earlier head changes the later one's queries"],
      ["K, dotted", "it changes the later one's keys: this is how induction works"],
      ["V, solid", "it changes what the later one moves: a virtual head"],
      ["z", "standard deviations above the null; the bar shows how many such edges random heads would give"],
    ],
    steps: [
      "Raise the threshold until random heads would give almost none of the edges that are left.",
      "Click an edge to see the composed circuit: its eigenvalues, its strongest tokens, and its effect on the loss.",
      "Ctrl- or ⌘-click pins a head.",
    ],
  },
  paths: {
    about:
      "The logit of one prediction as a sum over paths: directly from the token, through one head, through two. The sum is the model's own number.",
    marks: [
      ["bars", "blue raises the logit, orange lowers it; the last two bars are the omitted paths and the total, both in logits"],
      ["order", "how many heads a path goes through; order 0 is the direct path, which knows bigrams"],
      ["shaded tokens", "what each source token adds, over all paths"],
      ["arrows", "the chosen path's strongest routes, from source to prediction"],
      ["reconstruction error", "in the status line: the relative error of the sum against the model's own logits"],
    ],
    steps: [
      "Click a token to explain the prediction after it.",
      "Open a bar to see its heads, and a head to see its paths.",
      "Type another token, or compare two by the difference of their logits.",
    ],
  },
  lens: {
    about:
      "The residual stream before each layer, decoded as if the model ended there: at which layer does it know the prediction, and which component brought it?",
    marks: [
      ["cell", "the top token of the stream before a layer (rows, the end on top) at a position (columns)"],
      ["color", "the probability of the model's final prediction, or of the token in the cell"],
      ["logit lens", "the stream times the unembedding; its parts are the components below that wrote it"],
      ["held lens", "also what later heads and MLPs make of this position, with attention, gates and scales held; its parts are those components"],
    ],
    steps: ["Go up a column to the cell where the prediction takes over, and read which head or MLP wrote it.", "Click a cell to keep it and to explain its position in the other views."],
  },
  training: {
    about: "The same measurements at every snapshot of training. Induction forms within a few steps: the phase change.",
    marks: [
      ["shaded band", "the phase change with its 95% interval"],
      ["thin curves", "single heads; the one that ends highest is labeled"],
      ["in-context score", "loss late in a text minus loss early in it: below zero, the model learns from context"],
      ["trajectory", "per-token losses on their first two principal components, one point per snapshot"],
    ],
    steps: ["Drag in any plot, or move the slider: the pattern on the right and all other views follow the step."],
  },
  paper: {
    about: "“A Mathematical Framework for Transformer Circuits” (Elhage et al. 2021), claim by claim, measured here.",
    marks: [
      ["measured", "the value on this model, with an interval if there is one"],
      ["the paper", "the value that the paper gives, if it gives one"],
      ["holds, does not hold", "whether the claim is true of this model; not measurable: the model lacks what the claim is about"],
    ],
    steps: ["Turn the pages with the arrow keys.", "Open the view that a claim links to: it shows the same in full."],
  },
  models: {
    about: "The models that come with pathsum, each with the lesson it teaches. All views follow the model that you choose.",
    marks: [
      ["prediction", "the most interesting prediction of the model's first text, and its probability"],
      ["fetched", "models that must be opened with a command, because their weights are downloaded first"],
    ],
    steps: ["Open the models in their order: no layers, one, two, then the same circuit built by hand."],
  },
  swap: {
    about: "One prediction on a clean and on a corrupted text, and how much of the difference each part makes if it is taken from the other text.",
    marks: [
      ["framed tokens", "where the two texts differ, and the position whose prediction is compared"],
      ["grid", "the change of the logit difference when the output of one head is patched"],
      ["share of the gap", "how much of the difference between the two texts the part alone accounts for"],
    ],
    steps: ["Edit the corrupted text, keeping the number of tokens.", "Choose the direction of the patch: what is needed, or what is enough."],
  },
  compare: {
    about: "Which head of one model does the same as which head of the other, by their QK and OV circuits.",
    marks: [
      ["cell", "how similar two heads are: 1 the same, 0 unrelated, below 0 opposite"],
      ["frame", "the best one-to-one matching of all heads"],
      ["null", "the similarity of the match of such a head if its directions are random; p is how often it is at least this similar"],
    ],
    steps: ["Click a cell to see both heads on the same text.", "Choose QK or OV alone: heads may attend alike and move different things."],
  },
};

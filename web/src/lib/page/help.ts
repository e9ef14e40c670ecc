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
      ["arrows over the text", "solid: where the head attends and what it copies; dotted: what an earlier head moved there"],
      ["graph", "the strongest parts of the prediction, at most seven nodes; width is the share of the logit"],
      ["switches", "switching a head off sets its output to zero and recomputes everything after it"],
      ["bars", "the probabilities of the next token, with and without the heads that are off"],
    ],
    steps: ["Type a name twice: the end of the text is explained as you type.", "Click a token to explain the prediction after it.", "Switch a head off and watch the bars.", "“rather than …” explains the lead over another token of the text instead of the logit above the mean of all tokens; Why and Paths follow."],
  },
  text: {
    about:
      "Attention heads move information from earlier tokens (sources) to later ones (destinations). This view shows where each head attends, on any text.",
    marks: [
      ["shaded tokens", "what the focused token attends to, darker for more; orange and blue for effects"],
      ["underline", "with “loss” checked, the loss of the token: none at 0 nats, darkest from 8 nats on"],
      ["thumbnails", "the whole pattern of each head; brighter if the head is more active at the focused token"],
      ["matrix", "the focused head: each row is a destination, its cells are the sources it attends to"],
      ["information", "attention times the norm of the moved value: a head may attend strongly and move nothing"],
      ["logit effect", "the contribution of the moved value to the next token's logit, minus the vocabulary mean"],
      ["first position", "where heads rest when nothing matches; it can be hidden"],
    ],
    steps: [
      "Press Random repeat and focus a token of the second half: an induction head attends to the token that followed its first occurrence.",
      "Click a cell of the matrix to see its score as a table of query parts and key parts that adds up to it.",
      "Type your own text; all numbers update.",
    ],
  },
  why: {
    about:
      "One prediction as a graph, down to the tokens: the moved values (V), and the reasons why each head attends where it does (Q and K).",
    marks: [
      ["boxes", "heads at a layer and a position, with their contribution to the prediction; tokens are below, the predicted token is on top"],
      ["V, solid", "values that a head moved, or wrote directly into the logit; with attention frozen, these add up"],
      ["K, dotted; Q, dashed", "contributions to a key or a query that make the head attend there"],
      ["U, solid; G, dashed", "an MLP's values with its gates frozen, and its gate inputs: two views that must not be added"],
      ["width", "the contribution of the edge to the prediction, in logits; ⊖ marks an edge that lowers it"],
      ["+5", "smaller inputs that are not drawn; the panel lists the sum of omitted edges"],
      ["×3", "in deep models, MLPs of a position, or heads that attend from it to the same source, as one box; click to open"],
      ["drop if it is cut", "the drop of the prediction if the edge is set to zero and everything after it is recomputed; another head may take over"],
    ],
    steps: [
      "Click the dotted edge into the strongest head to cut it, and watch the prediction.",
      "Click a head for its inputs: they add up to its number.",
      "Type your own text and switch heads off.",
    ],
  },
  program: {
    about: "The model rewritten as rules that run without it: tables of logits after a token, and attention rules for heads.",
    marks: [
      ["highlighted rules", "act at the chosen prediction; the bar is their contribution to its logit"],
      ["shaded tokens", "the tokens that these rules read"],
      ["number at the right", "the gain of the rule: the program's loss without it, in nats per prediction"],
    ],
    steps: ["Click a token: other rules fire.", "Point at a rule to see the tokens it reads.", "Allow more numbers and watch the fidelity."],
  },
  atlas: {
    about: "Every score of every head, compared with its null distribution, to find the heads worth studying.",
    marks: [
      ["cell", "one head, with later layers on top; the small line is the mean of the null distribution"],
      ["ring", "a head of the text's story"],
      ["dots in a cell", "eigenvalues of the OV circuit: right of the middle, the head copies"],
      ["scatter", "one dot per head on two scores of your choice; induction heads are in the upper right corner"],
      ["p", "the share of random heads that score at least as high"],
    ],
    steps: [
      "Drag over the scatter to keep only the heads inside; filters are part of the URL.",
      "Click a column of the table to sort by it.",
      "Click a head to open its page.",
    ],
  },
  head: {
    about:
      "Everything about one head. QK determines where it attends, and OV what it writes; both can be read from the weights alone.",
    marks: [
      ["kind", "assigned only if data and weights agree; evidence against it is listed too"],
      ["OV table", "the logits that attending to a token raises"],
      ["QK table", "the source tokens that a destination token attends to"],
      ["eigenvalues", "right of the middle: tokens raise themselves; gray: random heads"],
      ["skip-trigrams", "[source] … [destination] → [out]; a bug is a cross term that the head must raise too, because QK and OV are independent"],
      ["ablation", "the cost of ablating the head, and the share of it that a description of the head recovers"],
    ],
    steps: ["Type a token to look it up in both circuits.", "Press ] and [ for the next and the previous head."],
  },
  composition: {
    about: "Heads read the output of earlier heads. Edges measure how strongly, compared with random rotations between the two.",
    marks: [
      ["Q, dashed", "the earlier head changes the later head's queries"],
      ["K, dotted", "it changes the later head's keys, as in induction"],
      ["V, solid", "it changes the later head's values: a virtual head"],
      ["z", "standard deviations above the null; the bar shows the number of such edges expected under the null"],
    ],
    steps: [
      "Raise the threshold until almost none of the remaining edges are expected under the null.",
      "Click an edge to see the composed circuit: its eigenvalues, its strongest tokens, and its effect on the loss.",
      "Ctrl- or ⌘-click pins a head.",
    ],
  },
  paths: {
    about:
      "The logit of one prediction as a sum over paths: directly from the token, through one head, through two. The sum equals the model's own logit.",
    marks: [
      ["bars", "blue raises the logit, orange lowers it; the last two bars are the omitted paths and the total, both in logits"],
      ["order", "the number of heads on a path; order 0 is the direct path, which represents bigrams"],
      ["shaded tokens", "the contribution of each source token, over all paths"],
      ["arrows", "the chosen path's strongest routes, from source to prediction"],
      ["reconstruction error", "in the status line: the difference between the sum and the model's own logits, relative to the largest logit"],
    ],
    steps: [
      "Click a token to explain the prediction after it.",
      "Open a bar to see its heads, and a head to see its paths.",
      "Type another token, or compare two tokens by the difference of their logits.",
    ],
  },
  lens: {
    about:
      "The residual stream before each layer, decoded as if the model ended there: at which layer does the prediction appear, and which component writes it?",
    marks: [
      ["cell", "the top token of the stream before a layer (rows, the end on top) at a position (columns)"],
      ["color", "the probability of the model's final prediction, or of the token in the cell"],
      ["logit lens", "the stream times the unembedding; its parts are the components below"],
      ["held lens", "also what later heads and MLPs compute at this position, with attention, gates and scales frozen; its parts are those components"],
    ],
    steps: ["Go up a column to the cell where the prediction appears, and see which head or MLP wrote it.", "Click a cell to keep it and to explain its position in the other views."],
  },
  training: {
    about: "The same measurements at every snapshot of training. Induction forms within a few steps: the phase change.",
    marks: [
      ["shaded band", "the phase change with its 95% interval"],
      ["thin curves", "single heads; the one that ends highest is labeled"],
      ["in-context score", "loss late in a text minus loss early in it; negative if the model uses context"],
      ["trajectory", "per-token losses on their first two principal components, one point per snapshot"],
    ],
    steps: ["Drag in any plot, or move the slider: the pattern on the right and all other views show that step."],
  },
  paper: {
    about: "“A Mathematical Framework for Transformer Circuits” (Elhage et al. 2021), claim by claim, measured here.",
    marks: [
      ["measured", "the value on this model, with an interval if there is one"],
      ["the paper", "the paper's value, if there is one"],
      ["holds, does not hold", "the verdict on this model; not measurable: the model lacks something that the claim requires"],
    ],
    steps: ["Turn the pages with the arrow keys.", "Follow a claim's link to the view with the full measurement."],
  },
  models: {
    about: "The bundled models, each with the lesson it teaches. All views show the model that you choose.",
    marks: [
      ["prediction", "the most informative prediction in the model's first text, and its probability"],
      ["fetched", "models that are opened with a command, because their weights are downloaded first"],
    ],
    steps: ["Open the models in order: no layers, one, two, then the same circuit built by hand."],
  },
  swap: {
    about: "One prediction on a clean and on a corrupted text, and the share of the difference that patching each head from the other text accounts for.",
    marks: [
      ["framed tokens", "where the two texts differ, and the position whose prediction is compared"],
      ["grid", "the change of the logit difference when the output of one head is patched"],
      ["share of the gap", "the share of the difference between the two texts that this head alone accounts for"],
    ],
    steps: ["Edit the corrupted text, keeping the number of tokens.", "Choose the direction of the patch: which heads are necessary, or which suffice."],
  },
  compare: {
    about: "Heads of two models with the same function, compared by their QK and OV circuits.",
    marks: [
      ["cell", "the similarity of two heads: 1 if equal, 0 if unrelated, negative if opposite"],
      ["frame", "the best one-to-one matching of all heads"],
      ["null", "the similarity of the match if the head's directions are random; p is the share of draws that are at least this similar"],
    ],
    steps: ["Click a cell to see both heads on the same text.", "Choose QK or OV alone: heads may attend alike and write different outputs."],
  },
};

// Generated from the records in src/pathsum by scripts/typescript.py.
// Do not edit: change the record and run `make types`.

/** A decoded array, row-major. Half floats arrive as Float32Array. NaN means "no value". */
export interface Matrix {
  shape: number[];
  data: Float32Array | Int32Array | Uint16Array | Uint8Array;
}

export interface Example {
  title: string;
  text: string | null;
  ids: number[];
  about: string;
  kind: "text" | "repeat" | "probe";
}

export interface GuideLink {
  view: string;
  title: string;
  page: string;
}

export interface ModelInfo {
  format: "pathsum-page-model";
  version: 1;
  name: string;
  path: string;
  n_layers: number;
  n_heads: number;
  d_model: number;
  d_head: number;
  d_vocab: number;
  n_ctx: number;
  positions: string;
  norm: string;
  mlp: string;
  parameters: number;
  has_tokenizer: boolean;
  start_token: number | null;
  heads: string[];
  card: string;
  examples: Example[];
  models: string[];
  steps: number[];
  with_snapshots: string[];
  comparable: string[];
  exact: boolean;
  why_not_exact: string;
  guide: GuideLink[];
  pathsum_version: string;
  lesson: string;
}

export interface ModelCard {
  name: string;
  lesson: string;
  size: string;
  group: string;
  opens: boolean;
}

export interface Gallery {
  format: "pathsum-page-gallery";
  version: 1;
  models: ModelCard[];
}

export interface Vocabulary {
  format: "pathsum-page-vocabulary";
  version: 1;
  tokens: string[];
  counts: Matrix | null;
  drawable: Matrix;
}

export interface PageWeights {
  format: "pathsum-page-weights";
  version: 1;
  name: string;
  score_scale: number;
  start_token: number | null;
  tokenizer: string | null;
  W_E: Matrix;
  W_pos: Matrix | null;
  W_Q: Matrix;
  W_K: Matrix;
  W_V: Matrix;
  W_O: Matrix;
  W_U: Matrix;
}

export interface TextRun {
  format: "pathsum-page-run";
  version: 1;
  ids: number[];
  pieces: string[];
  given: number;
  truncated: boolean;
  n_ctx: number;
  top_ids: Matrix;
  top_probs: Matrix;
  top_logits: Matrix;
  next_rank: Matrix;
  next_prob: Matrix;
  loss: Matrix;
  remainder: number | null;
  highlight: number;
  highlight_source: number | null;
}

export interface AttentionAnswer {
  format: "pathsum-page-attention";
  version: 1;
  weighting: "attention" | "information" | "effect";
  heads: string[];
  tokens: number;
  dense: Matrix | null;
  columns: Matrix | null;
  values: Matrix | null;
  kept: number;
  extent: number;
  activity: Matrix;
  source_activity: Matrix;
}

export interface ScoreParts {
  format: "pathsum-page-scores";
  version: 1;
  head: string;
  query_parts: string[];
  key_parts: string[];
  query: Matrix;
  key: Matrix;
  remainder: number;
  total_max: number;
}

export interface Attended {
  source: number;
  weight: number;
  score: number;
  contrast: number;
  rival: number | null;
  uniform: number;
  effect: number;
  error: number;
}

export interface GraphNode {
  node: string;
  text: string;
  value: number;
  attended: Attended | null;
  note: string;
}

export interface Estimate {
  value: number;
  stderr: number | null;
  low: number | null;
  high: number | null;
  null: number | null;
  p: number | null;
  draws: number | null;
}

export interface GraphEdge {
  edge: string;
  exact: number;
  unit: "logits" | "score";
  share: number;
  effect: number | null;
  prompts: number;
  estimates: Record<string, Estimate> | null;
}

export interface LeftOut {
  node: string;
  kind: "q" | "k" | "v" | "u" | "g";
  exact: number;
  share: number;
  count: number;
  held: number;
}

export interface Span {
  text: string;
  kind: "text" | "strong" | "token" | "head" | "cell";
  head: string | null;
  position: number | null;
  source: number | null;
}

export interface Graph {
  format: "pathsum-circuit";
  version: 1;
  model: string;
  tokens: string[];
  position: number;
  token: number;
  token_text: string;
  versus: string | null;
  total: number;
  probability: number;
  threshold: number;
  floor: number;
  raised_from: number | null;
  max_nodes: number;
  nodes: GraphNode[];
  edges: GraphEdge[];
  left_out: LeftOut[];
  quadrature_error: number;
  remainder: number;
  by: "share" | "integrated" | "gradient" | "ig" | "cut" | "keep";
  prompts: string[];
  n_layers: number;
  sentence_spans: Span[];
}

export interface Breakdown {
  what: string;
  names: (number | string | "logits")[];
  values: Matrix;
  stderr: Matrix | null;
  sequences: number;
}

export interface Grid {
  what: string;
  rows: (number | string | "logits")[];
  columns: (number | string | "logits")[];
  values: Matrix;
  stderr: Matrix | null;
  sequences: number;
}

export interface LogitAttribution {
  target_positions: number[];
  target_tokens: number[];
  target_texts: string[];
  versus: string | null;
  context: string[];
  paths: number;
  total: number;
  stderr: number | null;
  remainder: number;
  by_last: Breakdown;
  by_source: Grid;
  by_head: Breakdown;
  by_mlp: Breakdown;
  by_order: Breakdown;
  by_edge: Grid;
}

export interface RankedPath {
  path: string;
  value: number;
  stderr: number | null;
}

export interface TopPaths {
  paths: RankedPath[];
  total: number;
  rest: number;
  proven: boolean;
  bound: number;
  evaluated: number;
  count: number;
  sequences: number;
}

export interface Routes {
  positions: number[];
  values: number[];
  ways: number[][];
}

export interface PathExplanation {
  format: "pathsum-paths";
  version: 1;
  model: string;
  probability: number;
  rank: number;
  counts: number[];
  toward: LogitAttribution;
  top: TopPaths;
  routes: Routes[];
}

export interface SourceTotals {
  format: "pathsum-page-sources";
  version: 1;
  position: number;
  token: number;
  total: number;
  tokens: Matrix;
  rest: number;
  remainder: number;
}

export interface Reason {
  edge: string;
  share: number;
  effect: number;
  weight: number;
  probability: number;
  wrote: number | null;
}

export interface MlpShare {
  total: number;
  strongest: string;
  strongest_share: number;
  without_heads: number | null;
}

export interface Story {
  format: "pathsum-page-story";
  version: 1;
  position: number;
  token: number;
  expected: number;
  rival: number | null;
  versus: number | null;
  probability: number;
  first: number | null;
  probability_first: number | null;
  total: number;
  coverage: number | null;
  heads: string[];
  probability_without_heads: number | null;
  head: string | null;
  probability_without_head: number | null;
  share: number;
  source: number | null;
  weight: number;
  kind: "induction" | "sink" | null;
  reasons: Reason[];
  writer: string | null;
  weight_without: number | null;
  probability_without: number | null;
  is_decomposed: boolean;
  mlps: MlpShare | null;
  sentence: Span[];
}

export interface Measured {
  total: number;
  probability: number;
  rank: number;
}

export interface WithoutAnswer {
  format: "pathsum-page-without";
  version: 1;
  off: string[];
  position: number;
  token: number;
  before: Measured;
  after: Measured;
  top_ids: number[];
  top_before: Matrix;
  top_after: Matrix;
  parts: string[];
  parts_before: Matrix;
  parts_after: Matrix;
  heads: string[];
  moved: Matrix;
  head: string | null;
  pattern_before: Matrix | null;
  pattern_after: Matrix | null;
  loss_before: Matrix;
  loss_after: Matrix;
}

export interface NeuronShare {
  neuron: string;
  share: number;
}

export interface NodeNeurons {
  format: "pathsum-node-neurons";
  version: 1;
  node: string;
  value: number;
  neurons: NeuronShare[];
  rest: number;
  others: number;
}

export interface Token {
  id: number;
  text: string;
}

export interface TokenScore {
  token: Token;
  value: number;
  z: number;
}

export interface NeuronEdge {
  component: string;
  score: number;
  z: number;
  p: number;
}

export interface NeuronSide {
  side: string;
  bias: number;
  raised: TokenScore[];
  lowered: TokenScore[];
  edges: NeuronEdge[];
  tested: number;
  significant: number;
}

export interface NeuronContext {
  sequence: number;
  position: number;
  tokens: string[];
  next: string | null;
  activation: number;
  effect: number | null;
  times: number;
}

export interface Neuron {
  format: "pathsum-neuron";
  version: 1;
  model: string;
  neuron: string;
  inputs: NeuronSide[];
  output: NeuronSide;
  cosine: number;
  cosine_p: number;
  mean: number;
  open: number;
  contexts: NeuronContext[];
  text: string;
  cost: Estimate | null;
  note: string;
}

export interface LensAnswer {
  format: "pathsum-page-lens";
  version: 1;
  readout: string;
  start: number;
  predictions: number[];
  top_ids: Matrix;
  top_probs: Matrix;
  prediction_probs: Matrix;
}

export interface LensPartsAnswer {
  format: "pathsum-page-lens-parts";
  version: 1;
  layer: number;
  position: number;
  token: number;
  direct: number;
  held: number;
  writers: string[];
  written: Matrix;
  above: string[];
  carried: Matrix;
  by_order: Matrix;
}

export interface ContextPart {
  value: number;
  stderr: number | null;
  low: number | null;
  high: number | null;
  null: number | null;
  p: number | null;
  draws: number | null;
  first: number;
  last: number;
}

export interface Score {
  value: number;
  stderr: number | null;
  low: number | null;
  high: number | null;
  null: number | null;
  p: number | null;
  draws: number | null;
  through: string | null;
  part: ContextPart | null;
}

export interface HeadEntry {
  head: string;
  kind: string;
  kinds: string[];
  scores: Record<string, Score>;
  evidence: string[];
  against: string[];
}

export interface ScoreInfo {
  name: string;
  title: string;
  about: string;
  evidence: "data" | "weights";
  formula: string;
  probe: string;
  ceiling: number | null;
  null: string;
  threshold: number;
  reason: string;
  citation: string;
}

export interface Atlas {
  model: string;
  heads: HeadEntry[];
  infos: ScoreInfo[];
  absent: Record<string, string>;
  alpha: number;
  note: string;
}

export interface AtlasAnswer {
  format: "pathsum-page-atlas";
  version: 1;
  atlas: Atlas;
  eigenvalues: Matrix;
  by_chance: Record<string, number>;
}

export interface HeadCopying {
  head: string;
  ratio: number;
  null: number;
  null_sd: number;
  z: number;
  p: number;
  eigenvalues: Matrix;
  positive_diagonal: number | null;
  top_1: number | null;
  top_5: number | null;
  note: string;
}

export interface OffsetProfile {
  head: string;
  score: Matrix;
  sd: Matrix;
  attention: Matrix | null;
  position: number;
  content: number;
  note: string;
}

export interface Scored {
  token: Token;
  value: number;
}

export interface TokenRow {
  token: Token;
  others: Scored[];
}

export interface HeadPage {
  format: "pathsum-page-head";
  version: 1;
  head: string;
  copying: HeadCopying;
  null_eigenvalues: Matrix;
  offsets: OffsetProfile | null;
  ov_rows: TokenRow[];
  qk_rows: TokenRow[];
  note: string;
}

export interface OwnLogits {
  format: "pathsum-page-copying";
  version: 1;
  head: string;
  positive_diagonal: number | null;
  top_1: number | null;
  top_5: number | null;
}

export interface Effect {
  head: string;
  source: Token;
  raises: Scored[];
  lowers: Scored[];
  own: number | null;
  note: string;
}

export interface TokenAttention {
  head: string;
  token: Token;
  attends_to: Scored[];
  attended_by: Scored[];
  note: string;
}

export interface TokenTables {
  format: "pathsum-page-token";
  version: 1;
  effect: Effect;
  raised_by: Scored[];
  attention: TokenAttention;
  note: string;
}

export interface Cause {
  source: Token;
  destination: Token;
  out: Token;
}

export interface Bug {
  head: string;
  source: Token;
  destination: Token;
  out: Token;
  attention: number;
  effect: number;
  score: number;
  pattern: "[b]…[a]→[b]" | "[b]…[a]→[b']" | "[ab]…[a]→[b]" | "[ab]…[a]→[b']" | "brackets" | "indentation" | "word ending" | "names" | "other";
  because: [Cause, Cause];
  decided_by: "text" | "list" | "direct path";
}

export interface Evidence {
  antecedents: number;
  followed: number;
  bigram_rate: number;
  rate: number;
  lift: number;
}

export interface TriplePlace {
  ids: number[];
  source: number;
  destination: number;
}

export interface SkipTrigram {
  head: string;
  source: Token;
  destination: Token;
  out: Token;
  attention: number;
  effect: number;
  score: number;
  pattern: "[b]…[a]→[b]" | "[b]…[a]→[b']" | "[ab]…[a]→[b]" | "[ab]…[a]→[b']" | "brackets" | "indentation" | "word ending" | "names" | "other";
  bug: Bug | null;
  evidence: Evidence | null;
  fires: number | null;
  variants: string[];
  occurrence: string | null;
  place: TriplePlace | null;
}

export interface BugCost {
  cost: number;
  each: number[];
  positions: number;
  predicted: number;
}

export interface PatternShare {
  pattern: "[b]…[a]→[b]" | "[b]…[a]→[b']" | "[ab]…[a]→[b]" | "[ab]…[a]→[b']" | "brackets" | "indentation" | "word ending" | "names" | "other";
  count: number;
  share: number;
  examples: string[];
}

export interface SourceGain {
  head: string;
  source: string;
  destinations: string[];
  outs: string[];
  score: number;
  occurrence: string;
}

export interface SkipTrigrams {
  format: "pathsum-skip-trigrams";
  version: 1;
  triples: SkipTrigram[];
  bugs: Bug[];
  cost: BugCost | null;
  note: string;
  rank: "text" | "weights";
  classes: PatternShare[];
  sources: SourceGain[];
}

export interface Ablation {
  model: string;
  heads: string[];
  knockout: "zero" | "mean" | "resample" | "first_token";
  after: "recomputed" | "freeze_patterns";
  loss: Estimate;
  loss_without: Estimate;
  cost: Estimate;
  sequences: number;
  predictions: number;
  unit: string;
}

export interface Replacement {
  model: string;
  head: string;
  description: string;
  knockout: "zero" | "mean" | "resample" | "first_token";
  after: "recomputed" | "freeze_patterns";
  loss: Estimate;
  loss_ablated: Estimate;
  loss_replaced: Estimate;
  cost: Estimate;
  share: Estimate | null;
  why_no_share: string;
  overlap: number | null;
  kept: string;
  sequences: number;
  predictions: number;
  unit: string;
}

export interface AblationOn {
  on: string;
  ablations: Ablation[];
  replacements: Replacement[];
}

export interface HeadAblation {
  format: "pathsum-page-ablation";
  version: 1;
  head: string;
  tests: AblationOn[];
}

export interface Context {
  sequence: number;
  destination: number;
  source: number;
  ids: number[];
  weight: number;
  off_first: number;
  effect: number | null;
  times: number;
}

export interface TopContexts {
  format: "pathsum-top-contexts";
  version: 1;
  head: string;
  by_attention: Context[];
  by_effect: Context[];
  deciles: Context[];
  sequences: number;
  contexts: number;
  mean_weight: number;
  mean_effect: number | null;
  tokens: Token[];
  note: string;
}

export interface PairScores {
  score: Matrix;
  excess: Matrix;
  z: Matrix;
  p: Matrix;
  null_sd: Matrix;
  skewness: Matrix;
  component: Matrix | null;
  tried: Matrix | null;
  p_axes: Matrix | null;
}

export interface Composition {
  model: string;
  heads: string[];
  q: PairScores;
  k: PairScores;
  v: PairScores;
  dimension: number;
  centered: boolean;
  offset: number | null;
  notes: string[];
}

export interface ChanceCount {
  z: number;
  q: number;
  k: number;
  v: number;
}

export interface CompositionAnswer {
  format: "pathsum-page-composition";
  version: 1;
  composition: Composition;
  chance: ChanceCount[];
}

export interface ScoredEdge {
  edge: string;
  score: number;
  excess: number;
  z: number;
  p: number;
  p_axes: number | null;
  cost: number | null;
}

export interface EmbedAndLogitEdges {
  format: "pathsum-page-embed-and-logit-edges";
  version: 1;
  edges: ScoredEdge[];
  note: string;
}

export interface VirtualWeights {
  model: string;
  edge: string;
  score: number;
  excess: number;
  z: number;
  p: number;
  singular_values: Matrix;
  dimension: number;
  centered: boolean;
  note: string;
}

export interface PatchEffectOn {
  on: string;
  cost: Estimate;
}

export interface EdgePage {
  format: "pathsum-page-edge";
  version: 1;
  edge: string;
  weights: VirtualWeights;
  eigenvalues: Matrix;
  null_eigenvalues: Matrix;
  rows: TokenRow[];
  row_meaning: string;
  patching: PatchEffectOn[];
  note: string;
}

export interface TermSetGain {
  name: string;
  order: number;
  terms: number;
  alone: Estimate;
  given_others: Estimate;
}

export interface TermImportance {
  format: "pathsum-term-importance";
  version: 1;
  model: string;
  uniform: number;
  loss: number[];
  gain: number[];
  loss_estimates: Estimate[];
  gain_estimates: Estimate[];
  sets: TermSetGain[];
  scale: "frozen" | "recomputed";
  mlps: "frozen" | "recomputed" | "linear";
  sequences: number;
  predictions: number;
  note: string;
  unit: string;
}

export interface CurvePoint {
  size: number;
  kl: Estimate;
  share: Estimate;
}

export interface RuleLine {
  text: string;
  head: string;
  size: number;
  gain: number | null;
}

export interface ProgramAnswer {
  format: "pathsum-page-program";
  version: 1;
  size: number;
  share: Estimate;
  agreement: Estimate;
  loss: number;
  curve: CurvePoint[];
  rules: RuleLine[];
}

export interface Term {
  rule: string;
  value: number;
  at: number[];
}

export interface Explanation {
  format: "pathsum-program-explanation";
  version: 1;
  text: string[];
  position: number;
  token: Token;
  logit: number;
  terms: Term[];
  remainder: number;
  probability: number;
  model_probability: number | null;
  model_prediction: Token | null;
}

export interface Curve {
  name: string;
  title: string;
  unit: string;
  head: string;
  values: Matrix;
  stderr: Matrix;
  least: number;
  about: string;
}

export interface PhaseChange {
  curve: string;
  head: string;
  step: number;
  low: number;
  high: number;
  begin: number;
  end: number;
  before: number;
  after: number;
  explained: number;
  evidence: number;
  about: string;
}

export interface Dynamics {
  format: "pathsum-dynamics";
  version: 1;
  run: string;
  steps: number[];
  tokens: number[];
  heads: string[];
  curves: Curve[];
  previous_token: Matrix;
  prefix_matching: Matrix;
  induction: Matrix;
  writer: string;
  reader: string;
  loss_by_index: Matrix;
  slope_index: number[];
  slope: Matrix;
  pca: Matrix;
  pca_explained: [number, number];
  phase_change: PhaseChange | null;
  why_none: string;
  changes: PhaseChange[];
  in_context_share: number | null;
  note: string;
  logged_steps: number[];
  logged_loss: number[];
}

export interface ClaimRule {
  quantity: string;
  sense: "at least" | "at most";
  holds: number;
  partly: number;
  unit: string;
  lowest: number | null;
  highest: number | null;
}

export interface SeedValue {
  run: string;
  seed: number;
  layers: number;
  tokens: number;
  value: number | null;
  low: number | null;
  high: number | null;
  verdict: "holds" | "partly" | "does not hold" | "not applicable";
  note: string;
}

export interface OverSeeds {
  seeds: SeedValue[];
  mean: Estimate | null;
  verdict: "holds" | "partly" | "does not hold" | "not applicable" | null;
  note: string;
}

export interface Outline {
  id: string;
  section: string;
  title: string;
  text: string;
  rule: ClaimRule;
  rule_text: string;
  paper_value: string;
  paper_number: number | null;
  seeds: OverSeeds;
  model: string;
  step: number | null;
  note: string;
}

export interface Tour {
  format: "pathsum-page-paper";
  version: 1;
  claims: Outline[];
  over_seeds: string;
}

export interface Bar {
  name: string;
  value: number;
  low: number | null;
  high: number | null;
  null: number | null;
  link: string;
}

export interface BarsPicture {
  title: string;
  axis: string;
  bars: Bar[];
  threshold: number | null;
  type: "bars";
}

export interface Point {
  name: string;
  x: number;
  y: number;
  group: string;
  link: string;
}

export interface PointsPicture {
  title: string;
  x: string;
  y: string;
  points: Point[];
  guide: "diagonal" | "axes";
  type: "points";
}

export interface Line {
  name: string;
  values: number[];
}

export interface LinesPicture {
  title: string;
  x: string;
  y: string;
  lines: Line[];
  mark: number | null;
  mark_name: string;
  type: "lines";
}

export interface Stack {
  name: string;
  parts: number[];
}

export interface StacksPicture {
  title: string;
  axis: string;
  parts: string[];
  rows: Stack[];
  type: "stacks";
}

export interface PatternPicture {
  head: string;
  example: number;
  type: "pattern";
}

export interface LossPicture {
  example: number;
  type: "losses";
}

export interface OffsetsPicture {
  head: string;
  type: "offsets";
}

export interface GraphPicture {
  type: "graph";
}

export interface Claim {
  format: "pathsum-page-claim";
  version: 1;
  outline: Outline;
  verdict: "holds" | "partly" | "does not hold" | "not applicable";
  value: Estimate | null;
  measured: string;
  note: string;
  view: string;
  picture: BarsPicture | PointsPicture | LinesPicture | StacksPicture | PatternPicture | LossPicture | OffsetsPicture | GraphPicture | null;
}

export interface HeadMatch {
  left: string;
  right: string;
  score: number;
  qk: number;
  ov: number;
  null: number;
  p: number;
}

export interface HeadAlignment {
  format: "pathsum-head-alignment";
  version: 1;
  left: string;
  right: string;
  left_heads: string[];
  right_heads: string[];
  similarity: Matrix;
  qk: Matrix;
  ov: Matrix;
  matches: HeadMatch[];
  draws: number;
  note: string;
}

export interface TwoTexts {
  format: "pathsum-page-texts";
  version: 1;
  ids: number[];
  pieces: string[];
  other_ids: number[];
  other_pieces: string[];
  position: number;
  token: number;
  rival: number;
  clean: number;
  corrupted: number;
  parts: string[];
  broken: Matrix;
  restored: Matrix;
}

export interface ModelParams {
  model?: string;
  step?: number;
}

export interface TextParams {
  model?: string;
  step?: number;
  text?: string;
  ids?: string;
  example?: number;
}

export interface AttentionParams {
  model?: string;
  step?: number;
  text?: string;
  ids?: string;
  example?: number;
  weighting?: "attention" | "information" | "effect";
  head?: string;
  precision?: "half" | "full";
}

export interface ScoresParams {
  model?: string;
  step?: number;
  text?: string;
  ids?: string;
  example?: number;
  head: string;
}

export interface WhyParams {
  model?: string;
  step?: number;
  text?: string;
  ids?: string;
  example?: number;
  position: number;
  token?: number;
  versus?: string | number;
  effects?: boolean;
}

export interface PredictionParams {
  model?: string;
  step?: number;
  text?: string;
  ids?: string;
  example?: number;
  position: number;
  token?: number;
  versus?: string | number;
}

export interface StoryParams {
  model?: string;
  step?: number;
  text?: string;
  ids?: string;
  example?: number;
  position?: number;
  token?: number;
  versus?: string | number;
}

export interface WithoutParams {
  model?: string;
  step?: number;
  text?: string;
  ids?: string;
  example?: number;
  position: number;
  token?: number;
  versus?: string | number;
  off: string;
  head?: string;
}

export interface NeuronsParams {
  model?: string;
  step?: number;
  text?: string;
  ids?: string;
  example?: number;
  position: number;
  token?: number;
  versus?: string | number;
  node: string;
}

export interface NeuronParams {
  model?: string;
  step?: number;
  neuron: string;
}

export interface LensParams {
  model?: string;
  step?: number;
  text?: string;
  ids?: string;
  example?: number;
  readout?: "direct" | "held";
  start?: number;
}

export interface LensPartsParams {
  model?: string;
  step?: number;
  text?: string;
  ids?: string;
  example?: number;
  layer: number;
  position: number;
  token?: number;
}

export interface HeadParams {
  model?: string;
  step?: number;
  head: string;
}

export interface TokenParams {
  model?: string;
  step?: number;
  head: string;
  token: number;
}

export interface ContextsParams {
  model?: string;
  step?: number;
  head: string;
  text?: "prose" | "all";
}

export interface EdgeParams {
  model?: string;
  step?: number;
  edge: string;
}

export interface ProgramParams {
  model?: string;
  step?: number;
  budget?: number;
}

export interface RulesParams {
  model?: string;
  step?: number;
  text?: string;
  ids?: string;
  example?: number;
  position: number;
  token?: number;
  budget?: number;
}

export interface ClaimParams {
  model?: string;
  step?: number;
  claim: string;
}

export interface CompareParams {
  model?: string;
  step?: number;
  other: string;
  other_step?: number;
}

export interface TextsParams {
  model?: string;
  step?: number;
  text?: string;
  ids?: string;
  example?: number;
  position: number;
  token?: number;
  other_text?: string;
  other_ids?: string;
}

/** Every question: its parameters, and the record that answers it. */
export interface Questions {
  model: { params: ModelParams; answer: ModelInfo };
  gallery: { params: ModelParams; answer: Gallery };
  vocabulary: { params: ModelParams; answer: Vocabulary };
  weights: { params: ModelParams; answer: PageWeights };
  run: { params: TextParams; answer: TextRun };
  attention: { params: AttentionParams; answer: AttentionAnswer };
  scores: { params: ScoresParams; answer: ScoreParts };
  why: { params: WhyParams; answer: Graph };
  paths: { params: PredictionParams; answer: PathExplanation };
  sources: { params: PredictionParams; answer: SourceTotals };
  story: { params: StoryParams; answer: Story };
  without: { params: WithoutParams; answer: WithoutAnswer };
  neurons: { params: NeuronsParams; answer: NodeNeurons };
  neuron: { params: NeuronParams; answer: Neuron };
  lens: { params: LensParams; answer: LensAnswer };
  lens_parts: { params: LensPartsParams; answer: LensPartsAnswer };
  first_scores: { params: ModelParams; answer: AtlasAnswer };
  atlas: { params: ModelParams; answer: AtlasAnswer };
  head: { params: HeadParams; answer: HeadPage };
  copying: { params: HeadParams; answer: OwnLogits };
  token: { params: TokenParams; answer: TokenTables };
  trigrams: { params: HeadParams; answer: SkipTrigrams };
  ablation: { params: HeadParams; answer: HeadAblation };
  contexts: { params: ContextsParams; answer: TopContexts };
  composition: { params: ModelParams; answer: CompositionAnswer };
  embed_and_logit_edges: { params: ModelParams; answer: EmbedAndLogitEdges };
  edge: { params: EdgeParams; answer: EdgePage };
  terms: { params: ModelParams; answer: TermImportance };
  program: { params: ProgramParams; answer: ProgramAnswer };
  rules: { params: RulesParams; answer: Explanation };
  training: { params: ModelParams; answer: Dynamics };
  paper: { params: ModelParams; answer: Tour };
  claim: { params: ClaimParams; answer: Claim };
  compare: { params: CompareParams; answer: HeadAlignment };
  texts: { params: TextsParams; answer: TwoTexts };
}

export type QuestionName = keyof Questions;

export type Answers = { [N in QuestionName]: Questions[N]["answer"] };

export type Params = { [N in QuestionName]: Questions[N]["params"] };

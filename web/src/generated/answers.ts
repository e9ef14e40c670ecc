// Generated from the records in src/pathsum/pages/answers by pathsum.explorer.typescript.
// Do not edit: change the record and run `make types`.

/** A decoded array, row-major. Half floats arrive as Float32Array. NaN means "no such number". */
export interface Matrix {
  shape: number[];
  data: Float32Array | Int32Array | Uint16Array | Uint8Array;
}

export interface Example {
  title: string;
  text: string | null;
  ids: number[];
  about: string;
  kind: 'text' | 'repeat' | 'probe';
}

export interface GuideLink {
  view: string;
  title: string;
  page: string;
}

export interface ModelInfo {
  format: 'pathsum-page-model';
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
  exact: boolean;
  why_not_exact: string;
  guide: GuideLink[];
  pathsum_version: string;
}

export interface Vocabulary {
  format: 'pathsum-page-vocabulary';
  version: 1;
  tokens: string[];
  counts: Matrix | null;
  undecodable: number[];
}

export interface TextRun {
  format: 'pathsum-page-run';
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
}

export interface AttentionAnswer {
  format: 'pathsum-page-attention';
  version: 1;
  weighting: 'attention' | 'information' | 'effect';
  heads: string[];
  tokens: number;
  dense: Matrix | null;
  columns: Matrix | null;
  values: Matrix | null;
  kept: number;
  extent: number;
  does: Matrix;
  is_read: Matrix;
}

export interface ScoreParts {
  format: 'pathsum-page-scores';
  version: 1;
  head: string;
  query_parts: string[];
  key_parts: string[];
  query: Matrix;
  key: Matrix;
  remainder: number;
  total_max: number;
}

export interface OrderValue {
  order: number;
  value: number;
  paths: string;
}

export interface NamedValue {
  name: string;
  value: number;
}

export interface SourceValue {
  position: number;
  value: number;
}

export interface PathValue {
  heads: string[];
  source: string;
  text: string;
  formula: string;
  latex: string;
  value: number;
  order: number;
  from_positions: number[];
  from_values: number[];
  via: number[][];
}

export interface Why {
  format: 'pathsum-page-why';
  version: 1;
  position: number;
  token: number;
  versus: string;
  total: number;
  probability: number;
  rank: number;
  by_order: OrderValue[];
  by_last: NamedValue[];
  by_source: SourceValue[];
  by_head: NamedValue[];
  paths: PathValue[];
  proven: boolean;
  bound: number;
  rest: number;
  remainder: number;
}

export interface AtlasScore {
  name: string;
  title: string;
  formula: string;
  about: string;
  ceiling: number | null;
  threshold: number | null;
  reason: string;
  measured_from: 'data' | 'weights';
  value: Matrix;
  stderr: Matrix;
  null: Matrix;
  p: Matrix;
}

export interface HeadKind {
  head: string;
  kind: string;
  evidence_for: string[];
  evidence_against: string[];
}

export interface AtlasAnswer {
  format: 'pathsum-page-atlas';
  version: 1;
  heads: string[];
  layers: number[];
  scores: AtlasScore[];
  kinds: HeadKind[];
  eigenvalues: Matrix;
}

export interface CopyingScore {
  name: string;
  value: number | null;
  null: number | null;
  p: number | null;
}

export interface ScoredEdge {
  edge: string;
  score: number;
  excess: number;
  z: number;
  p: number;
}

export interface TokenRow {
  token: number;
  others: number[];
  values: number[];
}

export interface HeadPage {
  format: 'pathsum-page-head';
  version: 1;
  head: string;
  kind: string;
  evidence_for: string[];
  evidence_against: string[];
  ov_eigenvalues: Matrix;
  null_eigenvalues: Matrix;
  copying: CopyingScore[];
  offsets: Matrix;
  offset_profile: Matrix;
  offset_scores: Matrix;
  offset_spread: Matrix;
  position_sd: number | null;
  content_sd: number | null;
  composition: ScoredEdge[];
  ov_rows: TokenRow[];
  qk_rows: TokenRow[];
  note: string;
}

export interface TokenTables {
  format: 'pathsum-page-token';
  version: 1;
  head: string;
  token: number;
  raises: TokenRow;
  lowers: TokenRow;
  copied_from: TokenRow;
  attends_to: TokenRow;
  attended_by: TokenRow;
  note: string;
}

export interface TrigramRow {
  source: number;
  destination: number;
  out: number;
  score: number;
  pattern: string;
  bug: boolean;
  because: string;
}

export interface TrigramRows {
  format: 'pathsum-page-trigrams';
  version: 1;
  head: string;
  measure: string;
  rows: TrigramRow[];
  note: string;
}

export interface AblationRow {
  intervention: string;
  on: string;
  cost: number;
  low: number | null;
  high: number | null;
}

export interface DescriptionRow {
  description: string;
  on: string;
  recovered: number | null;
  low: number | null;
  high: number | null;
}

export interface HeadAblation {
  format: 'pathsum-page-ablation';
  version: 1;
  head: string;
  rows: AblationRow[];
  descriptions: DescriptionRow[];
  note: string;
}

export interface ChanceCount {
  z: number;
  q: number;
  k: number;
  v: number;
}

export interface CompositionAnswer {
  format: 'pathsum-page-composition';
  version: 1;
  heads: string[];
  z: Matrix;
  score: Matrix;
  excess: Matrix;
  p: Matrix;
  chance: ChanceCount[];
  notes: string[];
}

export interface PatchRow {
  name: string;
  value: number;
  low: number | null;
  high: number | null;
}

export interface EdgePage {
  format: 'pathsum-page-edge';
  version: 1;
  writer: string;
  reader: string;
  kind: 'q' | 'k' | 'v';
  score: number;
  z: number;
  p: number;
  eigenvalues: Matrix;
  null_eigenvalues: Matrix;
  rows: TokenRow[];
  row_meaning: string;
  singular_values: Matrix;
  patching: PatchRow[];
  note: string;
}

export interface TermGain {
  name: string;
  alone: number;
  given_others: number;
}

export interface TermsAnswer {
  format: 'pathsum-page-terms';
  version: 1;
  uniform: number;
  loss: number[];
  gain: number[];
  low: (number | null)[];
  high: (number | null)[];
  by_layer: TermGain[];
  heads: TermGain[];
  about: string;
}

export interface Curve {
  name: string;
  unit: string;
  values: Matrix;
  stderr: Matrix;
  about: string;
}

export interface PhaseChange {
  step: number;
  low: number;
  high: number;
  about: string;
}

export interface TrainingCurves {
  format: 'pathsum-page-training';
  version: 1;
  steps: number[];
  tokens: number[];
  curves: Curve[];
  heads: string[];
  previous_token: Matrix;
  prefix_matching: Matrix;
  induction: Matrix;
  phase_change: PhaseChange | null;
  why_none: string;
  loss_by_index: Matrix;
  pca: Matrix;
  pca_explained: number[];
  remarks: string[];
}

export interface Claim {
  id: string;
  section: string;
  title: string;
  text: string;
  view: string;
  measured: string;
  low: number | null;
  high: number | null;
  papers: string;
  holds: 'holds' | 'does not hold' | 'not measurable here';
  note: string;
  model: string;
}

export interface Tour {
  format: 'pathsum-page-paper';
  version: 1;
  claims: Claim[];
}

export interface MatchedHeads {
  left: string;
  right: string;
  score: number;
  null: number;
  p: number;
}

export interface Comparison {
  format: 'pathsum-page-compare';
  version: 1;
  left: string;
  right: string;
  left_heads: string[];
  right_heads: string[];
  similarity: Matrix;
  qk: Matrix;
  ov: Matrix;
  matched: MatchedHeads[];
  method: string;
}

export interface AboutModel {
  model?: string;
  step?: number;
}

export interface AboutText {
  model?: string;
  step?: number;
  text?: string;
  ids?: string;
  example?: number;
}

export interface AttentionOf {
  model?: string;
  step?: number;
  text?: string;
  ids?: string;
  example?: number;
  weighting?: 'attention' | 'information' | 'effect';
  head?: string;
}

export interface ScoresOf {
  model?: string;
  step?: number;
  text?: string;
  ids?: string;
  example?: number;
  head: string;
}

export interface WhyOf {
  model?: string;
  step?: number;
  text?: string;
  ids?: string;
  example?: number;
  position: number;
  token?: number;
  versus?: string;
}

export interface AboutHead {
  model?: string;
  step?: number;
  head: string;
}

export interface TokenOf {
  model?: string;
  step?: number;
  head: string;
  token: number;
}

export interface EdgeOf {
  model?: string;
  step?: number;
  writer: string;
  reader: string;
  kind: 'q' | 'k' | 'v';
}

export interface CompareWith {
  model?: string;
  step?: number;
  other: string;
  other_step?: number;
}

/** Every question: what it may say, and what answers it. */
export interface Questions {
  model: { params: AboutModel; answer: ModelInfo };
  vocabulary: { params: AboutModel; answer: Vocabulary };
  run: { params: AboutText; answer: TextRun };
  attention: { params: AttentionOf; answer: AttentionAnswer };
  scores: { params: ScoresOf; answer: ScoreParts };
  why: { params: WhyOf; answer: Why };
  atlas: { params: AboutModel; answer: AtlasAnswer };
  head: { params: AboutHead; answer: HeadPage };
  token: { params: TokenOf; answer: TokenTables };
  trigrams: { params: AboutHead; answer: TrigramRows };
  ablation: { params: AboutHead; answer: HeadAblation };
  composition: { params: AboutModel; answer: CompositionAnswer };
  edge: { params: EdgeOf; answer: EdgePage };
  terms: { params: AboutModel; answer: TermsAnswer };
  training: { params: AboutModel; answer: TrainingCurves };
  paper: { params: AboutModel; answer: Tour };
  compare: { params: CompareWith; answer: Comparison };
}

export type QuestionName = keyof Questions;

export type Answers = { [N in QuestionName]: Questions[N]['answer'] };

export type Params = { [N in QuestionName]: Questions[N]['params'] };

import type { Params, QuestionName, TextParams } from "../../generated/answers";
import { Engine, isComputed } from "../../engine/engine";
import { plural } from "../format";
import { CachedSource, type Explaining, NotRecorded, type PlainParams, questionKey } from "./source";

/** A block of answers: compressed and in base64 in a report, bytes in a fragment. */
type Block = string | Uint8Array;

export interface ReportFile {
  format: string;
  version: number;
  title: string;
  /** The views that have something to show. */
  views: readonly string[];
  /** Where the page opens if its address does not say. */
  start: string;
  /** The block, first byte and length of each answer. */
  answers: Record<string, readonly [number, number, number]>;
  blocks: readonly Block[];
}

/** Unpacked blocks that are kept: the next answer is likely to be next to the last one. */
const OPEN_BLOCKS = 8;

/** Answers that the page computes are kept as if they were so long. */
const COMPUTED_BYTES = 2 ** 19;

/** The answers recorded in the page itself; with the weights of its model, the page computes those about texts. */
export class ReportSource extends CachedSource {
  readonly kind = "report";
  private readonly texts: number;
  private readonly open = new Map<number, Promise<Uint8Array>>();
  private readonly sets = new Map<string, ReadonlySet<number>>();
  private engine: Promise<Engine> | null = null;

  constructor(private readonly file: ReportFile) {
    super();
    this.texts = Object.keys(file.answers).filter((key) => /^run:\{"example":\d+\}$/.test(key)).length;
  }

  static fromPage(document: Document): ReportSource | null {
    const element = document.getElementById("pathsum-report");
    if (!element?.textContent) return null;
    return new ReportSource(JSON.parse(element.textContent) as ReportFile);
  }

  get start(): string {
    return this.file.start;
  }

  override get views(): readonly string[] {
    return this.file.views;
  }

  override has<N extends QuestionName>(name: N, params: Params[N]): boolean {
    return questionKey(name, params as PlainParams) in this.file.answers || this.computes(name, params as PlainParams);
  }

  /** Whether the page answers a question about its own model by running it. */
  private computes(name: QuestionName, { model, step }: PlainParams): boolean {
    const isOwn = step === undefined && (model === undefined || model === this.file.title);
    return "weights:{}" in this.file.answers && isOwn && isComputed(name);
  }

  override explained(name: Explaining, text: TextParams): ReadonlySet<number> | null {
    if (this.computes(name, text as PlainParams)) return null;
    const { example } = text;
    return example === undefined || text.model !== undefined || text.step !== undefined ? new Set() : this.recorded(name, example);
  }

  /** The positions of an example whose predictions are explained. */
  private recorded(name: Explaining, example: number): ReadonlySet<number> {
    const known = this.sets.get(`${name} ${example}`);
    if (known) return known;
    const held = new RegExp(`^${name}:\\{"example":${example},"position":(\\d+)\\}$`);
    const found = new Set(Object.keys(this.file.answers).flatMap((key) => held.exec(key)?.[1] ?? []).map(Number));
    this.sets.set(`${name} ${example}`, found);
    return found;
  }

  protected async fetchWire(name: QuestionName, params: PlainParams, key: string): Promise<ArrayBuffer> {
    const place = this.file.answers[key];
    if (place === undefined) throw new NotRecorded(this.notRecorded(name, params));
    const [block, start, length] = place;
    return (await this.unpacked(block)).slice(start, start + length).buffer as ArrayBuffer;
  }

  protected override async fetchAnswer(...question: Parameters<CachedSource["fetchAnswer"]>): ReturnType<CachedSource["fetchAnswer"]> {
    const [name, params, key] = question;
    if (key in this.file.answers || !this.computes(name, params)) return super.fetchAnswer(...question);
    this.engine ??= this.makeEngine();
    const engine = await this.engine;
    return { answer: engine.answer(name, params as unknown as Params[QuestionName]), bytes: COMPUTED_BYTES };
  }

  private async makeEngine(): Promise<Engine> {
    return new Engine(await this.ask("weights", {}), await this.ask("model", {}), await this.ask("vocabulary", {}));
  }

  private unpacked(number: number): Promise<Uint8Array> {
    const known = this.open.get(number) ?? unpack(this.file.blocks[number] as Block);
    this.open.delete(number);
    this.open.set(number, known); // most recently used last
    for (const oldest of this.open.keys()) {
      if (this.open.size <= OPEN_BLOCKS) break;
      this.open.delete(oldest);
    }
    return known;
  }

  private notRecorded(name: QuestionName, params: PlainParams): string {
    const command = `pathsum explore ${this.file.title || "MODEL"}`;
    const own = this.lacking(name, params);
    return `${own} ${own.includes("example text") ? "To run others" : "For the rest"}, open the explorer: ${command}`;
  }

  /** What it holds of this, or that it holds nothing of it; true whatever was asked. */
  private lacking(name: QuestionName, params: PlainParams): string {
    const isText = ["run", "attention", "scores", "why", "paths", "story", "without", "lens", "lens_parts"].includes(name);
    if (!isText) return "This report does not include this answer.";
    const { example } = params as TextParams;
    if (example === undefined || !this.has("run", { example })) return `This report includes ${plural(this.texts, "example text")}.`;
    if (params["model"] !== undefined) return "This report includes this text for its first model only.";
    if (params["step"] !== undefined) return `This report does not include this text at step ${params["step"]}.`;
    if (name === "scores") return "This report includes no score tables of this text.";
    if (name !== "why" && name !== "paths") return "This report does not include this answer for this text.";
    const explained = this.recorded(name, example);
    const form = name === "paths" ? "as a sum of paths" : "as a graph";
    if (explained.has(params["position"] as number)) {
      return `This report explains the prediction at ${params["position"]} of the next token only, against the mean of all tokens.`;
    }
    if (explained.size === 0) return `This report explains no prediction of this text ${form}.`;
    return `This report explains the predictions at ${[...explained].join(", ")} of this text ${form}.`;
  }
}

async function unpack(block: Block): Promise<Uint8Array> {
  if (typeof block !== "string") return block;
  const bytes = Uint8Array.from(atob(block), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

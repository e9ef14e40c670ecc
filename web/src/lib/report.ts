import { type PlainParams, questionKey } from "./keys";
import type { Params, QuestionName } from "../generated/answers";
import { plural } from "./format";
import { CachedSource, NotRecorded } from "./source";

interface ReportFile {
  format: string;
  version: number;
  title: string;
  answers: Record<string, string>;
}

/** The answers recorded in the page itself. */
export class ReportSource extends CachedSource {
  readonly kind = "report";
  private readonly texts: number;

  constructor(private readonly file: ReportFile) {
    super();
    this.texts = Object.keys(file.answers).filter((key) => /^run:\{"example":\d+\}$/.test(key)).length;
  }

  static fromPage(document: Document): ReportSource | null {
    const element = document.getElementById("pathsum-report");
    if (!element?.textContent) return null;
    return new ReportSource(JSON.parse(element.textContent) as ReportFile);
  }

  override has<N extends QuestionName>(name: N, params: Params[N]): boolean {
    return questionKey(name, params as PlainParams) in this.file.answers;
  }

  protected async fetchWire(name: QuestionName, params: PlainParams, key: string): Promise<ArrayBuffer> {
    const packed = this.file.answers[key];
    if (packed === undefined) throw new NotRecorded(this.notRecorded(name, params));
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return new Response(stream).arrayBuffer();
  }

  /** The positions of an example whose predictions are explained. */
  private explained(name: "why" | "circuit", example: unknown): number[] {
    if (typeof example !== "number") return [];
    const held = new RegExp(`^${name}:\\{"example":${example},"position":(\\d+)\\}$`);
    return Object.keys(this.file.answers)
      .flatMap((key) => Number(held.exec(key)?.[1] ?? NaN))
      .filter(Number.isFinite);
  }

  private notRecorded(name: QuestionName, params: PlainParams): string {
    const model = this.file.title || "MODEL";
    const open = `open the explorer to ask about others: pathsum explore ${model}`;
    const explained = name === "why" || name === "circuit" ? this.explained(name, params["example"]) : [];
    if (explained.length > 0) {
      return `This report explains the predictions at ${explained.join(", ")} of this text; ${open}`;
    }
    if (["run", "attention", "scores", "why", "circuit"].includes(name)) {
      return `This report holds ${plural(this.texts, "example text")}; ${open}`;
    }
    return `This report does not hold this; ${open}`;
  }
}

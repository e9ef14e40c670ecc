import type { QuestionName } from "../../generated/answers";
import { CachedSource, type PlainParams, Refused, Unreachable } from "./source";

interface Reply {
  id: number;
  error?: string;
  kind?: string;
}

/** The part of anywidget's model that is used. */
export interface WidgetModel {
  get(name: string): unknown;
  /** Jupyter throws if the kernel is gone, marimo rejects. */
  send(content: unknown): void | Promise<void>;
  on(event: "msg:custom", callback: (content: Reply, buffers: DataView[]) => void): void;
  off(event: "msg:custom", callback: (content: Reply, buffers: DataView[]) => void): void;
}

interface Waiting {
  resolve(wire: Uint8Array): void;
  reject(error: Error): void;
}

const STOPPED = "The notebook's kernel has stopped; run the cell again.";

/** Asks the kernel of the notebook. */
export class NotebookSource extends CachedSource {
  readonly kind = "notebook";
  private next = 0;
  private readonly waiting = new Map<number, Waiting>();

  constructor(private readonly model: WidgetModel) {
    super();
    model.on("msg:custom", this.receive);
  }

  close(): void {
    this.model.off("msg:custom", this.receive);
  }

  protected fetchWire(name: QuestionName, params: PlainParams): Promise<Uint8Array> {
    const id = this.next++;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.send({ id, name, params: JSON.parse(JSON.stringify(params)) as unknown }).catch(() => {
        this.waiting.delete(id);
        reject(new Unreachable(STOPPED));
      });
    });
  }

  /** Sends at once; whatever goes wrong is a rejection. */
  private async send(question: unknown): Promise<void> {
    await this.model.send(question);
  }

  private readonly receive = (reply: Reply, buffers: DataView[]): void => {
    const asked = this.waiting.get(reply.id);
    if (!asked) return;
    this.waiting.delete(reply.id);
    const view = buffers[0];
    if (reply.error !== undefined || !view) {
      asked.reject(new Refused(reply.error ?? "The kernel sent no answer.", reply.kind));
      return;
    }
    asked.resolve(new Uint8Array(view.buffer as ArrayBuffer, view.byteOffset, view.byteLength));
  };
}

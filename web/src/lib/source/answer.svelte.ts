import type { Answers, Params, QuestionName } from "../../generated/answers";
import type { Progress, Source } from "./source";
/**
 * The answer of a question that depends on state: asks again when the question changes, keeps showing the
 * last answer meanwhile, and drops answers that come too late.
 *
 *     const run = explorer.answerOf("run", () => explorer.text);   // run.value, run.error, run.loading
 *
 * `params` returning null asks nothing. A question is withdrawn if it changes before its answer comes, or if
 * the component goes away. With a `pause` (ms) it is sent once it has not changed for so long. Call it while a
 * component is set up (it uses `$effect`).
 */
export class Answer<N extends QuestionName> {
  value = $state.raw<Answers[N] | null>(null);
  /** The parameters that `value` answers; they differ from the current ones while `loading`. */
  params = $state.raw<Params[N] | null>(null);
  error = $state.raw<Error | null>(null);
  loading = $state(false);
  /** How far a slow answer is. */
  progress = $state.raw<Progress | null>(null);
  /** Withdrawn by the reader, until it is asked `again`. */
  canceled = $state(false);
  cancel: () => void = () => undefined;
  again: () => void = () => undefined;
}

export function answerOf<N extends QuestionName>(
  source: Source,
  name: N,
  params: () => Params[N] | null,
  pause = 0,
): Answer<N> {
  const answer = new Answer<N>();
  let latest = 0;
  let attempt = $state(0);
  let stop: AbortController | null = null;
  answer.cancel = () => {
    if (!answer.loading) return;
    latest++;
    stop?.abort();
    answer.loading = false;
    answer.progress = null;
    answer.canceled = true;
  };
  answer.again = () => attempt++;
  $effect(() => {
    const asked = params();
    void attempt;
    const turn = ++latest;
    answer.canceled = false;
    answer.progress = null;
    if (asked === null) {
      answer.value = null;
      answer.params = null;
      answer.error = null;
      answer.loading = false;
      return;
    }
    answer.loading = true;
    const stale = (stop = new AbortController());
    const ask = (): void => {
      const report = (progress: Progress): void => {
        if (turn === latest) answer.progress = progress;
      };
      settle(source.ask(name, asked, stale.signal, report), asked, turn);
    };
    const timer = pause > 0 ? setTimeout(ask, pause) : null;
    if (timer === null) ask();
    return () => {
      if (timer !== null) clearTimeout(timer);
      // Not before the effect has run again: it may ask for the same, which is then not asked twice.
      queueMicrotask(() => stale.abort());
    };
  });
  function settle(asking: Promise<Answers[N]>, asked: Params[N], turn: number): void {
    asking.then(
      (value) => {
        if (turn !== latest) return;
        answer.value = value;
        answer.params = asked;
        answer.error = null;
        answer.loading = false;
        answer.progress = null;
      },
      (error: unknown) => {
        if (turn !== latest) return;
        answer.value = null;
        answer.params = asked;
        answer.error = error instanceof Error ? error : new Error(String(error));
        answer.loading = false;
        answer.progress = null;
      },
    );
  }
  return answer;
}

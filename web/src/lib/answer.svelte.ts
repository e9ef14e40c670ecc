import type { Answers, Params, QuestionName } from "../generated/answers";
import type { Source } from "./source";
/**
 * The answer of a question that depends on state: asks again when the question changes, keeps showing the
 * last answer meanwhile, and drops answers that come too late.
 *
 *     const run = answerOf(source, "run", () => textParams(url));   // run.value, run.error, run.loading
 *
 * `params` returning null asks nothing. With `pause` (ms) a question is sent once it has not
 * changed for so long, and withdrawn if it changes before its answer comes. Call it while a component is set up (it uses `$effect`).
 */
export class Answer<N extends QuestionName> {
  value = $state.raw<Answers[N] | null>(null);
  /** The parameters that `value` answers; they differ from the current ones while `loading`. */
  params = $state.raw<Params[N] | null>(null);
  error = $state.raw<Error | null>(null);
  loading = $state(false);
}

export function answerOf<N extends QuestionName>(
  source: Source,
  name: N,
  params: () => Params[N] | null,
  { pause = 0 }: { pause?: number } = {},
): Answer<N> {
  const answer = new Answer<N>();
  let latest = 0;
  $effect(() => {
    const asked = params();
    const turn = ++latest;
    if (asked === null) {
      answer.value = null;
      answer.params = null;
      answer.error = null;
      answer.loading = false;
      return;
    }
    answer.loading = true;
    if (pause <= 0) {
      settle(source.ask(name, asked), asked, turn);
      return;
    }
    const stale = new AbortController();
    const timer = setTimeout(() => settle(source.ask(name, asked, stale.signal), asked, turn), pause);
    return () => {
      clearTimeout(timer);
      stale.abort();
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
      },
      (error: unknown) => {
        if (turn !== latest) return;
        answer.value = null;
        answer.params = asked;
        answer.error = error instanceof Error ? error : new Error(String(error));
        answer.loading = false;
      },
    );
  }
  return answer;
}

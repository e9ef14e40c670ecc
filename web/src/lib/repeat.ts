import type { ModelInfo, Vocabulary } from "../generated/answers";

/** Tokens that a random text may hold: those seen in training if counts are known, never the start token. */
export function drawable(info: ModelInfo, vocabulary: Vocabulary | null): number[] {
  const hidden = new Set(vocabulary?.undecodable ?? []);
  if (info.start_token !== null) hidden.add(info.start_token);
  const counts = vocabulary?.counts?.data;
  const all = Array.from({ length: info.d_vocab }, (_, id) => id).filter((id) => !hidden.has(id));
  const seen = counts ? all.filter((id) => (counts[id] ?? 0) > 0) : all;
  return seen.length > 0 ? seen : all;
}

/** The seed experiment: start token, n random tokens, the same n again. */
export function randomRepeat(
  info: ModelInfo,
  vocabulary: Vocabulary | null,
  n: number,
  random: () => number = Math.random,
): number[] {
  const tokens = drawable(info, vocabulary);
  const start = info.start_token === null ? [] : [info.start_token];
  const room = Math.max(1, Math.floor((info.n_ctx - start.length) / 2));
  const length = Math.min(Math.max(1, Math.floor(n)), room);
  const half = Array.from({ length }, () => tokens[Math.floor(random() * tokens.length)] as number);
  return [...start, ...half, ...half];
}

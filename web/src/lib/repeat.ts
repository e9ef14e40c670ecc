import type { ModelInfo } from "../generated/answers";

/** The seed experiment: the start token, n random tokens out of the pool, and the same n again. */
export function randomRepeat(
  info: ModelInfo,
  pool: ArrayLike<number>,
  n: number,
  random: () => number = Math.random,
): number[] {
  const start = info.start_token === null ? [] : [info.start_token];
  const room = Math.max(1, Math.floor((info.n_ctx - start.length) / 2));
  const length = Math.min(Math.max(1, Math.floor(n)), room);
  const half = Array.from({ length }, () => pool[Math.floor(random() * pool.length)] as number);
  return [...start, ...half, ...half];
}

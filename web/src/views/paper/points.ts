/** Points of a scatter: their groups, and the one that is pointed at. */

export function groupsOf(points: readonly { readonly group: string }[]): string[] {
  return [...new Set(points.map((point) => point.group))];
}

/** The point nearest to a place on the screen, if one is within `reach` pixels. */
export function nearest<T>(
  points: readonly T[],
  place: (point: T) => readonly [number, number],
  at: { readonly x: number; readonly y: number },
  reach: number,
): T | null {
  let [best, least]: [T | null, number] = [null, reach * reach];
  for (const point of points) {
    const [x, y] = place(point);
    const distance = (x - at.x) ** 2 + (y - at.y) ** 2;
    if (distance <= least) [best, least] = [point, distance];
  }
  return best;
}

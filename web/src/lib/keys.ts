/** Parameters of a question: flat, without those that have the server's default. */
export type PlainParams = Record<string, string | number | boolean | undefined>;

/**
 * The canonical name of a question: equal questions have equal keys.
 *
 * Python makes the same string with `json.dumps(params, sort_keys=True, separators=(",", ":"),
 * ensure_ascii=False)`, so that a report can be written there and read here.
 */
export function questionKey(name: string, params: PlainParams = {}): string {
  const present = Object.entries(params).filter(([, value]) => value !== undefined);
  // Python sorts by code point, `<` by UTF-16 unit; parameter names are ASCII, where both agree.
  present.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
  return `${name}:${JSON.stringify(Object.fromEntries(present))}`;
}

/** What paths through so many heads are called. */
export function orderName(order: number): string {
  if (order === 0) return "direct";
  if (order === 1) return "one head";
  return `${["", "", "two", "three", "four", "five", "six"][order] ?? order} heads`;
}

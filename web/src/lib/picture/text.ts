/** Where the words of a page stand, line by line. */

export interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
}

export interface Line {
  text: string;
  box: Box;
}

/** Letters with their places, as lines: letters of about the same height belong to one. */
export function linesOf(letters: readonly { letter: string; box: Box }[]): Line[] {
  const lines: Line[] = [];
  let current: Line | null = null;
  for (const { letter, box } of letters) {
    if (current && Math.abs(box.top - current.box.top) < box.height / 2) {
      current.text += letter;
      current.box.width = Math.max(current.box.width, box.left + box.width - current.box.left);
    } else if (letter.trim() !== "") {
      current = { text: letter, box: { left: box.left, top: box.top, width: box.width, height: box.height } };
      lines.push(current);
    }
  }
  return lines;
}

/** The lines of a text node on the screen. */
export function linesOfNode(node: Text): Line[] {
  const text = node.data;
  // Space at the ends draws nothing, and the page may have swallowed it.
  const from = text.length - text.trimStart().length;
  const to = text.trimEnd().length;
  if (from >= to) return [];
  const range = document.createRange();
  range.setStart(node, from);
  range.setEnd(node, to);
  const boxes = [...range.getClientRects()].filter((box) => box.width > 0);
  if (boxes.length === 0) return [];
  if (boxes.length === 1) {
    const { left, top, width, height } = boxes[0] as DOMRect;
    const keeps = getComputedStyle(node.parentElement as Element).whiteSpaceCollapse !== "collapse";
    const words = text.slice(from, to);
    return [{ text: keeps ? words : words.replace(/\s+/g, " "), box: { left, top, width, height } }];
  }
  const letters: { letter: string; box: Box }[] = [];
  let at = from;
  for (const letter of text.slice(from, to)) {
    range.setStart(node, at);
    range.setEnd(node, at + letter.length);
    at += letter.length;
    const box = [...range.getClientRects()].find((each) => each.width > 0);
    if (box) letters.push({ letter: letter === "\n" ? " " : letter, box });
  }
  return linesOf(letters);
}

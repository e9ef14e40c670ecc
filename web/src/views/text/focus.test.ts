import { describe, expect, it } from "vitest";
import { memoryPlace } from "../../lib/page/state";
import { UrlState } from "../../lib/page/state.svelte";
import { Focus } from "./focus.svelte";

function start(hash = "") {
  const place = memoryPlace(hash);
  const url = new UrlState(place, ["text"]);
  return { place, url, focus: new Focus(url, () => ["L0H0", "L1H4"], () => 10) };
}

describe("the two locks", () => {
  it("hover is soft and not in the URL; a click locks, the next frees", () => {
    const { focus, url } = start();
    focus.hoverToken(3);
    expect([focus.token, focus.lockedToken, url.get("position")]).toEqual([3, null, undefined]);
    focus.clickToken(3);
    focus.hoverToken(5);
    expect([focus.token, focus.lockedToken]).toEqual([3, 3]);
    focus.clickToken(3);
    expect(focus.lockedToken).toBe(null);
  });
  it("are independent", () => {
    const { focus } = start();
    focus.clickHead("L1H4");
    focus.clickToken(2);
    focus.clickHead("L1H4");
    expect([focus.lockedHead, focus.lockedToken]).toEqual([null, 2]);
  });
  it("a click elsewhere moves the lock; back undoes it; Esc frees all", () => {
    const { focus, place } = start();
    focus.clickToken(2);
    focus.clickToken(4);
    expect(focus.lockedToken).toBe(4);
    place.back();
    expect(focus.lockedToken).toBe(2);
    focus.clickHead("L0H0");
    focus.clickCell({ dest: 4, src: 1 });
    focus.free();
    expect([focus.head, focus.token, focus.cell]).toEqual([null, null, null]);
    place.back();
    expect([focus.head, focus.token, focus.cell]).toEqual(["L0H0", 2, { dest: 4, src: 1 }]);
  });
  it("a token takes over from a cell: pointed at from a soft one, clicked from a kept one of another destination", () => {
    const { focus } = start();
    focus.hoverCell({ dest: 4, src: 1 });
    focus.hoverToken(6);
    expect([focus.token, focus.cell]).toEqual([6, null]);
    focus.clickCell({ dest: 4, src: 1 });
    focus.hoverToken(4);
    focus.clickToken(4);
    expect(focus.cell).toEqual({ dest: 4, src: 1 });
    focus.clickToken(6);
    expect([focus.token, focus.cell]).toEqual([6, null]);
  });
  it("takes no stale link at its word", () => {
    const { focus } = start("#/text?h=L9H9&t=99&d=3.7");
    expect([focus.lockedHead, focus.lockedToken, focus.lockedCell]).toEqual([null, null, null]);
  });
  it("keys move a lock along, within the text", () => {
    const { focus } = start();
    focus.clickToken(8);
    focus.moveToken(12);
    expect(focus.lockedToken).toBe(9);
  });
});

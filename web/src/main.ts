import "./app.css";
import "./page.css";
import { mount } from "svelte";
import Root from "./Root.svelte";
import { fetchWithToken, LiveSource } from "./lib/source/live";
import { ReportSource } from "./lib/source/report";
import { windowPlace } from "./lib/page/state";
import { render } from "./widget";

// The page of the server and of a report has a place for it; a notebook that loads this module has none.
const target = document.getElementById("pathsum-page");
if (target) {
  // The page keeps the token; a link that is copied from the address bar must not hold it.
  const token = new URLSearchParams(location.search).get("token");
  if (token !== null) history.replaceState(null, "", location.pathname + location.hash);
  const report = ReportSource.fromPage(document);
  if (report && location.hash === "") history.replaceState(null, "", report.start);
  const source = report ?? new LiveSource("api/", fetchWithToken(token));
  mount(Root, { target, props: { source, place: windowPlace, wholePage: true } });
}

/** What a fragment asks of it. */
export { embed } from "./widget";

/** What anywidget asks of a module. */
export default { render };

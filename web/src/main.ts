import "./app.css";
import "./page.css";
import { mount } from "svelte";
import Root from "./Root.svelte";
import { LiveSource } from "./lib/source/live";
import { ReportSource } from "./lib/source/report";
import { windowPlace } from "./lib/page/state";
import { render } from "./widget";

// The page of the server and of a report has a place for it; a notebook that loads this module has none.
const target = document.getElementById("pathsum-page");
if (target) {
  // The cookie carries the token from here on; a link that is copied from the address bar must not.
  if (new URLSearchParams(location.search).has("token")) history.replaceState(null, "", location.pathname + location.hash);
  const report = ReportSource.fromPage(document);
  if (report && location.hash === "") history.replaceState(null, "", report.start);
  const source = report ?? new LiveSource();
  mount(Root, { target, props: { source, place: windowPlace, wholePage: true } });
}

/** What a fragment asks of it. */
export { embed } from "./widget";

/** What anywidget asks of a module. */
export default { render };

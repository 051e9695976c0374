// What is wrong, and where the runbook says what to do.

import { ApiError, Poll, allRows, json } from "./api.js";
import { h, plainTable, show } from "./dom.js";
import { count, v1 } from "./format.js";
import { history } from "./history.js";
import { RUNBOOK, problems } from "./problems.js";
import { damage, streamLink } from "./streams.js";

const POLL_MS = 5_000;
const STREAMS_MAX = 20; // whose gaps and damage are shown here

/** Shows all that is wrong, as far as this node knows. */
export function healthView({ failed, worked, ways }) {
  const live = h("div", {}, h("p", { class: "quiet" }, "Reading…"));
  const details = h("div");
  const poll = new Poll(async (signal) => {
    const [health, rows] = await Promise.all([json("healthz", signal), rowsSeen(signal)]);
    const found = problems(health, history.latest, rows);
    show(live, problemsShown(health, found));
    show(details, await damageShown(found, signal));
    worked();
  }, POLL_MS, failed).start();
  const again = () => poll.again();
  document.addEventListener("metrics-read", again, { once: true });
  ways([["jetstream", "cluster", "info"]], ["healthz", v1("streams"), "metrics"]);
  return {
    title: "Health",
    element: h("div", {}, live, details),
    poll,
    close() {
      poll.stop();
      document.removeEventListener("metrics-read", again);
    },
  };
}

/** Returns the list of streams, or nothing where a ticket may not see it. */
async function rowsSeen(signal) {
  return allRows(v1("streams"), "streams", {}, signal).catch((error) => {
    if (error instanceof ApiError && error.status === 403) return [];
    throw error;
  });
}

function problemsShown(health, found) {
  const bad = found.filter(({ isBad }) => isBad).length;
  return [
    h("p", {}, h("span", { class: `state ${health.ready ? "s0" : "s2"}` },
      health.ready ? "✓ The node is ready." : "✗ The node is not ready."),
    ` ${count(bad)} ${bad === 1 ? "problem" : "problems"}, ${count(found.length - bad)} to know of.`),
    plainTable("Problems", ["", "Stream", "What", "What to do: docs/runbook.md"],
      found.map(({ isBad, stream, text, section }) => [
        h("span", { class: `state ${isBad ? "s2" : "s1"}` }, isBad ? "✗ problem" : "! to know"),
        stream === null ? "the node" : h("a", { href: streamLink(stream) }, stream),
        text, `${section} ${RUNBOOK[section]}`]),
      "Nothing is wrong, as far as this node knows. Each node knows its own: see their consoles, under Cluster."),
  ];
}

/** Returns the gaps and the damage of the first streams that have any. */
async function damageShown(found, signal) {
  const sections = new Set(["RB-05", "RB-06", "RB-10"]);
  const having = found.filter(({ stream, section }) => stream !== null && sections.has(section));
  const names = new Set(having.map(({ stream }) => stream));
  const shown = [];
  for (const name of [...names].slice(0, STREAMS_MAX)) {
    shown.push(h("h2", {}, h("a", { href: streamLink(name) }, name)), damage(await json(v1("streams", name), signal)));
  }
  if (names.size > STREAMS_MAX) shown.push(h("p", {}, `And ${count(names.size - STREAMS_MAX)} more streams.`));
  return shown;
}

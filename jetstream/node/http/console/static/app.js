// The page: which view is shown, the token, the state of the node, keys.

import { Poll, json, overNetwork, request, setToken, token } from "./api.js";
import { button, facts, field, h, show } from "./dom.js";
import { clock } from "./format.js";
import { history } from "./history.js";
import { clusterView } from "./cluster.js";
import { groupView, groupsView } from "./groups.js";
import { healthView } from "./health.js";
import { recordsView } from "./records.js";
import { streamView, streamsView } from "./streams.js";
import { showWays } from "./ways.js";

const VIEWS = [
  ["streams", "Streams"], ["records", "Records"], ["groups", "Groups"], ["cluster", "Cluster"], ["health", "Health"],
];
const THEMES = ["auto", "light", "dark"];
const KEYS = [
  ["1 to 5", "a view"], ["/", "to the search, or the first field"], ["↑ ↓ PgUp PgDn Home End", "through a list"],
  ["Enter", "open the marked row"], ["r", "read again now"], ["Esc", "close"], ["?", "these keys"],
];

const main = document.getElementById("main");
const notice = document.getElementById("notice");
const badge = h("a", { href: "#/health", class: "badge" }, "…");
let view = null;
let route = { name: "", words: [], values: new URLSearchParams() };

/** `#/records/orders?from=-10` → {name: "records", words: ["orders"], values}. */
function routed() {
  const [path, values] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...words] = path.split("/").map(decoded);
  return { name: name || "streams", words, values: new URLSearchParams(values ?? "") };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function made({ name, words }) {
  const word = words.join("/");
  switch (name) {
    case "streams": return word ? streamView : streamsView;
    case "records": return recordsView;
    case "groups": return word ? groupView : groupsView;
    case "cluster": return clusterView;
    case "health": return healthView;
    default: return nothing;
  }
}

function nothing() {
  return { title: "There is no such view", element: h("p", {}, "Take one of those above."), close() {} };
}

function navigated() {
  const next = routed();
  const isSame = view !== null && next.name === route.name && next.words.join("/") === route.words.join("/");
  route = next;
  if (isSame && view.changed) {
    view.changed(route.values);
    return;
  }
  view?.close();
  worked();
  const context = {
    word: route.words.join("/"),
    values: route.values,
    failed,
    worked,
    ways: (commands, paths) => showWays(document.getElementById("ways"), commands, paths),
  };
  view = made(route)(context);
  document.title = `${view.title} · Jetstream`;
  main.replaceChildren(h("h1", {}, view.title), view.element);
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === route.name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

/** Says why what is shown is old; the view goes on trying. */
function failed(error) {
  const text = error.code ? `${error.message} (${error.code})` : error.message;
  const since = notice.dataset.since ?? clock(Date.now());
  notice.dataset.since = since;
  const known = `${text} What is shown is from before ${since}.`;
  if (notice.textContent !== known) notice.textContent = known;
}

function worked() {
  delete notice.dataset.since;
  if (notice.textContent) notice.textContent = "";
}

function showHealth({ ready, problems_total: problems }) {
  badge.className = `badge ${ready ? "good" : "bad"}`;
  badge.textContent = ready ? "✓ ready" : `✗ ${problems} problem${problems === 1 ? "" : "s"}`;
}

function askToken(reason) {
  if (document.querySelector("dialog[open]")) return;
  const input = h("input", { type: "password", autocomplete: "off", spellcheck: "false", pattern: "\\s*[!-~]*\\s*",
    title: "visible characters of ASCII, as a header carries them" });
  const dialog = h("dialog", { "aria-label": "Token", onclose: () => dialog.remove() },
    h("form", { onsubmit: (event) => {
      event.preventDefault();
      setToken(input.value.trim());
      dialog.close();
      start();
    } },
    h("h2", {}, "Token or ticket"),
    h("p", {}, reason),
    h("p", { class: "quiet" }, "Kept in this tab until it is closed, and sent to this node alone. A ticket shows "
      + "its own stream's records; everything else needs the token of the port."),
    field("Token", input),
    h("p", {}, h("button", { type: "submit" }, "Use it"), " ", button("Cancel", () => dialog.close()))));
  document.body.append(dialog);
  dialog.showModal();
}

function showKeys() {
  if (document.querySelector("dialog[open]")) return;
  const dialog = h("dialog", { "aria-label": "Keys", onclose: () => dialog.remove() },
    h("h2", {}, "Keys"),
    facts(KEYS.map(([key, what]) => [h("kbd", {}, key), what])),
    button("Close", () => dialog.close()));
  document.body.append(dialog);
  dialog.showModal();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("jetstream.theme", theme);
}

function pressed(event) {
  const isTyping = event.target.closest("input, select, textarea, dialog");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const number = Number(event.key);
  if (number >= 1 && number <= VIEWS.length) location.hash = `#/${VIEWS[number - 1][0]}`;
  else if (event.key === "/") {
    event.preventDefault();
    (main.querySelector("input[type=search]") ?? main.querySelector("input"))?.focus();
  } else if (event.key === "r") {
    view.poll?.again();
    for (const poll of polls) poll.again();
  } else if (event.key === "?") showKeys();
}

const polls = [
  new Poll(async (signal) => showHealth(await json("healthz", signal)), 5_000, () => {
    badge.className = "badge bad";
    badge.textContent = "✗ no answer";
  }),
  new Poll(async (signal) => {
    const response = await request("metrics", { accept: "text/plain", signal });
    history.add(await overNetwork(() => response.text()));
    document.dispatchEvent(new CustomEvent("metrics-read"));
  }, 10_000, () => {}), // the view says what it cannot read, and so does the badge
];

function start() {
  for (const poll of polls) poll.again();
  view?.close();
  view = null;
  navigated();
}

const theme = h("select", { "aria-label": "Theme", onchange: () => setTheme(theme.value) },
  THEMES.map((name) => h("option", { value: name }, name)));
theme.value = localStorage.getItem("jetstream.theme") ?? "auto";
setTheme(theme.value);
show(document.querySelector("nav"),
  VIEWS.map(([name, title]) => h("a", { href: `#/${name}`, "data-view": name }, title)));
document.getElementById("tools").append(badge, theme,
  button("Token", () => askToken(token() ? "This tab has a token. Another one, or none:" : "This tab has no token.")),
  button("?", showKeys, { "aria-label": "Keys" }));
window.addEventListener("hashchange", navigated);
document.addEventListener("keydown", pressed);
document.addEventListener("token-wanted", (event) => askToken(event.detail));
navigated();
for (const poll of polls) poll.start();

// The same from a terminal: what each view shows, as a command and as a request.

import { token } from "./api.js";
import { copyButton, h, show } from "./dom.js";
import { quoted } from "./format.js";

/** Shows the commands and paths (as `v1/streams`) in the bar at the foot of a view. */
export function showWays(element, commands, paths) {
  show(element,
    h("h2", {}, "The same from a terminal"),
    commands.map((words) => way(words.map(quoted).join(" "))),
    paths.map((path) => way(curl(path))));
  for (const line of element.querySelectorAll(".way")) {
    if (line.querySelector("button")) continue;
    const text = line.querySelector("code").textContent;
    line.append(copyButton(() => text, "Copy", text.startsWith("curl") ? "Copy the request" : "Copy the command"));
  }
}

function way(text) {
  return h("div", { class: "way" }, h("code", {}, text));
}

/** Returns the request as curl makes it; the token is named, never shown. */
export function curl(path) {
  const address = quoted(new URL(path, location.origin + location.pathname).href);
  return `curl -s ${token() ? '-H "Authorization: Bearer $TOKEN" ' : ""}${address}`;
}

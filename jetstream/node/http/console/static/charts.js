// Lines over the last hour.

import { h, svg } from "./dom.js";
import { clock } from "./format.js";

const WIDTH = 320;
const HEIGHT = 80;
const HOUR_MS = 3_600_000;

/** Returns a figure of [time, number] pairs; `text(number)` writes a number with its unit. */
export function chart(title, points, text) {
  const caption = h("figcaption", {}, h("span", {}, title));
  if (points.length === 0) {
    return h("figure", { class: "chart" }, caption, h("p", { class: "quiet" }, "nothing read yet"));
  }
  const numbers = points.map(([, number]) => number);
  const last = points.at(-1);
  const top = Math.max(...numbers, Number.MIN_VALUE);
  const begin = Math.max(last[0] - HOUR_MS, Math.min(points[0][0], last[0] - 60_000));
  const x = (at) => (((at - begin) / (last[0] - begin)) * WIDTH).toFixed(1);
  const y = (number) => (HEIGHT - (number / top) * (HEIGHT - 4) - 2).toFixed(1);
  const line = points.map(([at, number]) => `${x(at)},${y(number)}`).join(" ");
  const least = Math.min(...numbers);
  const words = `${title}: ${text(last[1])} now, from ${text(least)} to ${text(top)} since ${clock(begin)}`;
  caption.append(h("strong", {}, text(last[1])));
  return h("figure", { class: "chart" }, caption,
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": words, preserveAspectRatio: "none" },
      svg("title", {}, words),
      svg("polygon", { points: `${x(points[0][0])},${HEIGHT} ${line} ${WIDTH},${HEIGHT}` }),
      svg("polyline", { points: line, "vector-effect": "non-scaling-stroke" })),
    h("div", { class: "axis" },
      [clock(begin), `most ${text(top)}`, clock(last[0])].map((words) => h("span", {}, words))));
}

/** Returns charts side by side, and from when they are. */
export function charts(...figures) {
  return h("section", { "aria-label": "The last hour" }, h("h2", {}, "The last hour"),
    h("p", { class: "quiet" }, "As far as this page has been open and in sight; it keeps the numbers itself."),
    h("div", { class: "charts" }, figures));
}

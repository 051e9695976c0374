// Elements, made of texts: nothing here, or anywhere else in the console, takes HTML.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Returns an element. Attributes whose value is null or false are left out, functions become listeners
 * (`onclick`), and children are elements or texts; those that are null are left out.
 */
export function h(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Returns an element of SVG, as `h`. */
export function svg(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** Shows these children, and nothing else; where they are what is there already, that stays. */
export function show(element, ...children) {
  const next = h("div", {}, children);
  const isSame = element.childNodes.length === next.childNodes.length
    && [...element.childNodes].every((node, place) => node.isEqualNode(next.childNodes[place]));
  if (isSame) return;
  const focused = element.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  element.replaceChildren(...next.childNodes);
  if (focused === null) return;
  [...element.querySelectorAll("a, button, [tabindex]")].find((made) => nameOf(made) === focused)?.focus();
}

function nameOf(element) {
  return element.getAttribute("href") ?? element.getAttribute("aria-label") ?? element.textContent;
}

/** Returns a button; `attributes` as `h`. */
export function button(text, onclick, attributes = {}) {
  return h("button", { type: "button", onclick, ...attributes }, text);
}

/** Returns a button that copies what `text()` returns. */
export function copyButton(text, label = "Copy", name = null) {
  const made = button(label, async () => {
    made.textContent = (await copied(text())) ? "Copied" : "Not copied";
    setTimeout(() => { made.textContent = label; }, 1500);
  }, { class: "small", "aria-label": name });
  return made;
}

async function copied(text) {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(text).then(() => true, () => false);
  }
  // The clipboard's API is for https and localhost alone.
  const area = h("textarea", { class: "off-screen", "aria-label": "to copy" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

/** Returns a field with its label. */
export function field(label, input) {
  return h("label", { class: "field" }, h("span", {}, label), input);
}

/** Returns a list of terms and what they are; rows without a value are left out. */
export function facts(rows) {
  const known = rows.filter(([, value]) => value !== null && value !== undefined);
  return h("dl", { class: "facts" }, known.map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value))));
}

/** Returns a table of some rows, each a list of texts or elements. */
export function plainTable(caption, heads, rows, empty) {
  if (rows.length === 0) return h("p", { class: "quiet" }, empty);
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h("table", { class: "plain" },
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell)))))));
}

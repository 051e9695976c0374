// A table of any number of rows, of which only those that can be seen are in the page.

import { h } from "./dom.js";

const ROW = 32; // pixels, as in style.css
const MARGIN = 10; // rows above and below what can be seen

export class VirtualTable {
  /**
   * columns: {head, cell(row) => text or element, width (CSS), class}; key(row) names a row;
   * open(row) is what Enter and a click do, or null.
   */
  constructor(label, columns, { key, open = null }) {
    this.columns = columns;
    this.key = key;
    this.open = open;
    this.rows = [];
    this.active = 0;
    this.drawn = "";
    this.body = h("tbody");
    this.table = h("table", { class: "virtual" },
      h("colgroup", {}, columns.map((column) => this.#column(column))),
      h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col", class: column.class }, column.head)))),
      this.body);
    this.element = h("div", { class: "scroll list", tabindex: 0, role: "region", "aria-label": label,
      onscroll: () => this.#draw(), onkeydown: (event) => this.#pressed(event) }, this.table);
    new ResizeObserver(() => this.#draw()).observe(this.element);
  }

  #column(column) {
    const made = h("col", { class: column.class });
    if (column.width) made.style.width = column.width;
    return made;
  }

  /** Shows these rows, in this order; `follow` keeps the end in sight if it was. */
  set(rows, { follow = false } = {}) {
    const box = this.element;
    const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 2 * ROW;
    this.rows = rows;
    this.active = Math.min(this.active, Math.max(0, rows.length - 1));
    this.table.setAttribute("aria-rowcount", rows.length + 1);
    this.#draw(true);
    if (follow && atEnd) {
      box.scrollTop = box.scrollHeight;
      this.#draw();
    }
  }

  #draw(isNew = false) {
    const box = this.element;
    const first = Math.max(0, Math.floor(box.scrollTop / ROW) - MARGIN);
    const last = Math.min(this.rows.length, Math.ceil((box.scrollTop + box.clientHeight) / ROW) + MARGIN);
    const drawn = `${first} ${last} ${this.active}`;
    if (!isNew && drawn === this.drawn) return;
    this.drawn = drawn;
    const focused = this.body.contains(document.activeElement) ? this.#keyOf(document.activeElement) : null;
    const rows = [];
    for (let place = first; place < last; place += 1) rows.push(this.#row(place));
    this.body.replaceChildren(this.#space(first), ...rows, this.#space(this.rows.length - last));
    if (focused !== null) {
      const row = rows.find((made) => made.dataset.key === focused);
      (row?.querySelector("a, button") ?? box).focus({ preventScroll: true });
    }
  }

  #keyOf(element) {
    return element.closest("tr")?.dataset.key ?? null;
  }

  #space(rows) {
    const cell = h("td"); // one: a wider one would make columns of those that are hidden
    cell.style.height = `${rows * ROW}px`;
    return h("tr", { "aria-hidden": "true", class: "space" }, cell);
  }

  #row(place) {
    const row = this.rows[place];
    const cells = this.columns.map((column) => h("td", { class: column.class }, column.cell(row)));
    const made = h("tr", { "aria-rowindex": place + 2, class: place === this.active ? "active" : null }, cells);
    made.dataset.key = this.key(row);
    if (this.open) {
      made.addEventListener("click", (event) => {
        this.active = place;
        if (!event.target.closest("a")) this.open(row);
      });
    }
    return made;
  }

  #pressed(event) {
    const page = Math.max(1, Math.floor(this.element.clientHeight / ROW) - 2);
    const steps = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page,
      Home: -Infinity, End: Infinity };
    if (event.key === "Enter" && event.target === this.element && this.rows.length && this.open) {
      this.open(this.rows[this.active]);
    } else if (event.key in steps && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      this.move(steps[event.key]);
    }
  }

  /** Makes the row so many places further down the active one, and brings it into sight. */
  move(step) {
    this.active = Math.max(0, Math.min(this.rows.length - 1, this.active + step));
    const box = this.element;
    const top = this.active * ROW;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + 3 * ROW > box.scrollTop + box.clientHeight) box.scrollTop = top + 3 * ROW - box.clientHeight;
    this.#draw();
  }
}

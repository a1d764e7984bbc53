// What all parts of the page use. Elements are made and changed by hand, and text goes in
// as text only: what servers and jobs say is not to be trusted.

export const byId = (id) => document.getElementById(id);

/** An element with attributes and children; a child that is a string becomes text. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Text that has not changed is not written: nothing is laid out again, and no screen reader stirs. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function mark(element, name, value) {
  if (element.dataset[name] !== value) element.dataset[name] = value;
}

export function show(element, shown) {
  if (element.hidden === shown) element.hidden = !shown;
}

/** What the service says where it does not do what was asked. */
export async function refusal(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `it answered with status ${answer.status}`;
  }
}

/** The children of one element, one for each record, kept over updates so that focus and selection stay. */
export class Rows {
  #parent;
  #build;
  #rows = new Map();

  /** `build(id)` returns {element, update(record)}. */
  constructor(parent, build) {
    this.#parent = parent;
    this.#build = build;
  }

  update(records, idOf) {
    const ids = new Set(records.map(idOf));
    for (const [id, row] of this.#rows) {
      if (!ids.has(id)) {
        row.element.remove();
        this.#rows.delete(id);
      }
    }
    let next = this.#parent.firstElementChild;
    for (const record of records) {
      const row = this.#row(idOf(record));
      row.update(record);
      if (row.element === next) next = next.nextElementSibling;
      else moved(row.element, () => this.#parent.insertBefore(row.element, next));
    }
  }

  #row(id) {
    let row = this.#rows.get(id);
    if (row === undefined) {
      row = this.#build(id);
      this.#rows.set(id, row);
    }
    return row;
  }
}

/** Moving an element takes the focus from what is in it: give it back. */
function moved(element, move) {
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  move();
  focused?.focus({ preventScroll: true });
}

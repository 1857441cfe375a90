// Elements and texts. Data from the broker is only inserted as text, never as markup.

const LONG_TEXT = 24;
const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Create an HTML element with attributes, listeners (`onclick`) and children. Other values become text. */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** Create an SVG element. */
export function svg(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

/** Replace the children. */
export function replace(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

/** Replace the children, but keep opened boxes and the focus. */
export function renew(element, ...children) {
  const active = element.contains(document.activeElement) ? placeOf(document.activeElement) : null;
  const open = [...element.querySelectorAll("details[open] > summary")].map(placeOf);
  replace(element, ...children);
  for (const summary of element.querySelectorAll("details > summary")) summary.parentElement.open = open.includes(placeOf(summary));
  if (active) [...element.querySelectorAll("button, a, summary")].find((each) => placeOf(each) === active)?.focus();
}

/** Identify an element across updates: by its text, its row and `data-keep`; a summary by `data-keep` only. */
function placeOf(element) {
  const row = element.closest("tr");
  const kept = element.closest("[data-keep]");
  const text = kept && element.localName === "summary" ? "" : element.textContent;
  return [row && row.firstElementChild.textContent, kept && kept.dataset.keep, text].join("\n");
}

/** Show a modal dialog. It is removed with its page, with Escape, or by a button that closes it. */
export function openDialog(title, ...children) {
  const dialog = h("dialog", { "aria-label": title, onclose: () => dialog.remove() }, h("h2", {}, title), children);
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

export function closeDialogs() {
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
}

/** Announce a text to screen readers. */
export function say(text) {
  document.getElementById("said").textContent = text;
}

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];
const UNITS = [[86400000, "d"], [3600000, "h"], [60000, "min"], [1000, "s"]];

export function number(value) {
  if (value === undefined || value === null || Number.isNaN(value)) return "–";
  if (typeof value === "string") return value;
  return value.toLocaleString("en", { maximumFractionDigits: value !== 0 && Math.abs(value) < 100 ? 1 : 0 });
}

export function bytes(value) {
  if (value === undefined || value === null || value < 0) return "–";
  let index = 0;
  while (value >= 1024 && index < SIZES.length - 1) { value /= 1024; index += 1; }
  return `${value.toLocaleString("en", { maximumFractionDigits: index && value < 100 ? 1 : 0 })} ${SIZES[index]}`;
}

/** Format a duration in its two largest units. */
export function duration(milliseconds) {
  if (milliseconds === undefined || milliseconds === null) return "–";
  if (milliseconds < 1000) return `${Math.max(0, Math.round(milliseconds))} ms`;
  const parts = [];
  for (const [size, unit] of UNITS) {
    const count = Math.floor(milliseconds / size);
    if (count) parts.push(`${count} ${unit}`);
    milliseconds -= count * size;
    if (parts.length === 2) break;
  }
  return parts.join(" ");
}

/** Format a time, with the date if it is not today. */
export function time(milliseconds) {
  if (!milliseconds) return "–";
  const date = new Date(milliseconds);
  const day = date.toDateString() === new Date().toDateString() ? "" : `${date.toLocaleDateString("en-CA")} `;
  return day + date.toLocaleTimeString("en-GB");
}

/** Format the age of a Unix time in milliseconds. */
export function ago(milliseconds) {
  return milliseconds ? `${duration(Date.now() - milliseconds)} ago` : "never";
}

export function plural(count, one, many) {
  return `${number(count)} ${count === 1 ? one : many || `${one}s`}`;
}

/** A table with a caption for screen readers. `columns`: {name, title?, number?, cell(row), sort?}; on a phone each row is a card. */
export function table(caption, columns, rows, options = {}) {
  const head = columns.map((column) => {
    const sorted = options.sort && options.sort.by === column.sort ? (options.sort.descending ? "descending" : "ascending") : null;
    const title = column.sort
      ? h("button", { type: "button", class: "sort", onclick: () => options.onsort(column.sort) }, column.name)
      : column.name;
    return h("th", { scope: "col", class: column.number ? "number" : null, "data-name": column.name, "aria-sort": sorted, title: column.title }, title);
  });
  const body = rows.map((row) => h("tr", { class: options.mark ? options.mark(row) : null }, columns.map((column, index) => {
    const cell = h(index ? "td" : "th", { class: column.number ? "number" : null, scope: index ? null : "row", "data-name": column.name }, column.cell(row));
    if (cell.textContent.length > LONG_TEXT) cell.classList.add("wide");
    return cell;
  })));
  if (!rows.length) body.push(h("tr", { class: "none" }, h("td", { colspan: columns.length }, options.none || "None.")));
  return h("div", { class: "scroll" }, h("table", { class: options.class }, h("caption", { class: "unseen" }, caption),
    h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

/** A list of names and values. */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value, title]) =>
    h("div", { title }, h("dt", {}, name), h("dd", {}, value))));
}

export function section(title, ...children) {
  const id = `s-${title.replace(/\W+/g, "-").toLowerCase()}`;
  return h("section", { "aria-labelledby": id }, h("h2", { id }, title), children);
}

export function field(label, input) {
  return h("label", { class: "field" }, h("span", {}, label), input);
}

export function badge(text, kind) {
  return h("span", { class: `badge ${kind || ""}` }, text);
}

/** Show why data is missing. */
export function trouble(error) {
  return h("p", { class: "trouble", role: "alert" }, error.reason || error.message || String(error));
}

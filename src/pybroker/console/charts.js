// Line charts of the last minutes, as SVG. The newest value of each line is also shown as text, for accessibility.

import { bytes, h, replace, svg } from "/console/dom.js";

const WIDTH = 600;
const HEIGHT = 120;
const WINDOW_MS = 5 * 60 * 1000;
const GAP_MS = 5000;
const LIVE = "Live figures of the last seconds. Viewing them does not load the topic.";

/** A chart of fields of live points. `lines`: {field, name}; `shown` formats a value. */
export function chart(title, lines, shown) {
  const paths = lines.map((_, index) => svg("path", { class: `line line-${index + 1}`, fill: "none", "vector-effect": "non-scaling-stroke" }));
  const top = h("span", { class: "chart-top" });
  const from = h("span", {});
  const values = lines.map(() => h("strong", {}, "–"));
  const legend = h("figcaption", {}, h("span", { class: "chart-title" }, title), lines.map((line, index) =>
    h("span", { class: "key" }, h("i", { class: `swatch swatch-${index + 1}`, "aria-hidden": "true" }), line.name, " ", values[index])));
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false" },
    [0.25, 0.5, 0.75].map((part) => svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT * part, y2: HEIGHT * part, "vector-effect": "non-scaling-stroke" })),
    paths);
  const element = h("figure", { class: "chart" }, legend, h("div", { class: "plot" }, top, drawing),
    h("div", { class: "chart-times", "aria-hidden": "true" }, from, h("span", {}, "now")));

  function update(points, fields, gap = GAP_MS) {
    const places = lines.map((line) => fields.indexOf(line.field));
    const end = points.length ? points[points.length - 1][0] : Date.now();
    const visible = points.filter((point) => point[0] > end - WINDOW_MS);
    const highest = nice(Math.max(0, ...visible.filter((point) => point.length > 1).flatMap((point) => places.map((place) => point[place] || 0))), shown);
    const start = Math.min(visible.length ? visible[0][0] : end, end - 60000);
    paths.forEach((path, index) => path.setAttribute("d", outline(visible, places[index], start, end, highest, gap)));
    top.textContent = shown(highest);
    from.textContent = `${Math.round((end - start) / 60000)} min ago`;
    const last = visible[visible.length - 1];
    values.forEach((value, index) => { value.textContent = last && last.length > 1 ? shown(last[places[index]]) : "–"; });
  }
  update([], []);
  return { element, update };
}

/** Return an SVG path with a gap where a figure is missing. */
function outline(points, place, start, end, highest, gap) {
  let text = "";
  let before = null;
  for (const point of points) {
    if (point.length < 2 || point[place] === null) { before = null; continue; }
    const x = ((point[0] - start) / Math.max(1, end - start)) * WIDTH;
    const y = HEIGHT - 2 - (point[place] / highest) * (HEIGHT - 8);
    text += `${before === null || point[0] - before > gap ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`;
    before = point[0];
  }
  return text;
}

/** Return the next higher round number. */
function nice(value, shown) {
  if (value <= 1) return 1;
  const base = shown === bytes ? 2 : 10;
  const power = base ** Math.floor(Math.log(value) / Math.log(base));
  return [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= value);
}

/** Charts of one stream, and the reason while there are no figures. */
export function liveCharts(charts) {
  const why = h("p", { class: "note", role: "status" }, "Live figures start now: they are measured only while a console is open.");
  const element = h("div", { class: "charts" }, charts.map((each) => each.element));
  let fields = [];
  let points = [];
  let last = null;
  let note = LIVE;
  let gap;
  // Replace only a changed text, because screen readers read it aloud.
  const tell = (text) => { if (why.textContent !== text) replace(why, text); };
  return {
    element: h("div", {}, element, why),
    /** The newest point by field name, or null. */
    get newest() { return last; },
    /** Whether the newest point reports an object that is not loaded. */
    get isUnloaded() { return points.length > 0 && !last; },
    on: {
      begin(names, text = LIVE, longest = undefined) { fields = names; note = text; gap = longest; tell(note); },
      points(more) {
        const newest = points.length ? points[points.length - 1][0] : 0;
        points = [...points, ...more.filter((point) => point[0] > newest)].slice(-600);
        const point = points[points.length - 1];
        last = point && point.length > 1 ? Object.fromEntries(fields.map((name, index) => [name, point[index]])) : null;
        if (point) tell(last ? note : "The topic is not loaded, so there are no figures.");
        for (const each of charts) each.update(points, fields, gap);
      },
      trouble(reason) { tell(reason); },
    },
  };
}

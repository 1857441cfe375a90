// The REST API, from the broker's OpenAPI document: search, read, and send requests with the user's permissions.

import { call, get } from "/console/api.js";
import { badge, field, h, number, plural, replace, say } from "/console/dom.js";

const SHOWN = 60;
const SAFE = new Set(["get", "head"]);
const MAX_ANSWER = 100000;

export async function docsPage(main, { signal, query }) {
  const described = await get("/openapi.json", signal);
  const operations = Object.entries(described.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ path, method, operation, text: words(path, method, operation) })));
  const search = h("input", { type: "search", name: "search", value: query.get("search") || "", placeholder: "words of a path or a description" });
  const last = ["bookies", "functions", "worker", "worker-stats", "sources", "sinks", "packages"];
  const tags = [...new Set(operations.map((each) => each.operation.tags[0]))].sort((one, other) => last.indexOf(one) - last.indexOf(other) || one.localeCompare(other));
  operations.sort((one, other) => tags.indexOf(one.operation.tags[0]) - tags.indexOf(other.operation.tags[0]));
  let chosen = query.get("tag") || "";
  const chips = h("nav", { class: "chips", "aria-label": "Subject of the calls" });
  const count = h("p", { class: "note", role: "status" });
  const found = h("div", { class: "operations" });
  main.append(h("h1", {}, "Interface"),
    h("p", {}, `${described.info.title} ${described.info.version}. ${described.info.description} The description for programs: `, h("a", { href: "/openapi.json" }, "openapi.json"), "."),
    h("form", { class: "search", role: "search", onsubmit: (event) => event.preventDefault() }, field("Search calls", search)), chips, count, found);

  function draw() {
    const asked = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const named = operations.filter((each) => asked.every((word) => each.text.includes(word)));
    const matching = named.filter((each) => !chosen || each.operation.tags[0] === chosen);
    replace(chips, ["", ...tags].map((tag) => {
      const some = named.filter((each) => !tag || each.operation.tags[0] === tag).length;
      return h("button", { type: "button", class: "chip", "aria-pressed": String(tag === chosen), hidden: !some && tag !== chosen, onclick: () => { chosen = tag; draw(); chips.querySelector("[aria-pressed=true]").focus(); } },
        `${tag || "all"} ${some}`);
    }));
    replace(count, `${plural(matching.length, "call")}${matching.length > SHOWN ? `, the first ${SHOWN} of them are shown` : ""}`);
    let before = null;
    replace(found, matching.slice(0, SHOWN).map((each) => {
      const own = each.operation.tags[0];
      const title = own === before ? null : h("h2", {}, own);
      before = own;
      return [title, operationView(each, described)];
    }));
  }
  search.addEventListener("input", draw);
  draw();
}

function words(path, method, operation) {
  return `${method} ${path} ${operation.summary} ${operation.description || ""}`.toLowerCase();
}

function operationView({ path, method, operation }, described) {
  const box = h("details", { class: "operation" },
    h("summary", {}, badge(method.toUpperCase(), SAFE.has(method) ? "good" : "warn"), " ", h("code", {}, path), h("span", { class: "summary" }, operation.summary)));
  // Create the content when the box is opened, because there are hundreds.
  box.addEventListener("toggle", () => { if (box.open && box.children.length === 1) box.append(...inside(path, method, operation, described)); });
  return box;
}

function inside(path, method, operation, described) {
  const inputs = (operation.parameters || []).map((each) => [each, each.in === "query" ? queryInput(each) : h("input", { name: each.name, required: true, autocomplete: "off", value: guess(each.name) })]);
  const queries = inputs.filter(([each]) => each.in === "query");
  // Pulsar's query parameters without effect are not listed, so they can be entered as text.
  const more = queries.length ? null : h("input", { name: "query", placeholder: "a=b&c=d", autocomplete: "off" });
  const schema = operation.requestBody && operation.requestBody.content["application/json"].schema;
  const takesBody = !SAFE.has(method);
  const body = h("textarea", { name: "body", rows: 4, spellcheck: "false", value: schema ? JSON.stringify(example(schema, described, 0), null, 2) : "" });
  const outcome = h("div", { "aria-live": "polite" });
  const form = h("form", { class: "try", onsubmit: async (event) => {
    event.preventDefault();
    const named = inputs.reduce((text, [each, input]) => text.replace(`{${each.name}}`, () => encodeURIComponent(input.value)), path);
    const asked = more ? more.value : queries.filter(([, input]) => input.value).map(([each, input]) => `${each.name}=${encodeURIComponent(input.value)}`).join("&");
    const filled = named + (asked ? `?${asked}` : "");
    if (!SAFE.has(method) && !confirm(`${method.toUpperCase()} ${filled}\n\nThis request may change data of the broker. Send the request?`)) return;
    await send(method.toUpperCase(), filled, takesBody && body.value.trim() ? body.value : undefined, outcome);
  } },
  inputs.map(([each, input]) => field(each.description ? `${each.name}: ${each.description}` : each.name, input)),
  more && field("Query", more), takesBody && field("Body (JSON)", body),
  h("button", { type: "submit" }, `Send ${method.toUpperCase()}`), outcome);
  const answers = Object.entries(operation.responses).map(([status, each]) => h("div", {}, h("dt", {}, status), h("dd", {}, each.description)));
  return [operation.description && h("p", { class: "description" }, paragraphs(operation.description)), h("dl", { class: "evidence" }, answers), form].filter(Boolean);
}

/** As in Markdown, join lines and split paragraphs at blank lines. */
function paragraphs(text) {
  return text.replace(/([^\n])\n(?=[^\n])/g, "$1 ");
}

/** An optional parameter without a value is not sent; its default is shown if known. */
function queryInput({ name, required, schema }) {
  const choices = schema.enum || (schema.type === "boolean" ? ["true", "false"] : null);
  const fallback = schema.default === undefined ? "" : String(schema.default);
  if (choices) return h("select", { name, required }, h("option", { value: "" }, fallback ? `(${fallback})` : ""), choices.map((each) => h("option", { value: each }, each)));
  return h("input", { name, required, type: schema.type === "integer" ? "number" : "text", step: schema.type === "integer" ? "1" : null, placeholder: fallback, autocomplete: "off" });
}

function guess(name) {
  return { domain: "persistent", tenant: "public", namespace: "default" }[name] || "";
}

/** Return an example body, with nested types a few levels deep. */
function example(schema, described, depth) {
  if (depth > 4) return null;
  if (schema.$ref) return example(described.components.schemas[schema.$ref.split("/").pop()] || {}, described, depth + 1);
  if (schema.default !== undefined) return schema.default;
  if (schema.enum) return schema.enum[0];
  if (schema.anyOf) return example(schema.anyOf.find((each) => each.type !== "null") || {}, described, depth + 1);
  if (schema.type === "array") return schema.items ? [example(schema.items, described, depth + 1)] : [];
  if (schema.type === "object") return Object.fromEntries(Object.entries(schema.properties || {}).map(([name, each]) => [name, example(each, described, depth + 1)]));
  return { string: "", integer: 0, number: 0, boolean: false }[schema.type] ?? null;
}

async function send(method, path, body, outcome) {
  replace(outcome, "At work …");
  const began = performance.now();
  try {
    const response = await call(method, path, { body });
    const text = await response.text();
    const took = performance.now() - began;
    replace(outcome, h("p", {}, badge(`${response.status}`, response.ok ? "good" : "bad"), ` ${response.statusText} · ${number(text.length)} characters · ${Math.round(took)} ms`),
      text && h("pre", { class: "code answer", tabindex: 0 }, pretty(text).slice(0, MAX_ANSWER)));
    say(`Answered ${response.status}`);
  } catch (error) {
    replace(outcome, h("p", { class: "trouble" }, error.reason || error.message));
  }
}

function pretty(text) {
  if (text.length > MAX_ANSWER) return text;
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

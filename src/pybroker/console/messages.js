// The page of messages: of a topic from its beginning or end, unacknowledged ones of a subscription, or one by its id. Reading them
// moves no cursor. Each entry is a separate request, so that a page needs the broker's memory for one at a time.

import { ApiError, accepted, getOrNull, query, subscriptionPath, topicParts, topicPath } from "/console/api.js";
import { decodeKeyValue, decodePayload, messagesOfBatch } from "/console/decode.js";
import { lookButton } from "/console/findings.js";
import { badge, bytes, facts, field, h, number, plural, replace, say, trouble } from "/console/dom.js";
import { crumbs } from "/console/topic.js";

const AT_ONCE = 10;
const MAX_MOVED = 1000;
const MAX_CHARACTERS = 20000;

export async function messagesPage(main, { names: [topic], query: asked, signal, rights }) {
  const subscriptions = await getOrNull(`${topicPath(topic)}/subscriptions`, signal, [401, 403, 404]) || [];
  const wanted = asked.get("subscription");
  if (wanted && !subscriptions.includes(wanted)) subscriptions.push(wanted);
  const from = h("select", { name: "from" },
    h("option", { value: "latest" }, "the newest"), h("option", { value: "earliest" }, "the oldest"),
    subscriptions.map((name) => h("option", { value: `s:${name}` }, `not acknowledged by ${name}`)));
  from.value = wanted ? `s:${wanted}` : "latest";
  const id = h("input", { name: "id", placeholder: "ledger:entry", value: asked.get("id") || "", autocomplete: "off", pattern: "\\d+:\\d+(:-?\\d+)*" });
  const found = h("div", { "aria-live": "off" });
  const more = h("button", { type: "button", hidden: true }, "More");
  const why = h("p", { class: "note", role: "status" });
  main.append(crumbs(topic), h("h1", { class: "long" }, "Messages of ", topicParts(topic).name),
    h("p", {}, "This page only reads messages: no cursor moves, and no message is delivered."),
    h("form", { class: "filters", onsubmit: (event) => { event.preventDefault(); start(); } },
      field("Begin with", from), field("or one by its id", id), h("button", { type: "submit" }, "Show")),
    h("section", { "aria-label": "Messages" }, found, why, more));
  const schemas = schemasOf(topic, signal);
  let place = 0;
  let moved = 0;
  let turn = 0;
  const seen = new Set();
  more.addEventListener("click", () => load());

  function path() {
    if (id.value) {
      const [ledger, entry] = id.value.split(":");
      return place ? null : `${topicPath(topic)}/ledger/${ledger}/entry/${entry}`;
    }
    if (from.value.startsWith("s:")) return `${topicPath(topic)}/subscription/${encodeURIComponent(from.value.slice(2))}/position/${place + 1}`;
    return `${topicPath(topic)}/examinemessage${query({ initialPosition: from.value, messagePosition: place + moved + 1 })}`;
  }

  /** With a subscription: explain the message. */
  const explained = (entry) => (from.value.startsWith("s:")
    ? lookButton("Explain this message", `${subscriptionPath(topic, from.value.slice(2))}/explain${query({ messageId: entry.id })}`, rights) : null);

  function start() {
    place = moved = 0;
    turn += 1;
    seen.clear();
    replace(found);
    return load();
  }

  async function load() {
    more.hidden = true;
    replace(why, "At work …");
    const end = place + AT_ONCE;
    const mine = turn;  // A later request replaces this one.
    try {
      while (place < end) {
        const where = path();
        const entry = where && await look(where, signal);
        if (signal.aborted || mine !== turn) return;
        if (entry && seen.has(entry.id) && !id.value && from.value === "latest" && moved < MAX_MOVED) {
          moved += 1;  // A message was published meanwhile, which shifts positions from the end.
          continue;
        }
        // After the last one, `examinemessage` returns it again.
        if (!entry || seen.has(entry.id)) { replace(why, place ? "There are no more messages." : "There are no messages."); return; }
        seen.add(entry.id);
        place += 1;
        const view = await entryView(entry, schemas, explained(entry));
        if (signal.aborted || mine !== turn) return;
        found.append(view);
      }
      replace(why, plural(place, "entry", "entries"));
      say(`${place} entries are shown`);
      more.hidden = false;
    } catch (error) {
      if (error.name === "AbortError" || mine !== turn) return;
      if (error instanceof ApiError && [404, 412].includes(error.status)) { replace(why, place ? "There are no more messages." : error.reason); return; }
      replace(why, trouble(error));
    }
  }
  await start();
}

/** Return an entry from REST: id, headers without prefix, payload. */
async function look(path, signal) {
  const response = await accepted("GET", path, { signal });
  const head = {};
  for (const [name, value] of response.headers) if (name.startsWith("x-pulsar-")) head[name.slice(9)] = value;
  return { id: head["message-id"], head, payload: new Uint8Array(await response.arrayBuffer()) };
}

/** Fetch each version of the topic's schema once; null if it does not exist. */
function schemasOf(topic, signal) {
  const { tenant, namespace, name } = topicParts(topic);
  const base = `/admin/v2/schemas/${[tenant, namespace, name].map(encodeURIComponent).join("/")}/schema`;
  const known = new Map();
  return (version) => {
    if (!known.has(version)) {
      known.set(version, getOrNull(version === null ? base : `${base}/${version}`, signal, [401, 403, 404, 500]));
    }
    return known.get(version);
  };
}

/** Decode a schema version of eight bytes in Base64. Without a version, the newest schema is tried. */
function versionOf(head) {
  const text = head["base64-schema-version"];
  if (!text) return null;
  const raw = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return raw.length === 8 ? new DataView(raw.buffer).getBigInt64(0).toString() : null;
}

async function entryView(entry, schemas, more) {
  const { head } = entry;
  const count = Number(head["num-batch-message"] || 0);
  const schema = await schemas(versionOf(head));
  const about = h("div", { class: "message-head" },
    h("code", {}, entry.id), head["publish-time"] && h("span", { class: "note" }, head["publish-time"]),
    head["producer-name"] && h("span", { class: "note" }, `by ${head["producer-name"]}`), h("span", { class: "note" }, bytes(entry.payload.length)),
    count ? badge(plural(count, "message"), "dim") : null,
    head["num-chunks-from-msg"] && badge(`chunk ${Number(head["chunk-id"]) + 1} of ${head["num-chunks-from-msg"]}`, "dim"),
    head["deliver-at-time"] && badge(`due ${head["deliver-at-time"]}`, "warn"),
    head["txn-uncommitted"] === "true" && badge("not committed", "warn"), head["txn-aborted"] === "true" && badge("aborted", "bad"),
    head["is-encrypted"] === "true" && badge("encrypted", "dim"));
  const rest = Object.entries(head).filter(([name]) => name !== "message-id");
  const all = h("details", {}, h("summary", {}, "All metadata"), facts(rest.map(([name, value]) => [name, value])));
  return h("article", { class: "message", "aria-label": `Entry ${entry.id}` }, about, messageViews(entry, count, schema), more, all);
}

function messageViews({ head, payload }, count, schema) {
  if (head["is-encrypted"] === "true") return h("p", { class: "note" }, "The message is encrypted. Only clients with the key can read it.");
  if (head["num-chunks-from-msg"]) return valueView(decodePayload(payload, null));
  if (!count) {
    const key = head["partition-key"] === undefined ? null : { text: head["partition-key"], isBase64: head["partition-key-b64-encoded"] === "true" };
    return oneView(payload, schema, key, Object.entries(properties(head.property)), head["null-value"] === "true");
  }
  try {
    return messagesOfBatch(payload, count).map((each, index) => h("div", { class: "message" }, h("span", { class: "note" }, `message ${index}`),
      oneView(each.payload, schema, each.key === null ? null : { text: each.key, isBase64: each.keyIsBase64 }, each.properties, each.isNull)));
  } catch (error) {
    return [h("p", { class: "trouble" }, `The batch cannot be read: ${error.message}`), valueView(decodePayload(payload, null))];
  }
}

function properties(text) {
  try { return JSON.parse(text || "{}"); } catch { return {}; }
}

function oneView(payload, schema, key, pairs, isNull) {
  const shown = [];
  if (key) shown.push(h("p", {}, h("span", { class: "note" }, key.isBase64 ? "key (Base64) " : "key "), h("code", {}, key.text)));
  if (pairs.length) shown.push(h("p", {}, h("span", { class: "note" }, "properties "), pairs.map(([name, value]) => h("code", { class: "property" }, `${name}=${value} `))));
  if (isNull) return [...shown, h("p", { class: "note" }, "The message has no value.")];
  if (schema && schema.type === "KEY_VALUE") {
    const raw = key ? keyBytes(key) : null;
    const [first, second] = decodeKeyValue(payload, schema, raw);
    return [...shown, first && valueView(first, "key"), valueView(second, "value")];
  }
  return [...shown, valueView(decodePayload(payload, schema))];
}

function keyBytes({ text, isBase64 }) {
  return isBase64 ? Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)) : new TextEncoder().encode(text);
}

function valueView({ text, how, problem }, what) {
  const cut = text.length > MAX_CHARACTERS ? `${text.slice(0, MAX_CHARACTERS)}\n… ${number(text.length - MAX_CHARACTERS)} characters more` : text;
  return h("div", {}, h("p", { class: "note" }, what ? `${what}, as ${how}` : `as ${how}`), problem && h("p", { class: "notice" }, problem),
    text ? h("pre", { class: how === "bytes" ? "code bytes" : "code", tabindex: 0 }, cut) : h("p", { class: "note" }, "The value is empty."));
}


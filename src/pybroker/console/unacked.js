// Lists of a subscription: unacknowledged messages, delayed messages, and gaps in acknowledgements.

import { getOrNull, query } from "/console/api.js";
import { actionButton } from "/console/findings.js";
import { bytes, duration, facts, field, h, number, plural, renew, replace, section, table, time, trouble } from "/console/dom.js";

const LIMIT = 20;
const TEN_MINUTES_MS = 600000;

/** Return the path of a call for one message id. */
export function messagePath(base, id, what) {
  const [ledger, entry, batch] = id.split(":");
  return `${base}/message/${ledger}/${entry}${what}${batch === undefined ? "" : query({ batchIndex: batch })}`;
}

export function messageLink(topic, id) {
  const [ledger, entry] = id.split(":");
  return h("a", { href: `#/messages/${encodeURIComponent(topic)}?id=${ledger}:${entry}` }, h("code", {}, id));
}

function keyText(each) {
  if (each.key !== undefined) return `${each.key}${each.keyCut ? "…" : ""}`;
  return each.keyBase64 === undefined ? "–" : h("code", {}, each.keyBase64);
}

/** A paged list; `rows(answer)` creates its table. */
function paged(path, filters, rows, absent, signal) {
  const found = h("div", { "aria-live": "polite" });
  const before = [];
  let after;
  let turn = 0;
  async function load() {
    const mine = turn += 1;
    try {
      const answer = await getOrNull(`${path}${query({ ...filters(), limit: LIMIT, after })}`, signal, [404, 405, 412]);
      if (signal.aborted || mine !== turn) return;  // a later request replaces this one
      if (!answer) { replace(found, h("p", { class: "note" }, absent)); return; }
      renew(found, rows(answer), h("nav", { class: "turn", "aria-label": "Pages" },
        h("button", { type: "button", disabled: !before.length, onclick: () => { after = before.pop(); load(); } }, "Back"),
        h("span", {}, answer.total === undefined ? "" : `${number(answer.total)} in all`),
        h("button", { type: "button", disabled: answer.next === null || answer.next === undefined, onclick: () => { before.push(after); after = answer.next; load(); } }, "Next")));
    } catch (error) {
      if (error.name !== "AbortError" && mine === turn) replace(found, trouble(error));
    }
  }
  return { found, load, again() { before.length = 0; after = undefined; return load(); } };
}

/** Return the section, `load` to refresh it, and `offer` to set the selectable consumers. */
export function unackedSection(topic, base, rights, signal) {
  const consumer = h("select", { name: "consumer" });
  const key = h("input", { name: "key", autocomplete: "off" });
  const hash = h("input", { name: "hash", inputmode: "numeric", pattern: "[0-9]*", autocomplete: "off" });
  const age = h("select", { name: "age" }, [["", "any"], ["1000", "over a second"], ["10000", "over ten seconds"], ["60000", "over a minute"], ["600000", "over ten minutes"], ["3600000", "over an hour"]]
    .map(([value, text]) => h("option", { value }, text)));
  const properties = h("input", { type: "checkbox" });
  const list = paged(`${base}/unacked`,
    () => ({ consumer: consumer.value, key: key.value, hash: hash.value, minAgeMs: age.value, withProperties: properties.checked ? "true" : "" }),
    (answer) => table("Unacknowledged messages", [
      { name: "Message", cell: (each) => messageLink(topic, each.messageId) },
      { name: "Key", cell: keyText },
      { name: "Hash", number: true, cell: (each) => (each.hash === null || each.hash === undefined ? "–" : String(each.hash)) },
      { name: "Held by", cell: (each) => each.consumer || "no consumer" },
      { name: "For", number: true, cell: (each) => duration(each.ageMs ?? undefined) },
      { name: "Sent", number: true, title: "number of deliveries", cell: (each) => number(each.deliveryCount) },
      { name: "Size", number: true, cell: (each) => bytes(each.size ?? undefined) },
      { name: "Published", cell: (each) => time(each.publishTime) },
      ...(properties.checked ? [{ name: "Properties", cell: (each) => Object.entries(each.properties || {}).map(([name, value]) => `${name}=${value}`).join(", ") || "–" }] : []),
      { name: "", cell: (each) => messageActions(base, each, rights, list.load) },
    ], answer.messages, { none: "No unacknowledged messages match these filters." }),
    "This subscription has no list of unacknowledged messages now.", signal);
  const form = h("form", { class: "filters", onsubmit: (event) => { event.preventDefault(); list.again(); } },
    field("Consumer", consumer), field("Key", key), field("Hash", hash), field("Held for", age),
    h("label", { class: "check" }, properties, " properties"), h("button", { type: "submit" }, "Show"));
  const offer = (consumers) => {
    const chosen = consumer.value;
    const names = ["", ...new Set(chosen ? [...consumers, chosen] : consumers)];
    if (names.length === consumer.options.length && names.every((name, index) => name === consumer.options[index].value)) return;
    replace(consumer, names.map((name) => h("option", { value: name }, name || "any")));
    consumer.value = chosen;
  };
  offer([]);
  list.load();
  return { element: section("Unacknowledged messages", form, list.found), load: list.load, offer };
}

function messageActions(base, each, rights, done) {
  return h("span", { class: "actions" },
    actionButton({ text: "Redeliver", method: "POST", path: messagePath(base, each.messageId, "/redeliver"),
      why: `${each.consumer ? `Consumer ${each.consumer}` : "No consumer"} has the message; the broker redelivers the message immediately.` }, rights, done),
    actionButton({ text: "Acknowledge", severity: "irreversible", method: "POST", path: messagePath(base, each.messageId, "/acknowledge"),
      why: "The message counts as processed. No consumer of this subscription receives it again." }, rights, done));
}

export function delayedSection(topic, base, rights, signal) {
  const list = paged(`${base}/delayed`, () => ({}), (answer) => table("Delayed messages", [
    { name: "Message", cell: (each) => messageLink(topic, each.messageId) },
    { name: "Key", cell: keyText },
    { name: "Due at", cell: (each) => time(each.deliverAt) },
    { name: "In", number: true, cell: (each) => duration(Math.max(0, each.deliverAt - Date.now())) },
    { name: "", cell: (each) => h("span", { class: "actions" },
      actionButton({ text: "Deliver now", method: "DELETE", path: messagePath(base, each.messageId, "/delay") }, rights, list.load),
      actionButton({ text: "Ten minutes later", method: "PUT", path: messagePath(base, each.messageId, "/delay"), body: { deliverAt: each.deliverAt + TEN_MINUTES_MS } }, rights, list.load)) },
  ], answer.messages, { none: "No delayed messages." }), "This subscription has no list of delayed messages.", signal);
  list.load();
  return section("Delayed messages", list.found);
}

/** Acknowledged ranges after unacknowledged messages, and the ledgers that these retain. */
export function holesSection(topic, holes) {
  const { oldestUnacked: oldest, held, acknowledgedBehind: behind } = holes;
  return section("Acknowledgement gaps",
    facts([
      ["Acknowledged up to", h("code", {}, holes.markDeletePosition)],
      ["Oldest unacknowledged", oldest ? messageLink(topic, oldest.messageId) : "none"],
      oldest && ["Age", duration(oldest.ageMs ?? undefined)],
      held && ["Retains", `${plural(held.ledgers, "ledger")}, ${bytes(held.bytes)}`],
    ]),
    held && held.reasons && held.reasons.length > 0 && h("p", { class: "note" }, "Ledgers are retained by: ", held.reasons.map((each, index) => [index ? "; " : "",
      each.kind, each.name ? [" ", h("code", {}, each.name)] : "", ` (${plural(each.ledgers, "ledger")}, ${bytes(each.bytes)})`]),
    held.moreReasons ? `; and ${number(held.moreReasons)} more` : ""),
    behind && behind.length > 0 && h("details", { "data-keep": "holes" }, h("summary", {}, `${plural(behind.length, "range")} acknowledged after the oldest unacknowledged message${holes.more ? " and more" : ""}`),
      table("Acknowledged ranges", [
        { name: "From", cell: (each) => each.from }, { name: "To", cell: (each) => each.to },
        { name: "Entries", number: true, cell: (each) => number(each.entries) },
      ], behind.slice(0, 200))));
}

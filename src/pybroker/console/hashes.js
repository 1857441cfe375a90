// Hashes of a Key_Shared subscription: the ring of 65,536 with its consumers, draining and waiting hashes, and a search by key.

import { getOrNull, query } from "/console/api.js";
import { findingsList } from "/console/findings.js";
import { ago, badge, facts, field, h, number, plural, replace, section, svg, table, trouble } from "/console/dom.js";

const HASHES = 65536;
const COLOURS = 10;
const MAX_LISTED = 20;

/** Return the consumer's name for calls. */
export function who(consumer) {
  if (!consumer) return "no consumer";
  return typeof consumer === "string" ? consumer : consumer.name;
}

function point(hash, radius) {
  const angle = (hash / HASHES) * 2 * Math.PI - Math.PI / 2;
  return `${(130 + radius * Math.cos(angle)).toFixed(2)} ${(130 + radius * Math.sin(angle)).toFixed(2)}`;
}

/** Return one SVG path of all ranges of a consumer, so that thousands of ranges are one element. */
function sectors(ranges) {
  return ranges.map(([low, high]) => {
    const end = Math.min(high + 1, low + HASHES - 1);
    const large = end - low > HASHES / 2 ? 1 : 0;
    return `M${point(low, 120)}A120 120 0 ${large} 1 ${point(end, 120)}L${point(end, 78)}A78 78 0 ${large} 0 ${point(low, 78)}Z`;
  }).join("");
}

function mark(hash, className) {
  return svg("path", { class: `ring-mark ${className}`, d: `M${point(hash, 72)}L${point(hash, 126)}` });
}

/** The ring of `consumers` (from `stats`), with marks for the first draining and waiting hashes; `counts` has their totals. */
function ring(consumers, draining, waiting, counts) {
  const owned = consumers.filter((each) => (each.keyHashRangeArrays || []).length);
  const sizes = new Map(owned.map((each) => [each, each.keyHashRangeArrays.reduce((sum, [low, high]) => sum + high - low + 1, 0)]));
  const free = HASHES - [...sizes.values()].reduce((sum, size) => sum + size, 0);
  const drawing = svg("svg", { viewBox: "0 0 260 260", role: "img", "aria-label": `Ring of hashes: ${owned.map((each) => `${each.consumerName} ${percent(sizes.get(each))}`).join(", ")}; ${counts.draining} draining, ${counts.waiting} waiting` },
    svg("circle", { cx: 130, cy: 130, r: 120, class: "c-none" }),
    owned.map((each, index) => svg("path", { class: `c-${index % COLOURS}`, d: sectors(each.keyHashRangeArrays) })),
    svg("circle", { cx: 130, cy: 130, r: 78, class: "ring-hole" }),
    waiting.map((each) => mark(each.hash, "waiting")), draining.map((each) => mark(each.hash, "draining")),
    svg("text", { x: 130, y: 118, class: "ring-text" }, plural(owned.length, "consumer")),
    svg("text", { x: 130, y: 138, class: "ring-text small" }, `${number(counts.draining)} draining`),
    svg("text", { x: 130, y: 154, class: "ring-text small" }, `${number(counts.waiting)} waiting`));
  const rows = owned.map((each, index) => ({ each, index }));
  if (free > 1) rows.push({ each: { consumerName: "no consumer", keyHashRangeArrays: [] }, index: null });
  return h("div", { class: "ring" }, drawing, h("div", {}, table("Shares of the hashes", [
    { name: "Consumer", cell: ({ each, index }) => h("span", {}, h("i", { class: `share c-${index === null ? "none" : index % COLOURS}`, "aria-hidden": "true" }), each.consumerName) },
    { name: "Share", number: true, cell: ({ each, index }) => percent(index === null ? free : sizes.get(each)) },
    { name: "Ranges", cell: ({ each }) => ranges(each.keyHashRangeArrays) },
  ], rows.slice(0, MAX_LISTED), { none: "No consumer owns a hash." }),
  rows.length > MAX_LISTED && h("p", { class: "note" }, `The first ${MAX_LISTED} of ${number(rows.length)}.`)));
}

function percent(size) {
  return `${((size / HASHES) * 100).toFixed(1)} %`;
}

function ranges(found) {
  if (!found.length) return "–";
  const text = (each) => `${each[0]}–${each[1]}`;
  if (found.length <= 2) return found.map(text).join(", ");
  return h("details", {}, h("summary", {}, plural(found.length, "range")), h("p", { class: "note" }, found.slice(0, 200).map(text).join(", ")));
}

/** Draining and waiting hashes, from the broker's lists if available, otherwise from `stats`. */
export async function hashesSection(base, stats, signal) {
  const [draining, waiting] = await Promise.all([
    getOrNull(`${base}/drainingHashes?limit=${MAX_LISTED}`, signal, [404, 405, 412, 503]),
    getOrNull(`${base}/waiting?limit=${MAX_LISTED}`, signal, [404, 405, 412, 503]),
  ]);
  const drains = draining ? draining.hashes : stats.consumers.flatMap((each) => (each.drainingHashes || []).map((hash) => ({
    hash: hash.hash, oldConsumer: each.consumerName, unackedMessages: hash.unackMsgs, blockedAttempts: hash.blockedAttempts, keys: [], messageIds: [],
  })));
  const waits = waiting ? waiting.hashes : (stats.lookAhead ? stats.lookAhead.hashes : []);
  const counts = { draining: draining?.total ?? drains.length, waiting: waiting?.total ?? waits.length };
  return section("Hashes", ring(stats.consumers, drains, waits, counts),
    h("h3", {}, "Draining"),
    h("p", { class: "note" }, "These hashes moved to another consumer. The new consumer receives their messages after the previous consumer has acknowledged its messages of these hashes."),
    table("Draining hashes", [
      { name: "Hash", cell: (each) => String(each.hash) },
      { name: "Keys", cell: (each) => [...(each.keys || []), ...(each.keysBase64 || [])].join(", ") || "–" },
      { name: "From", cell: (each) => who(each.oldConsumer) },
      { name: "To", cell: (each) => (each.newConsumer === undefined ? "–" : who(each.newConsumer)) },
      { name: "Since", cell: (each) => (each.since ? ago(each.since) : "–") },
      { name: "Unacked", number: true, cell: (each) => number(each.unackedMessages) },
      { name: "First messages", cell: (each) => (each.messageIds || []).slice(0, 3).join(", ") || "–" },
      { name: "Blocked", number: true, title: "number of blocked deliveries", cell: (each) => number(each.blockedAttempts) },
    ], drains.slice(0, MAX_LISTED), { none: "No draining hashes." }),
    counts.draining > MAX_LISTED && h("p", { class: "note" }, `The first ${MAX_LISTED} of ${number(counts.draining)}.`),
    h("h3", {}, `Waiting: ${number(counts.waiting)}`),
    waits.length > 0 && h("details", { "data-keep": "waiting" }, h("summary", {}, "Hashes with messages that were read and wait for a consumer"), table("Waiting hashes", [
      { name: "Hash", cell: (each) => String(each.hash) },
      { name: "For", cell: (each) => who(each.consumer) },
      { name: "Why", cell: (each) => each.reason || "–" },
      { name: "Because of", cell: (each) => (each.because ? who(each.because) : "–") },
      { name: "Entries", number: true, cell: (each) => number(each.entries) },
      { name: "Since", cell: (each) => (each.since ? ago(typeof each.since === "string" ? Date.parse(each.since) : each.since) : "–") },
      { name: "Parked from", cell: (each) => each.setAsideFrom || "–" },
    ], waits.slice(0, MAX_LISTED)), counts.waiting > MAX_LISTED && h("p", { class: "note" }, `The first ${MAX_LISTED} of ${number(counts.waiting)}.`)));
}

/** A form that shows the consumer and state of a key. */
export function keyForm(base, rights, signal) {
  const key = h("input", { name: "key", autocomplete: "off" });
  const encoded = h("input", { type: "checkbox" });
  const outcome = h("div", { "aria-live": "polite" });
  async function look() {
    if (!key.value) return;
    const asked = query(encoded.checked ? { keyBase64: key.value } : { key: key.value });
    replace(outcome, "…");
    try {
      const [at, explained] = await Promise.all([
        getOrNull(`${base}/hash${asked}`, signal, [404, 405]),
        getOrNull(`${base}/explain${asked}`, signal, [404, 405, 412]),
      ]);
      replace(outcome,
        at && facts([["Hash", String(at.hash)], ["Range", at.range ? `${at.range[0]}–${at.range[1]}` : "of no consumer"], ["Consumer", who(at.consumer)],
          ["State", badge(at.state, at.state === "owned" ? "good" : "bad")], at.waiting ? ["Waiting", number(at.waiting)] : null]),
        explained && findingsList(explained, rights, look));
    } catch (error) {
      if (error.name !== "AbortError") replace(outcome, trouble(error));
    }
  }
  return section("Consumer of a key", h("form", { class: "filters", onsubmit: (event) => { event.preventDefault(); look(); } },
    field("Key", key), h("label", { class: "check" }, encoded, " in Base64"), h("button", { type: "submit" }, "Look up")), outcome);
}


// The page of transactions: coordinators, open transactions, participants, and participants that have not confirmed an end.

import { get, getOrNull } from "/console/api.js";
import { onlyForSuperUsers } from "/console/broker.js";
import { actionButton } from "/console/findings.js";
import { badge, duration, facts, h, number, plural, renew, replace, section, table, time, trouble } from "/console/dom.js";
import { keepFresh, topicLink } from "/console/overview.js";
import { subscriptionLink } from "/console/topic.js";

const BASE = "/admin/v3/transactions";
const KINDS = { OPEN: "", COMMITTING: "warn", ABORTING: "warn", COMMITTED: "good", ABORTED: "dim" };

export async function transactionsPage(main, { signal, rights, query }) {
  main.append(h("h1", {}, "Transactions"));
  if (!rights.superuser) { main.append(onlyForSuperUsers(rights)); return; }
  const least = h("select", { name: "least" }, [["0", "any age"], ["1000", "a second"], ["10000", "ten seconds"], ["60000", "a minute"], ["600000", "ten minutes"]]
    .map(([value, text]) => h("option", { value, selected: value === (query.get("age") || "0") }, text)));
  const found = h("div", {});
  main.append(
    h("p", {}, "Consumers of a topic receive no messages from the first message of an open transaction on. The acknowledgements of a transaction take effect when the transaction is committed."),
    h("label", { class: "field short" }, h("span", {}, "Open for at least"), least), found);
  async function refresh() {
    try {
      const coordinators = await getOrNull(`${BASE}/coordinatorStats`, signal, [503]);
      if (coordinators === null) {
        replace(found, h("p", { class: "notice" }, "Transactions are disabled (transactionCoordinatorEnabled=false)."));
        return;
      }
      const slow = await get(`${BASE}/slowTransactions/${least.value}`, signal);
      renew(found, content(coordinators, Object.values(slow || {}), rights, refresh));
    } catch (error) {
      if (error.name !== "AbortError") replace(found, trouble(error));
    }
  }
  least.addEventListener("change", refresh);
  await refresh();
  keepFresh(refresh, signal);
}

function content(coordinators, open, rights, refresh) {
  return [
    section("Not ended yet", table("Transactions that have not ended", [
      { name: "Transaction", cell: (each) => h("code", {}, each.txnId) },
      { name: "State", cell: (each) => badge(each.status.toLowerCase(), KINDS[each.status]) },
      { name: "Open for", number: true, cell: (each) => duration(each.pybroker ? each.pybroker.ageMillis : Date.now() - each.openTimestamp) },
      { name: "Times out", cell: (each) => time(each.timeoutAt) },
      { name: "Owner", cell: (each) => each.owner || "–" },
      { name: "Participants", cell: takesPart },
      { name: "", cell: (each) => each.status === "OPEN" && actionButton({
        text: "Abort", severity: "irreversible", method: "POST", path: `${BASE}/abortTransaction/${ids(each.txnId).join("/")}`,
        why: "The messages of the transaction are never delivered. The messages that it acknowledged are delivered again.",
      }, rights, refresh) },
    ], open, { none: "No transaction is open." })),
    section("Coordinators", table("Coordinators", [
      { name: "Coordinator", cell: ([id]) => id },
      { name: "State", cell: ([, each]) => each.state },
      { name: "Open", number: true, cell: ([, each]) => number(each.ongoingTxnSize) },
      { name: "Highest id", number: true, cell: ([, each]) => number(each.leastSigBits) },
      { name: "Low-water mark", number: true, cell: ([, each]) => number(each.lowWaterMark) },
    ], Object.entries(coordinators || {}), { none: "No coordinator has been used yet." })),
  ];
}

/** Parse `(most,least)` to two numbers. */
function ids(text) {
  return text.match(/-?\d+/g) || [];
}

function takesPart(each) {
  const topics = Object.keys(each.producedPartitions || {});
  const acknowledged = Object.entries(each.ackedPartitions || {}).flatMap(([topic, names]) => Object.keys(names).map((name) => [topic, name]));
  const own = each.pybroker || {};
  const fullName = (topic) => (own.fullNames || {})[topic] || topic;
  return h("details", { "data-keep": each.txnId },
    h("summary", {}, `${plural(topics.length, "topic")}, ${plural(acknowledged.length, "subscription")}`),
    topics.map((topic) => h("p", {}, "published to ", topicLink(fullName(topic)))),
    acknowledged.map(([topic, name]) => h("p", {}, "acknowledged in ", h("a", { href: subscriptionLink(fullName(topic), name) }, `${name} of ${topic}`))),
    own.attempts ? facts([["Attempts to end", number(own.attempts)], ["Waits for", (own.waitsFor || []).join(", ")], own.lastError && ["Last error", own.lastError]]) : null);
}

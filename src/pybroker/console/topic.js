// The page of a topic: figures, producers, subscriptions, ledgers, and findings.

import { get, getOrNull, query, topicParts, topicPath, watch } from "/console/api.js";
import { chart, liveCharts } from "/console/charts.js";
import { actionButton, findingsList, lookButton } from "/console/findings.js";
import { ago, badge, bytes, facts, h, number, plural, renew, replace, section, table, time, trouble } from "/console/dom.js";
import { keepFresh, topicLink } from "/console/overview.js";

const MAX_LEDGERS = 100;
const NO_SUBSCRIPTION = "No subscriptions. Messages are retained only by the retention policy.";
const SUBSCRIPTION_COLUMNS = [
  { name: "Type", cell: (each) => (each.type === "None" ? "none yet" : each.type) },
  { name: "Backlog", number: true, cell: (each) => number(each.msgBacklog) },
  { name: "Unacked", number: true, cell: (each) => number(each.unackedMessages) },
  { name: "Out /s", number: true, cell: (each) => number(each.msgRateOut), title: "of the last window of statistics" },
  { name: "Consumers", number: true, cell: (each) => number(each.consumers.length) },
];

export async function topicPage(main, { names: [topic], signal }) {
  const rights = await get(`/admin/v3/console/rights?topic=${encodeURIComponent(topic)}`, signal);
  main.append(crumbs(topic), h("h1", { class: "long" }, topicParts(topic).name));
  const partitions = await getOrNull(`${topicPath(topic)}/partitions`, signal);
  if (partitions && partitions.partitions > 0) return partitionedPage(main, topic, partitions.partitions, signal);

  const charts = liveCharts([
    chart("Messages per second", [{ field: "messagesIn", name: "in" }, { field: "messagesOut", name: "out" }], number),
    chart("Waiting", [{ field: "backlog", name: "backlog" }, { field: "unacked", name: "unacknowledged" }], number),
  ]);
  const rest = h("div", {}, h("p", { class: "note" }, "…"));
  main.append(charts.element, rest);
  watch(topicPath(topic, "/admin/v3/console/live"), charts.on, signal);

  async function refresh() {
    const base = topicPath(topic);
    try {
      const [stats, internal, explained] = await Promise.all([
        get(`${base}/stats`, signal), getOrNull(`${base}/internalStats`, signal, [404, 405]),
        getOrNull(`${base}/explain`, signal, [401, 403, 404, 405]),
      ]);
      if (signal.aborted) return;
      renew(rest, content(topic, stats, internal, explained, rights, refresh));
    } catch (error) {
      if (error.name !== "AbortError") replace(rest, trouble(error));
    }
  }
  await refresh();
  // A request for statistics loads the topic, so do not repeat it for a topic that was unloaded meanwhile.
  keepFresh(() => (charts.isUnloaded ? null : refresh()), signal, 5000);
  return undefined;
}

export function crumbs(topic, subscription) {
  const { domain, tenant, namespace } = topicParts(topic);
  return h("nav", { class: "crumbs", "aria-label": "Location" },
    h("a", { href: `#/?search=${encodeURIComponent(`${tenant}/${namespace}/`)}` }, `${domain}://${tenant}/${namespace}`),
    subscription === undefined ? null : [" / ", h("a", { href: `#/topic/${encodeURIComponent(topic)}` }, topicParts(topic).name)]);
}

function content(topic, stats, internal, explained, rights, refresh) {
  const waiting = new Set(((explained && explained.subscriptions) || []).filter((each) => each.waiting).map((each) => each.subscription));
  const subscriptions = Object.entries(stats.subscriptions).map(([name, each]) => ({ ...each, name, isWaiting: waiting.has(name) }));
  return [
    section("Findings", explained ? explanation(topic, explained, rights, refresh) : onlyForConsumers()),
    facts([
      ["Stored", bytes(stats.storageSize)],
      ["Published since it was loaded", `${number(stats.msgInCounter)} messages`],
      ["Last published", ago(stats.lastPublishTimeStamp)],
      stats.msgInCounter ? ["Average size", bytes(stats.bytesInCounter / stats.msgInCounter)] : null,
      stats.waitingPublishers ? ["Waiting producers", number(stats.waitingPublishers)] : null,
      stats.deduplicationStatus && ["Deduplication", stats.deduplicationStatus],
      stats.openTransactions && ["Open transactions", h("a", { href: "#/transactions" }, number(stats.openTransactions.length))],
    ]),
    section("Subscriptions", table("Subscriptions", [
      { name: "Subscription", cell: (each) => h("a", { class: "name", href: subscriptionLink(topic, each.name) }, each.name) },
      ...SUBSCRIPTION_COLUMNS,
      { name: "State", cell: subscriptionState },
    ], subscriptions, { none: NO_SUBSCRIPTION })),
    section("Producers", table("Producers", [
      { name: "Producer", cell: (each) => each.producerName },
      { name: "In /s", number: true, cell: (each) => number(each.msgRateIn), title: "of the last window of statistics" },
      { name: "Address", cell: (each) => each.address },
      { name: "Access", cell: (each) => each.accessMode },
      { name: "Client", cell: (each) => each.clientVersion || "–" },
      { name: "Connected", cell: (each) => time(Date.parse(each.connectedSince)) },
      { name: "", cell: (each) => [lookButton("Explain", `${topicPath(topic)}/explain${query({ producer: each.producerName })}`, rights, `Producer ${each.producerName}`), " ", actionButton({
        text: "Disconnect", method: "POST", path: `${topicPath(topic)}/producer/${encodeURIComponent(each.producerName)}/disconnect`,
        why: "The broker closes the producer. Its client usually reconnects.",
      }, rights, refresh)] },
    ], stats.publishers, { none: "Nobody publishes." })),
    internal && topicParts(topic).domain === "persistent" && storage(internal),
    h("div", { class: "actions" },
      stats.storageSize > 0 && h("a", { class: "button", href: `#/messages/${encodeURIComponent(topic)}` }, "Show messages"),
      actionButton({ text: "Unload", method: "PUT", path: `${topicPath(topic)}/unload`,
        why: "The topic is closed after all data is written. Clients reconnect and receive unacknowledged messages again." }, rights, refresh)),
  ];
}

/** Findings of the topic, and the first finding of each subscription. */
function explanation(topic, explained, rights, refresh) {
  const found = (explained.subscriptions || []).filter((each) => each.findings.length);
  return [
    findingsList(explained, rights, refresh),
    found.length > 0 && h("ol", { class: "findings" }, found.map((each) => h("li", { class: each.waiting ? "waits" : "informs", "data-keep": each.subscription },
      h("p", { class: "sentence" }, badge(each.waiting ? "stuck" : "for information", each.waiting ? "bad" : "dim"), " ",
        h("a", { href: subscriptionLink(topic, each.subscription) }, each.subscription), ": ", each.findings[0].sentence),
      each.findings.length > 1 && h("p", { class: "note" }, `and ${plural(each.findings.length - 1, "more finding")}`)))),
    explained.moreSubscriptions > 0 && h("p", { class: "note" }, `and ${plural(explained.moreSubscriptions, "more subscription")}`),
  ];
}

export function onlyForConsumers() {
  return h("p", { class: "note" }, "You need permission to consume from this topic to see why messages wait.");
}

export function subscriptionLink(topic, name) {
  return `#/subscription/${encodeURIComponent(topic)}/${encodeURIComponent(name)}`;
}

function subscriptionState(each) {
  const found = [];
  if (each.isWaiting) found.push(badge("waits", "bad"));
  if (each.msgBacklog && !each.consumers.length) found.push(badge("no consumers", "bad"));
  if (each.blockedSubscriptionOnUnackedMsgs) found.push(badge("blocked on unacked", "bad"));
  if (each.drainingHashesCount) found.push(badge(plural(each.drainingHashesCount, "draining hash", "draining hashes"), "warn"));
  if (each.consumers.some((one) => one.blockedConsumerOnUnackedMsgs)) found.push(badge("consumer blocked", "bad"));
  if (each.msgDelayed) found.push(badge(`${number(each.msgDelayed)} delayed`, "dim"));
  return found.length ? h("span", { class: "badges" }, found) : badge(each.msgBacklog ? "at work" : "at the end", "good");
}

function storage(internal) {
  const ledgers = internal.ledgers || [];
  return section("Storage",
    facts([["Ledgers", number(ledgers.length)], ["Entries", number(internal.numberOfEntries)], ["Last entry", internal.lastConfirmedEntry],
      ["State", internal.state]]),
    h("details", {}, h("summary", {}, "Ledgers"), table("Ledgers", [
      { name: "Ledger", cell: (each) => String(each.ledgerId) },
      { name: "Entries", number: true, cell: (each) => number(each.entries) },
      { name: "Size", number: true, cell: (each) => bytes(each.size) },
    ], ledgers.slice(-MAX_LEDGERS), { none: "None." }), ledgers.length > MAX_LEDGERS && h("p", { class: "note" }, `The newest ${MAX_LEDGERS} of ${ledgers.length}.`)),
    h("details", {}, h("summary", {}, "Cursors"), table("Cursors", [
      { name: "Cursor", cell: ([name]) => name },
      { name: "Acknowledged up to", cell: ([, each]) => each.markDeletePosition },
      { name: "Read up to", cell: ([, each]) => each.readPosition },
      { name: "Gaps", number: true, cell: ([, each]) => number(each.totalNonContiguousDeletedMessagesRange) },
    ], Object.entries(internal.cursors || {}))));
}

async function partitionedPage(main, topic, count, signal) {
  const found = h("div", {});
  main.append(h("p", {}, `A partitioned topic of ${plural(count, "partition")}. `), found);
  async function refresh() {
    try {
      const stats = await get(`${topicPath(topic)}/partitioned-stats`, signal);
      replace(found,
        facts([["Messages in", `${number(stats.msgRateIn)} /s`], ["Messages out", `${number(stats.msgRateOut)} /s`],
          ["Stored", bytes(stats.storageSize)], ["Producers", number(stats.publishers.length)],
          ["Subscriptions", number(Object.keys(stats.subscriptions).length)]]),
        section("Partitions", table("Partitions", [
          { name: "Partition", cell: ([name]) => topicLink(name) },
          { name: "In /s", number: true, cell: ([, each]) => number(each.msgRateIn) },
          { name: "Out /s", number: true, cell: ([, each]) => number(each.msgRateOut) },
          { name: "Stored", number: true, cell: ([, each]) => bytes(each.storageSize) },
          { name: "Largest backlog", number: true, cell: ([, each]) => number(Math.max(0, ...Object.values(each.subscriptions).map((one) => one.msgBacklog))) },
        ], Object.entries(stats.partitions))),
        section("Subscriptions", h("p", { class: "note" }, "Sums over all partitions. Open a partition to see its findings."), table("Subscriptions", [
          { name: "Subscription", cell: ([name]) => name },
          ...SUBSCRIPTION_COLUMNS.map((column) => ({ ...column, cell: ([, each]) => column.cell(each) })),
        ], Object.entries(stats.subscriptions), { none: NO_SUBSCRIPTION })));
    } catch (error) {
      if (error.name !== "AbortError") replace(found, trouble(error));
    }
  }
  await refresh();
  keepFresh(refresh, signal, 5000);
}


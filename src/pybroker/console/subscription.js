// One subscription: why it waits, who consumes, who has which hashes, and which messages are held, delayed or left behind.

import { ApiError, get, getOrNull, query, subscriptionPath, topicPath, watch } from "/console/api.js";
import { chart, liveCharts } from "/console/charts.js";
import { actionButton, findingsList, lookButton } from "/console/findings.js";
import { hashesSection, keyForm } from "/console/hashes.js";
import { ago, badge, bytes, facts, h, number, replace, section, table, time, trouble } from "/console/dom.js";
import { keepFresh } from "/console/overview.js";
import { crumbs, onlyForConsumers } from "/console/topic.js";
import { delayedSection, holesSection, unackedSection } from "/console/unacked.js";

export async function subscriptionPage(main, { names: [topic, name], signal }) {
  if (!name) throw new ApiError(412, "The address names no subscription.");
  const base = subscriptionPath(topic, name);
  const rights = await get(`/admin/v3/console/rights${query({ topic, subscription: name })}`, signal);
  main.append(crumbs(topic, name), h("h1", { class: "long" }, name));
  const why = h("div", {});
  const charts = liveCharts([
    chart("Messages a second", [{ field: "messagesOut", name: "out" }, { field: "acknowledged", name: "acknowledged" }, { field: "redelivered", name: "redelivered" }], number),
    chart("Waiting", [{ field: "backlog", name: "backlog" }, { field: "unacked", name: "unacknowledged" }, { field: "delayed", name: "delayed" }], number),
  ]);
  const figures = h("div", {});
  const hashes = h("div", {});
  const lists = h("div", {});
  main.append(why, charts.element, figures, hashes, lists);
  watch(subscriptionPath(topic, name, "/admin/v3/console/live"), charts.on, signal);

  let isListed = false;
  async function refresh() {
    try {
      const [stats, explained, holes] = await Promise.all([
        get(`${topicPath(topic)}/stats?excludePublishers=true`, signal),
        getOrNull(`${base}/explain`, signal, [401, 403, 404, 405]),
        getOrNull(`${base}/ackHoles`, signal, [401, 403, 404, 405]),
      ]);
      if (signal.aborted) return;
      const own = stats.subscriptions[name];
      if (!own) {
        replace(why, h("p", { class: "trouble", role: "alert" }, "There is no such subscription any more."));
        replace(figures); replace(hashes); replace(lists);
        return;
      }
      keepOpen(why, () => replace(why, section("Why it waits", explained ? findingsList(explained, rights, again) : onlyForConsumers())));
      keepOpen(figures, () => replace(figures, content(topic, base, own, holes, rights, again)));
      if (own.type === "Key_Shared") {
        const drawn = await hashesSection(base, own, signal);
        keepOpen(hashes, () => replace(hashes, drawn));
      } else replace(hashes);
      if (!isListed) {
        isListed = true;
        const unacked = unackedSection(topic, base, own.consumers.map((each) => each.consumerName), rights, signal);
        listed = unacked;
        replace(lists, unacked.element, own.type === "Key_Shared" && keyForm(base, rights, signal), delayedSection(topic, base, rights, signal));
      }
    } catch (error) {
      if (error.name !== "AbortError") replace(why, trouble(error));
    }
  }
  let listed = null;
  const again = () => { refresh(); if (listed) listed.load(); };
  await refresh();
  keepFresh(() => (charts.isUnloaded ? null : refresh()), signal, 5000);
}

/** Change what a part shows without closing what somebody has opened, nor taking the focus from where it is. */
function keepOpen(part, change) {
  const mark = (summary) => summary.parentElement.dataset.keep || summary.textContent;
  const open = [...part.querySelectorAll("details[open] > summary")].map(mark);
  const active = part.contains(document.activeElement) ? document.activeElement.textContent : null;
  change();
  for (const summary of part.querySelectorAll("details > summary")) summary.parentElement.open = open.includes(mark(summary));
  if (active) [...part.querySelectorAll("button, a, summary")].find((each) => each.textContent === active)?.focus();
}

function content(topic, base, own, holes, rights, again) {
  return [
    facts([
      ["Type", own.type === "None" ? "none yet" : own.type],
      own.keySharedMode && ["Mode", own.keySharedMode],
      ["Backlog", `${number(own.msgBacklog)} entries, ${bytes(own.backlogSize)}`],
      ["Unacknowledged", own.blockedSubscriptionOnUnackedMsgs ? badge(`${number(own.unackedMessages)}, blocked`, "bad") : number(own.unackedMessages)],
      own.msgDelayed ? ["Delayed", number(own.msgDelayed)] : null,
      own.msgInReplay ? ["To be sent again", number(own.msgInReplay)] : null,
      own.activeConsumerName && ["Active consumer", own.activeConsumerName],
      ["Last acknowledgement", ago(own.lastAckedTimestamp)], ["Last delivery", ago(own.lastConsumedTimestamp)],
      own.pendingAckTransactionCount ? ["Held by transactions", h("a", { href: "#/transactions" }, number(own.pendingAckTransactionCount))] : null,
    ]),
    section("Consumers", table("Consumers", [
      { name: "Consumer", cell: (each) => each.consumerName },
      { name: "Permits", number: true, title: "messages that it has room for", cell: (each) => (each.availablePermits > 0 ? number(each.availablePermits) : badge(number(each.availablePermits), "warn")) },
      { name: "Unacked", number: true, cell: (each) => (each.blockedConsumerOnUnackedMsgs ? badge(`${number(each.unackedMessages)}, blocked`, "bad") : number(each.unackedMessages)) },
      { name: "Out /s", number: true, title: "of the last window of statistics", cell: (each) => number(each.msgRateOut) },
      { name: "Last ack", cell: (each) => ago(each.lastAckedTimestamp) },
      { name: "Last delivery", cell: (each) => ago(each.lastConsumedTimestamp) },
      { name: "Address", cell: (each) => each.address },
      { name: "Client", cell: (each) => each.clientVersion || "–" },
      { name: "Since", cell: (each) => time(Date.parse(each.connectedSince)) },
      { name: "", cell: (each) => [lookButton("Explain", `${base}/explain${query({ consumer: each.consumerName })}`, rights), " ", actionButton({
        text: "Disconnect", method: "POST", path: `${base}/consumer/${encodeURIComponent(each.consumerName)}/disconnect`,
        why: "What it holds is delivered to others, or to itself when it comes back.",
      }, rights, again)] },
    ], own.consumers, { none: "No consumer is connected." })),
    holes && holesSection(topic, holes),
    h("div", { class: "actions" },
      h("a", { class: "button", href: `#/messages/${encodeURIComponent(topic)}?subscription=${encodeURIComponent(base.split("/").pop())}` }, "Look at its messages"),
      actionButton({ text: "Skip all", method: "POST", path: `${base}/skip_all`, why: "Everything that is there now counts as acknowledged, for good." }, rights, again),
      !own.consumers.length && actionButton({ text: "Delete", method: "DELETE", path: base, why: "The subscription is gone for good, and with it what only it kept." }, rights, again)),
  ];
}

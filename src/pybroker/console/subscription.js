// The page of a subscription: findings, consumers, hashes, and unacknowledged, delayed and skipped messages.

import { ApiError, get, getOrNull, query, subscriptionPath, topicPath, watch } from "/console/api.js";
import { chart, liveCharts } from "/console/charts.js";
import { actionButton, findingsList, lookButton } from "/console/findings.js";
import { hashesSection, keyForm } from "/console/hashes.js";
import { ago, badge, bytes, facts, h, number, renew, replace, section, table, time, trouble } from "/console/dom.js";
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
    chart("Messages per second", [{ field: "messagesOut", name: "out" }, { field: "acknowledged", name: "acknowledged" }, { field: "redelivered", name: "redelivered" }], number),
    chart("Waiting", [{ field: "backlog", name: "backlog" }, { field: "unacked", name: "unacknowledged" }, { field: "delayed", name: "delayed" }], number),
  ]);
  const figures = h("div", {});
  const hashes = h("div", {});
  const lists = h("div", {});
  main.append(why, charts.element, figures, hashes, lists);
  watch(subscriptionPath(topic, name, "/admin/v3/console/live"), charts.on, signal);

  let listed = null;
  const again = () => { refresh(); if (listed) listed.load(); };
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
        replace(why, h("p", { class: "trouble", role: "alert" }, "There is no such subscription."));
        replace(figures); replace(hashes); replace(lists);
        listed = null;
        return;
      }
      renew(why, section("Findings", explained ? findingsList(explained, rights, again) : onlyForConsumers()));
      renew(figures, content(topic, name, own, holes, rights, again));
      renew(hashes, own.type === "Key_Shared" && await hashesSection(base, own, signal));
      if (!listed) {
        listed = unackedSection(topic, base, rights, signal);
        replace(lists, listed.element, own.type === "Key_Shared" && keyForm(base, rights, signal), delayedSection(topic, base, rights, signal));
      }
      listed.offer(own.consumers.map((each) => each.consumerName));
    } catch (error) {
      if (error.name !== "AbortError") replace(why, trouble(error));
    }
  }
  await refresh();
  keepFresh(() => (charts.isUnloaded ? null : refresh()), signal, 5000);
}

function content(topic, name, own, holes, rights, again) {
  const base = subscriptionPath(topic, name);
  const readAhead = own.msgInReplay - (own.entriesToRedeliver || 0);
  return [
    facts([
      ["Type", own.type === "None" ? "none yet" : own.type],
      own.keySharedMode && ["Mode", own.keySharedMode],
      ["Backlog", `${number(own.msgBacklog)} entries, ${bytes(own.backlogSize)}`],
      ["Unacknowledged", own.blockedSubscriptionOnUnackedMsgs ? badge(`${number(own.unackedMessages)}, blocked`, "bad") : number(own.unackedMessages)],
      own.msgDelayed ? ["Delayed", number(own.msgDelayed)] : null,
      own.entriesToRedeliver ? ["To be redelivered", number(own.entriesToRedeliver), "a consumer has received them before"] : null,
      readAhead > 0 ? ["Read ahead", number(readAhead), "not delivered; they wait for their consumer"] : null,
      own.activeConsumerName && ["Active consumer", own.activeConsumerName],
      ["Last acknowledgement", ago(own.lastAckedTimestamp)], ["Last delivery", ago(own.lastConsumedTimestamp)],
      own.pendingAckTransactionCount ? ["In open transactions", h("a", { href: "#/transactions" }, number(own.pendingAckTransactionCount))] : null,
    ]),
    section("Consumers", table("Consumers", [
      { name: "Consumer", cell: (each) => each.consumerName },
      { name: "Permits", number: true, title: "messages that it can receive", cell: (each) => (each.availablePermits > 0 ? number(each.availablePermits) : badge(number(each.availablePermits), "warn")) },
      { name: "Unacked", number: true, cell: (each) => (each.blockedConsumerOnUnackedMsgs ? badge(`${number(each.unackedMessages)}, blocked`, "bad") : number(each.unackedMessages)) },
      { name: "Out /s", number: true, title: "of the last window of statistics", cell: (each) => number(each.msgRateOut) },
      { name: "Last ack", cell: (each) => ago(each.lastAckedTimestamp) },
      { name: "Last delivery", cell: (each) => ago(each.lastConsumedTimestamp) },
      { name: "Address", cell: (each) => each.address },
      { name: "Client", cell: (each) => each.clientVersion || "–" },
      { name: "Connected", cell: (each) => time(Date.parse(each.connectedSince)) },
      { name: "", cell: (each) => [lookButton("Explain", `${base}/explain${query({ consumer: each.consumerName })}`, rights, `Consumer ${each.consumerName}`), " ", actionButton({
        text: "Disconnect", method: "POST", path: `${base}/consumer/${encodeURIComponent(each.consumerName)}/disconnect`,
        why: own.consumers.length > 1 ? "Its unacknowledged messages are redelivered to other consumers. Its client reconnects."
          : "Its client reconnects and receives its unacknowledged messages again.",
      }, rights, again)] },
    ], own.consumers, { none: "No consumer is connected." })),
    holes && holesSection(topic, holes),
    h("div", { class: "actions" },
      h("a", { class: "button", href: `#/messages/${encodeURIComponent(topic)}${query({ subscription: name })}` }, "Show messages"),
      actionButton({ text: "Skip all", severity: "irreversible", method: "POST", path: `${base}/skip_all`, why: "All current messages of the subscription count as acknowledged. This cannot be undone." }, rights, again),
      !own.consumers.length && actionButton({ text: "Delete", severity: "irreversible", method: "DELETE", path: base, why: "The subscription is deleted, with the messages that only this subscription retained. This cannot be undone." }, rights, again)),
  ];
}

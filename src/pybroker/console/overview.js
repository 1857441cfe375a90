// The page of all topics: search, order, pages. The broker shares the table among all viewers.

import { get, pause, query, watch } from "/console/api.js";
import { chart, liveCharts } from "/console/charts.js";
import { badge, bytes, facts, field, h, number, plural, renew, replace, say, section, table, time, trouble } from "/console/dom.js";

const ROWS = 50;
const WORST = 10;
const REFRESH_MS = 4000;
// The broker rebuilds its table after two seconds. Rates are computed from two tables.
const FIRST_RATES_MS = 2100;
const COLUMNS = [
  { name: "Topic", sort: "name", cell: (row) => topicLink(row.name) },
  { name: "State", sort: "standing", cell: state },
  { name: "In /s", sort: "messagesIn", number: true, cell: (row) => figure(row, "messagesIn") },
  { name: "Out /s", sort: "messagesOut", number: true, cell: (row) => figure(row, "messagesOut") },
  { name: "Backlog", sort: "backlog", number: true, title: "entries of the slowest subscription", cell: (row) => figure(row, "backlog") },
  { name: "Unacked", sort: "unacked", number: true, title: "delivered messages that are not acknowledged", cell: (row) => figure(row, "unacked") },
  { name: "Stored", sort: "storageBytes", number: true, cell: (row) => (row.loaded ? bytes(row.storageBytes) : "–") },
  { name: "Producers", sort: "producers", number: true, cell: (row) => figure(row, "producers") },
  { name: "Consumers", sort: "consumers", number: true, cell: (row) => figure(row, "consumers") },
];

// Only in a cluster, after the topic's name.
const brokerColumn = (brokers) => ({ name: "Broker", sort: "broker", title: "the owner of the topic's bundle", cell: (row) => ownerOf(row, brokers) });
// The sums of a cluster are the points of the charts, one for each refresh.
const CHART_NOTE = "Sums of the topics that match the search, since you opened this page.";
const CHART_GAP_MS = 15000;
const SUMS = ["messagesIn", "bytesIn", "messagesOut", "bytesOut"];

/** A link to the topic's page at the broker that owns it; Java brokers have no such page. */
function ownerOf(row, { own, byId }) {
  const broker = byId.get(row.broker);
  if (!broker || !broker.isPybroker || row.broker === own) return row.broker || "–";
  return h("a", { href: `${broker.webUrl}/console/#/topic/${encodeURIComponent(row.name)}`, rel: "noreferrer" }, row.broker);
}

function figure(row, name) {
  return row.loaded ? number(row[name]) : "–";
}

function state(row, brokers) {
  if (!row.loaded) return badge(brokers?.byId.get(row.broker)?.problem ? "no figures" : "not loaded", "dim");
  if (row.blocked || row.standing) {
    return h("span", { class: "badges" }, row.blocked ? badge("topic blocked", "bad") : null,
      row.standing ? badge(`${row.standing} of ${row.subscriptions} stuck`, "bad") : null);
  }
  return row.subscriptions ? badge(plural(row.subscriptions, "subscription"), "good") : badge("no subscription", "dim");
}

function columnsOf(answer) {
  if (!answer.brokers) return COLUMNS;
  const [name, ofState, ...others] = COLUMNS;
  return [name, brokerColumn(answer), { ...ofState, cell: (row) => state(row, answer) }, ...others];
}

/** A link to a topic: its local name, then its namespace in small letters. */
export function topicLink(name) {
  const cut = name.lastIndexOf("/") + 1;
  return h("a", { href: `#/topic/${encodeURIComponent(name)}`, class: "name" },
    h("span", { class: "name-own" }, name.slice(cut)), h("span", { class: "name-in" }, name.slice(0, cut)));
}

export async function overviewPage(main, { query: asked, signal, rights }) {
  const wanted = {
    search: asked.get("search") || "", sort: asked.get("sort") || "name",
    order: asked.get("order") || "", offset: Number(asked.get("offset") || 0), loaded: asked.get("loaded") || "",
    broker: asked.get("broker") || "",
  };
  const found = h("div", { class: "found" });
  const totals = h("div", {});
  const search = h("input", { type: "search", name: "search", value: wanted.search, maxlength: 200, placeholder: "words of a name" });
  const loadedOnly = h("input", { type: "checkbox", checked: wanted.loaded === "true" });
  const form = h("form", { class: "search", role: "search", onsubmit: (event) => { event.preventDefault(); open(search.value.trim()); } },
    field("Search topics", search),
    h("label", { class: "check" }, loadedOnly, " loaded ones only"));
  let choice = null;
  main.append(h("h1", {}, "Topics"), totals);
  const charts = liveCharts([
    chart("Messages per second", [{ field: "messagesIn", name: "in" }, { field: "messagesOut", name: "out" }], number),
    chart("Bytes per second", [{ field: "bytesIn", name: "in" }, { field: "bytesOut", name: "out" }], bytes),
  ]);
  const live = h("div", {});
  main.append(live);
  let isLive = false;
  const stuck = h("div", {});
  main.append(stuck, form, found);

  /** Open the topic of a full name, even if it is not in the list. */
  function open(text) {
    if (/^(non-)?persistent:\/\/[^/]+\/[^/]+\/.+/.test(text)) location.hash = `#/topic/${encodeURIComponent(text)}`;
  }
  function change(changes) {
    Object.assign(wanted, { offset: 0 }, changes);
    // The address reproduces this view.
    history.replaceState(null, "", `${location.pathname}#/${query({ ...wanted, offset: wanted.offset || "" })}`);
    return refresh();
  }
  let typed = 0;
  search.addEventListener("input", () => {
    clearTimeout(typed);
    typed = setTimeout(() => change({ search: search.value.trim() }), 200);
  });
  loadedOnly.addEventListener("change", () => change({ loaded: loadedOnly.checked ? "true" : "" }));

  let turn = 0;
  async function refresh() {
    const mine = turn += 1;
    try {
      const answer = await get(`/admin/v3/console/topics${query({ ...wanted, limit: ROWS })}`, signal);
      const worst = answer.sums.standing || answer.sums.blocked || wanted.search ? await get(`/admin/v3/explain${query({ limit: WORST })}`, signal) : null;
      if (mine !== turn || signal.aborted) return;
      if (answer.brokers) answer.byId = new Map(answer.brokers.map((each) => [each.id, each]));
      showLive(answer);
      showChoice(answer);
      renew(stuck, worst && worst.matching > 0 && stuckSection(worst));
      if (wanted.offset && wanted.offset >= answer.matching) {  // Topics were deleted since the page was selected.
        change({ offset: Math.max(0, Math.ceil(answer.matching / ROWS) - 1) * ROWS });
      } else draw(answer);
    } catch (error) {
      if (error.name !== "AbortError" && mine === turn) replace(found, trouble(error));
    }
  }

  /** One broker sends its own points; the points of a cluster are the sums of this list. */
  function showLive(answer) {
    if (!isLive && (answer.brokers || rights.superuser)) {
      isLive = true;
      live.append(charts.element);
      if (answer.brokers) charts.on.begin(["time", ...SUMS], CHART_NOTE, CHART_GAP_MS);
      else watch("/admin/v3/console/live", charts.on, signal);
    }
    if (answer.brokers) charts.on.points([[answer.time, ...SUMS.map((name) => answer.sums[name])]]);
  }

  function showChoice(answer) {
    if (!answer.brokers) return;
    const ids = [...new Set([...answer.brokers.map((each) => each.id), wanted.broker].filter(Boolean))];
    if (choice && [...choice.options].slice(1).map((each) => each.value).join() === ids.join()) return;
    const select = h("select", { name: "broker", onchange: () => change({ broker: select.value }) },
      h("option", { value: "" }, "all brokers"), ids.map((id) => h("option", { value: id, selected: id === wanted.broker }, id)));
    if (choice) choice.replaceWith(select);
    else form.append(field("Broker", select));
    choice = select;
  }

  function draw(answer) {
    const { sums } = answer;
    replace(totals, facts([
      ["Topics", number(answer.all)],
      ["Messages in", `${number(sums.messagesIn)} /s`], ["Messages out", `${number(sums.messagesOut)} /s`],
      ["Backlog", number(sums.backlog), "entries of the slowest subscription of each topic"],
      ["Unacknowledged", number(sums.unacked)], ["Stored", bytes(sums.storageBytes)],
      ["Stuck subscriptions", sums.standing ? badge(number(sums.standing), "bad") : "none", "messages that could be delivered are waiting"],
      ["Blocked topics", sums.blocked ? badge(number(sums.blocked), "bad") : "none", "all producers or readers of the topic are blocked"],
    ]));
    const end = Math.min(wanted.offset + ROWS, answer.matching);
    renew(found,
      answer.isCut && h("p", { class: "notice" }, "There are more topics than consoleMaxTopics, so some are missing here. Search for a full name to find any topic."),
      (answer.brokers || []).filter((each) => each.problem).map((each) =>
        h("p", { class: "notice" }, `Broker ${each.id} ${each.problem}. Its topics are listed without figures.`)),
      table("Topics", columnsOf(answer), answer.topics, {
        sort: { by: wanted.sort, descending: wanted.order === "desc" },
        onsort: (by) => change({ sort: by, order: wanted.sort === by ? (wanted.order === "desc" ? "" : "desc") : (by === "name" || by === "broker" ? "" : "desc") }),
        none: wanted.search ? "No topic has these words in its name." : "There are no topics that you may list.",
        mark: (row) => (row.standing || row.blocked ? "marked" : null),
      }),
      h("nav", { class: "turn", "aria-label": "Pages of topics" },
        h("button", { type: "button", disabled: wanted.offset === 0, onclick: () => change({ offset: Math.max(0, wanted.offset - ROWS) }) }, "Back"),
        h("span", {}, answer.matching ? `${number(wanted.offset + 1)} to ${number(end)} of ${number(answer.matching)}` : "none", ` at ${time(answer.time)}`),
        h("button", { type: "button", disabled: end >= answer.matching, onclick: () => change({ offset: wanted.offset + ROWS }) }, "Next")));
  }

  await refresh();
  say(`${main.querySelector(".turn span")?.textContent || ""} topics`);
  keepFresh(refresh, signal, REFRESH_MS, FIRST_RATES_MS);
}

/** Lists the stuck topics of the broker or cluster, worst first. Each line links to the page with the reasons and remedies. */
function stuckSection(worst) {
  return section("Stuck topics", h("ol", { class: "findings" }, worst.topics.map((each) => h("li", { class: "waits", "data-keep": each.topic },
    h("p", { class: "sentence" }, badge("stuck", "bad"), " ", h("a", { href: `#/topic/${encodeURIComponent(each.topic)}` }, each.topic),
      each.subscription === null ? null : [" / ", h("a", { href: `#/subscription/${encodeURIComponent(each.topic)}/${encodeURIComponent(each.subscription)}` }, each.subscription)],
      ": ", each.finding.sentence),
    each.broker && h("p", { class: "note" }, `Broker ${each.broker}`),
    each.standing > 1 && h("p", { class: "note" }, `${plural(each.standing, "subscription")} of this topic are stuck`)))),
  worst.matching > worst.topics.length && h("p", { class: "note" }, `and ${plural(worst.matching - worst.topics.length, "more topic")}: order the list below by State`));
}

/** Repeat while the page is visible, first after `first` ms. */
export async function keepFresh(refresh, signal, milliseconds = REFRESH_MS, first = milliseconds) {
  for (let next = first; !signal.aborted; next = milliseconds) {
    await pause(next, signal);
    if (!document.hidden && !signal.aborted) await refresh();
  }
}


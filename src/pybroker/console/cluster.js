// The page of the cluster: brokers with their loads, and bundles with their owners and the actions on them.

import { get, query } from "/console/api.js";
import { onlyForSuperUsers } from "/console/broker.js";
import { actionButton, confirmAndCall } from "/console/findings.js";
import { ago, badge, bytes, duration, facts, field, h, number, openDialog, plural, renew, replace, section, table, trouble } from "/console/dom.js";
import { keepFresh } from "/console/overview.js";

const BASE = "/admin/v3/console/cluster";
const ROWS = 50;
const STATES = { owned: "good", "no owner": "dim", unloading: "warn" };

export async function clusterPage(main, { query: asked, signal, rights }) {
  main.append(h("h1", {}, "Cluster"));
  if (!rights.superuser) { main.append(onlyForSuperUsers(rights)); return; }
  const wanted = { search: asked.get("search") || "", offset: Number(asked.get("offset") || 0) };
  const brokers = h("div", {});
  const found = h("div", { class: "found" });
  const search = h("input", { type: "search", name: "search", value: wanted.search, maxlength: 200, placeholder: "tenant/namespace" });
  const form = h("form", { class: "search", role: "search", onsubmit: (event) => event.preventDefault() }, field("Search bundles", search));
  main.append(brokers, section("Bundles", form, found));

  function change(changes) {
    Object.assign(wanted, { offset: 0 }, changes);
    history.replaceState(null, "", `${location.pathname}#/cluster${query({ search: wanted.search, offset: wanted.offset || "" })}`);
    return refresh();
  }
  let typed = 0;
  search.addEventListener("input", () => {
    clearTimeout(typed);
    typed = setTimeout(() => change({ search: search.value.trim() }), 200);
  });

  let turn = 0;
  async function refresh() {
    const mine = turn += 1;
    try {
      const cluster = await get(BASE, signal);
      const page = await get(`${BASE}/bundles${query({ ...wanted, offset: wanted.offset || "", limit: ROWS })}`, signal);
      if (mine !== turn || signal.aborted) return;
      renew(brokers, brokersOf(cluster));
      renew(found, bundlesOf(page, cluster, rights, refresh, wanted, change));
    } catch (error) {
      if (error.name !== "AbortError" && mine === turn) replace(brokers, trouble(error));
    }
  }
  await refresh();
  keepFresh(refresh, signal);
}

function brokersOf(cluster) {
  const unusable = Object.entries(cluster.unusable);
  return [
    facts([
      ["Cluster", cluster.cluster], ["Brokers", number(cluster.brokers.length)],
      ["Leader", cluster.leader || badge("none", "warn"), "the broker that assigns bundles to brokers"],
    ]),
    unusable.map(([id, reason]) => h("p", { class: "trouble" }, `The registration of broker ${id} cannot be used: ${reason}.`)),
    section("Brokers", table("Brokers", [
      { name: "Broker", cell: (each) => (each.id === cluster.own ? h("b", {}, each.id) : h("a", { href: `${each.webUrl}/console/#/cluster`, rel: "noreferrer" }, each.id)) },
      { name: "Address", cell: (each) => h("code", {}, each.serviceUrl) },
      { name: "Version", cell: (each) => `${each.isPybroker ? "pybroker" : "Java"} ${each.version}` },
      { name: "Since", cell: (each) => (each.startedAt ? duration(cluster.time - each.startedAt) : "–") },
      { name: "Role", cell: (each) => h("span", { class: "badges" }, each.id === cluster.leader ? badge("leader", "good") : null, each.id === cluster.own ? badge("this broker", "dim") : null) },
      { name: "Load", number: true, title: "the most used resource, in percent", cell: (each) => (each.usagePercent === undefined ? "–" : `${number(each.usagePercent)} %`) },
      { name: "Messages /s", number: true, cell: (each) => rates(each, number, "messages") },
      { name: "Bytes /s", number: true, cell: (each) => rates(each, bytes, "bytes") },
      { name: "Topics", number: true, cell: (each) => number(each.topics) },
      { name: "Bundles", number: true, title: "with loaded topics", cell: (each) => number(each.bundles) },
      { name: "Reported", cell: (each) => (each.measuredAt ? ago(each.measuredAt) : "–") },
    ], cluster.brokers)),
  ];
}

/** Incoming and outgoing rates; a dash without figures. */
function rates(each, format, kind) {
  return each[`${kind}In`] === undefined ? "–" : `${format(each[`${kind}In`])} in, ${format(each[`${kind}Out`])} out`;
}

function bundlesOf(page, cluster, rights, refresh, wanted, change) {
  const end = Math.min(wanted.offset + ROWS, page.matching);
  return [
    table("Bundles", [
      { name: "Bundle", cell: (each) => h("span", { class: "name" }, h("span", { class: "name-own" }, each.range), h("span", { class: "name-in" }, each.namespace)) },
      { name: "Owner", cell: (each) => each.owner || "–" },
      { name: "State", cell: (each) => badge(each.state, STATES[each.state] || "bad") },
      { name: "Topics", number: true, cell: (each) => number(each.topics) },
      { name: "Messages /s", number: true, cell: (each) => rates(each, number, "messages") },
      { name: "", cell: (each) => h("span", { class: "action-row" },
        each.owner && actionButton(action(cluster, each, "Unload"), rights, refresh),
        cluster.brokers.length > 1 && transferButton(cluster, each, refresh),
        actionButton(action(cluster, each, "Split"), rights, refresh)) },
    ], page.bundles, { none: wanted.search ? "No bundle has these words in its name." : "There are no namespaces." }),
    h("nav", { class: "turn", "aria-label": "Pages of bundles" },
      h("button", { type: "button", disabled: wanted.offset === 0, onclick: () => change({ offset: Math.max(0, wanted.offset - ROWS) }) }, "Back"),
      h("span", {}, page.matching ? `${number(wanted.offset + 1)} to ${number(end)} of ${plural(page.matching, "bundle")}` : "none"),
      h("button", { type: "button", disabled: end >= page.matching, onclick: () => change({ offset: wanted.offset + ROWS }) }, "Next")),
  ];
}

const WHY = {
  Unload: "The topics of the bundle are closed and their clients reconnect. The leader assigns the bundle to a broker when a client looks up one of its topics.",
  Split: "The bundle is divided by defaultNamespaceBundleSplitAlgorithm. Clients stay connected.",
};

/** An action on a bundle. In a cluster, the broker of this page sends it to the owner. */
function action(cluster, bundle, text, destination) {
  const rest = `/${bundle.namespace}/${bundle.range}/${text === "Split" ? "split" : "unload"}${query({ destinationBroker: destination })}`;
  const path = `/admin/v2/namespaces${rest}`;
  return {
    text, severity: "disruptive", method: "PUT", path: cluster.isShared ? `${BASE}${rest}` : path, why: WHY[text],
    command: `pybroker api PUT ${destination ? `'${path}'` : path} --yes`,
  };
}

function transferButton(cluster, bundle, done) {
  return h("button", { type: "button", class: "action", onclick: () => {
    const select = h("select", { name: "destination" }, cluster.brokers.filter((each) => each.id !== bundle.owner)
      .map((each) => h("option", { value: each.id }, each.usagePercent === undefined ? each.id : `${each.id} (${number(each.usagePercent)} %)`)));
    const dialog = openDialog("Transfer the bundle", h("p", {}, `${bundle.namespace}/${bundle.range}`), field("To broker", select),
      h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
        h("button", { type: "button", class: "main", onclick: () => {
          dialog.close();
          confirmAndCall({ ...action(cluster, bundle, "Transfer", select.value),
            why: `The topics of the bundle are closed, and broker ${select.value} serves them. Clients reconnect.` }, done);
        } }, "Continue")));
  } }, "Transfer");
}

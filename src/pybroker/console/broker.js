// The page of this broker: health, memory, limits, settings.

import { get, watch } from "/console/api.js";
import { chart, liveCharts } from "/console/charts.js";
import { badge, bytes, duration, facts, h, number, replace, section, table, time, trouble } from "/console/dom.js";
import { keepFresh } from "/console/overview.js";

const SETTINGS = 20;

export async function brokerPage(main, { signal, rights }) {
  main.append(h("h1", {}, "Broker"));
  if (!rights.superuser) { main.append(onlyForSuperUsers(rights)); return; }
  const head = h("div", {});
  const figures = h("div", {});
  const settings = h("div", {});
  const charts = liveCharts([
    chart("Processor, percent of a core", [{ field: "cpuPercent", name: "broker" }], number),
    chart("Disk", [{ field: "diskFreeBytes", name: "free" }], bytes),
  ]);
  main.append(head, charts.element, figures, settings);
  watch("/admin/v3/console/live", charts.on, signal);
  async function refresh() {
    try {
      const broker = await get("/admin/v3/console/broker", signal);
      replace(head, overview(broker, charts.newest));
      replace(figures, content(broker));
    } catch (error) {
      if (error.name !== "AbortError") replace(head, trouble(error));
    }
  }
  await refresh();
  await showSettings(settings, signal);
  keepFresh(refresh, signal);
}

export function onlyForSuperUsers(rights) {
  return h("p", { class: "notice" }, `${rights.role ? `Role ${rights.role}` : "You"} may not see this page: it is for superusers.`);
}

function meter(used, bound) {
  return h("meter", { min: 0, max: Math.max(1, bound), high: bound * 0.9, value: Math.min(used, bound), "aria-label": `${bytes(used)} of ${bytes(bound)}` });
}

function overview(broker, live) {
  return [
    broker.unready ? h("p", { class: "trouble", role: "alert" }, `The broker is not ready for clients: ${broker.unready}`) : null,
    facts([
      ["State", broker.unready ? badge("not ready", "bad") : badge("ready", "good")],
      ["Version", broker.version], ["Frame decoder", broker.wireCore], ["Cluster", broker.cluster], ["Address", broker.brokerId],
      ["Started", time(broker.startedAt)], ["Up for", duration(broker.time - broker.startedAt)],
      ["Loaded topics", number(broker.loadedTopics)],
      ["Processor of the broker", live && live.cpuPercent !== null ? `${number(live.cpuPercent)} %` : "–", "of one core, in the last seconds"],
      ["Processor of the machine", `${number(broker.cpuPercent)} of ${number(broker.cpuLimitPercent)} %`, "all processes, 100 % for each core, in the last window of statistics"],
      ["Memory", `${bytes(broker.residentBytes)} of ${bytes(broker.memoryLimitBytes)}`, "resident, of brokerMemoryLimitMB"],
      broker.diskBytes ? ["Disk", `${bytes(broker.diskFreeBytes)} of ${bytes(broker.diskBytes)} free`, "the file system of the data directory"] : null,
      ["Event loop", `${number(broker.loopLagMs)} ms late`],
    ]),
  ];
}

function content(broker) {
  return [
    section("Memory", table("Parts of the memory", [
      { name: "Part", cell: (each) => each.part },
      { name: "Used", number: true, cell: (each) => bytes(each.usedBytes) },
      { name: "At most", number: true, cell: (each) => bytes(each.boundBytes) },
      { name: "Share", cell: (each) => meter(each.usedBytes, each.boundBytes) },
      { name: "Waiting", number: true, cell: (each) => (each.waiting ? badge(number(each.waiting), "bad") : "0") },
      { name: "Longest wait", number: true, cell: (each) => duration(each.longestWaitMs) },
      { name: "Waits since the start", number: true, cell: (each) => number(each.waitsTotal) },
    ], broker.memory)),
    section("Limits", table("Limits", [
      { name: "What", cell: (each) => each.what },
      { name: "Now", number: true, cell: (each) => number(each.used) },
      { name: "At most", number: true, cell: (each) => (each.limit ? number(each.limit) : "no limit") },
      { name: "Key", cell: (each) => h("code", {}, each.key) },
    ], broker.limits)),
  ];
}

async function showSettings(place, signal) {
  const values = Object.entries(await get("/admin/v2/brokers/configuration/runtime", signal));
  const changeable = new Set(await get("/admin/v2/brokers/configuration", signal));
  const filter = h("input", { type: "search", placeholder: "part of a key" });
  const found = h("div", {});
  const draw = () => {
    const rows = values.filter(([name]) => name.toLowerCase().includes(filter.value.trim().toLowerCase()));
    replace(found, table("Settings", [
      { name: "Key", cell: ([name]) => h("code", {}, name) },
      { name: "In force", cell: ([, value]) => (value === "" ? h("span", { class: "note" }, "empty") : h("code", {}, value)) },
      { name: "", cell: ([name]) => changeable.has(name) && badge("can be changed at run time", "dim") },
    ], rows.slice(0, SETTINGS)), rows.length > SETTINGS && h("p", { class: "note" }, `The first ${SETTINGS} of ${rows.length}. Search for part of a key to find others.`));
  };
  filter.addEventListener("input", draw);
  replace(place, section("Settings", h("label", { class: "field short" }, h("span", {}, "Search settings"), filter), found));
  draw();
}

// Findings of `explain`, and the suggested calls. A call is confirmed before it is sent, and needs its permission.

import { act, callerInShell, get } from "/console/api.js";
import { ago, badge, bytes, duration, h, number, openDialog, replace, say, table, time, trouble } from "/console/dom.js";

const IRREVERSIBLE = "irreversible";
const MAX_ANSWER = 100000;

/** Return the permission that the caller lacks for a call (docs/reference/rest.md), or null. */
function rightFor(action, rights) {
  if (rights.superuser || !rights.authorization) return null;
  const path = action.path || "";
  if (/\/(persistent|non-persistent)\/[^/]+\/[^/]+\/[^/]+\/(subscription|all_subscription)\//.test(path)) {
    return rights.topic && rights.topic.consume ? null : "the permission to consume";
  }
  if (/\/brokers\//.test(path) || /\/transactions\//.test(path)) return "superuser permission";
  return rights.topic && rights.topic.administer ? null : "tenant administrator permission";
}

/** A button that sends a call after confirmation, then calls `done`. */
export function actionButton(action, rights, done) {
  const lacks = rightFor(action, rights);
  if (action.method === "GET") return h("span", { class: "action-row" }, lookButton(action.text, action.path, rights));
  const why = lacks ? `This needs ${lacks}, which ${rights.role ? `role ${rights.role}` : "you"} does not have.` : null;
  const button = h("button", {
    type: "button", class: action.severity === IRREVERSIBLE ? "action danger" : "action", "aria-disabled": lacks ? "true" : null, title: why || `${action.method} ${action.path}`,
    onclick: () => { if (lacks) say(why); else confirmAndCall(action, done); },
  }, action.text);
  return h("span", { class: "action-row" }, button, lacks && h("span", { class: "note" }, why));
}

/** A button that shows the result of `explain` or another read. `title` explains it. */
export function lookButton(text, path, rights, title = text) {
  return h("button", { type: "button", class: "action", title: path, onclick: () => look(title, path, rights) }, text);
}

/** Show a result: findings as text, anything else as JSON. */
async function look(title, path, rights) {
  const shown = h("div", {}, "…");
  const close = () => dialog.close();
  const dialog = openDialog(title, shown, h("div", { class: "buttons" }, h("button", { type: "button", onclick: close }, "Close")));
  try {
    const answer = await get(path);
    replace(shown, answer && Array.isArray(answer.findings)
      ? findingsList(answer, rights, close)
      : h("pre", { class: "code answer", tabindex: 0 }, JSON.stringify(answer, null, 2).slice(0, MAX_ANSWER)));
  } catch (error) {
    replace(shown, trouble(error));
  }
}

/** Shows the call in a dialog and sends it after confirmation. An irreversible call also needs a checked box. */
export function confirmAndCall(action, done) {
  const outcome = h("div", { role: "status" });
  const isIrreversible = action.severity === IRREVERSIBLE;
  const understood = h("input", { type: "checkbox", name: "understood", onchange: () => { go.disabled = !understood.checked; } });
  const go = h("button", { type: "button", class: isIrreversible ? "danger" : "main", disabled: isIrreversible, onclick: async () => {
    go.disabled = true;
    replace(outcome, "At work …");
    try {
      await act(action.method, action.path, action.body);
      say(`Done: ${action.text}`);
      dialog.close();
      if (done) done();
    } catch (error) {
      go.disabled = false;
      replace(outcome, trouble(error));
    }
  } }, action.text);
  const dialog = openDialog(`${action.text}?`,
    action.why && h("p", {}, action.why),
    isIrreversible && h("p", { class: "trouble" }, "This is irreversible."),
    h("p", {}, "Request to the broker:"),
    h("pre", { class: "code" }, `${action.method} ${action.path}${action.body === undefined ? "" : `\n${JSON.stringify(action.body, null, 2)}`}`),
    action.command && h("p", { class: "note" }, "On the command line: ", h("code", {}, inShell(action.command))),
    isIrreversible && h("label", { class: "check" }, understood, " I understand that this cannot be undone"),
    outcome,
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), go));
}

/** Completes a command for this broker and the signed-in user. It contains a variable instead of the secret. */
function inShell(command) {
  return `${callerInShell()}${command.replace(/^pybroker/, `pybroker --url ${location.origin}`)}`;
}

/** The evidence: a table of the first rows, and single facts, as the broker prepared them. */
function evidence(finding) {
  const { table: listed, facts: values = [] } = finding;
  return [
    listed && table("Evidence", listed.columns.map((column, index) => ({
      name: column.title, number: column.kind === "number", cell: (row) => shown(column.kind, row[index]),
    })), listed.rows, { class: "evidence-table" }),
    listed && listed.more > 0 && h("p", { class: "note" }, `and ${number(listed.more)} more`,
      finding.moreCommand && [", all of them with: ", h("code", {}, inShell(finding.moreCommand))]),
    values.length > 0 && h("dl", { class: "evidence" }, values.map((each) =>
      h("div", {}, h("dt", {}, each.title), h("dd", {}, shown(each.kind, each.value))))),
  ];
}

/** Format a value by its kind (docs/how-to/explain.md). */
function shown(kind, value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") {
    if (kind === "since") return duration(Math.max(0, Date.now() - value));
    if (kind === "time") return `${time(value)} (${value < Date.now() ? ago(value) : `in ${duration(value - Date.now())}`})`;
    if (kind === "duration") return duration(value);
    if (kind === "bytes") return bytes(value);
    if (kind === "number") return number(value);
  }
  return String(value);
}

function actionItem(action, rights, done) {
  return h("li", {},
    action.method && action.path ? actionButton(action, rights, done) : h("span", {}, action.text),
    action.cost && h("span", { class: "note" }, ` ${action.cost}`),
    action.command && h("code", { class: "command" }, inShell(action.command)));
}

function findingItem(finding, rights, done) {
  const actions = finding.actions || [];
  return h("li", { class: finding.waits ? "waits" : "informs", "data-code": finding.code, "data-keep": finding.code },
    h("p", { class: "sentence" }, badge(finding.waits ? "blocks messages" : "for information", finding.waits ? "bad" : "dim"), " ", finding.sentence),
    h("p", { class: "note" }, h("code", {}, finding.code), finding.since ? ` for ${duration(Date.now() - finding.since)}, since ${time(finding.since)}` : ""),
    evidence(finding),
    finding.why && h("p", {}, h("b", {}, "Why: "), finding.why, finding.guide && h("span", { class: "note" }, ` See "${finding.guide}" in the how-to guides.`)),
    finding.advice && h("p", {}, h("b", {}, "What to do: "), finding.advice),
    actions.length > 0 && h("ol", { class: "to-do" }, actions.map((action) => actionItem(action, rights, done))));
}

/** The headline of an explanation and its findings, most important first. */
export function findingsList(explained, rights, done) {
  const { findings, headline } = explained;
  return [
    headline && h("p", { class: "headline" }, badge(explained.waiting ? "stuck" : "well", explained.waiting ? "bad" : "good"), " ", h("b", {}, headline.text),
      headline.since ? ` for ${duration(Date.now() - headline.since)}, since ${time(headline.since)}` : ""),
    findings.length > 0 && h("ol", { class: "findings" }, findings.map((finding) => findingItem(finding, rights, done))),
  ];
}

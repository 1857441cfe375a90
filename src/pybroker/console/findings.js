// Findings of `explain` in words, and the calls that mend them: each is asked about before it is made, and needs its right.

import { act, callerInShell, get } from "/console/api.js";
import { ago, badge, bytes, duration, h, number, openDialog, replace, say, time, trouble } from "/console/dom.js";

const IRREVERSIBLE = "irreversible";
const MAX_ANSWER = 100000;
const MAX_ITEMS = 20;

/** Which right a call needs, as docs/reference/rest.md has it: what is done with a subscription `consume`, with the rest of a topic `administer`. */
function rightFor(action, rights) {
  if (rights.superuser || !rights.authorization) return null;
  const path = action.path || "";
  if (/\/(persistent|non-persistent)\/[^/]+\/[^/]+\/[^/]+\/(subscription|all_subscription)\//.test(path)) {
    return rights.topic && rights.topic.consume ? null : "the right to consume";
  }
  if (/\/brokers\//.test(path) || /\/transactions\//.test(path)) return "to be a super user";
  return rights.topic && rights.topic.administer ? null : "to administer the tenant";
}

/** A button that makes a call once it is confirmed; `done` is called afterwards. */
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

/** A button that shows what `explain`, or another look, answers; `title` says more of it than its text. */
export function lookButton(text, path, rights, title = text) {
  return h("button", { type: "button", class: "action", title: path, onclick: () => look(title, path, rights) }, text);
}

/** What a suggested look shows: findings in words, anything else as it is. */
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
    isIrreversible && h("p", { class: "trouble" }, "This is irreversible: what is lost by it is lost for good."),
    h("p", {}, "The broker is asked for:"),
    h("pre", { class: "code" }, `${action.method} ${action.path}${action.body === undefined ? "" : `\n${JSON.stringify(action.body, null, 2)}`}`),
    action.command && h("p", { class: "note" }, "On the command line: ", h("code", {}, inShell(action.command))),
    isIrreversible && h("label", { class: "check" }, understood, " I understand that this cannot be undone"),
    outcome,
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Leave it"), go));
}

/** Completes a command for this broker and the signed-in user. It contains a variable instead of the secret. */
function inShell(command) {
  return `${callerInShell()}${command.replace(/^pybroker/, `pybroker --url ${location.origin}`)}`;
}

function evidence(values) {
  const pairs = Object.entries(values || {});
  return pairs.length > 0 && h("details", {}, h("summary", {}, "What this is seen by"), h("dl", { class: "evidence" }, pairs.map(([name, value]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, shown(name, value))))));
}

/** A value of the evidence as people read it; what kind it is, its name says. */
function shown(name, value) {
  if (value === null || value === undefined) return "–";
  if (Array.isArray(value)) {
    const first = value.slice(0, MAX_ITEMS).map((each) => shown(name, each));
    const more = value.length > MAX_ITEMS ? `and ${number(value.length - MAX_ITEMS)} more` : null;
    if (first.every((each) => typeof each === "string")) return [...first, more].filter(Boolean).join(", ") || "none";
    return h("ul", {}, first.map((each) => h("li", {}, each)), more && h("li", {}, more));
  }
  if (typeof value === "object") {
    return h("span", {}, Object.entries(value).map(([part, each], index) => [index ? " · " : "", h("span", { class: "note" }, `${part} `), shown(part, each)]));
  }
  if (typeof value === "number") {
    if (/(At|Time|[sS]ince)$/.test(name)) return `${time(value)} (${value < Date.now() ? ago(value) : `in ${duration(value - Date.now())}`})`;
    if (/Ms$/.test(name)) return duration(value);
    if (/[bB]ytes$/.test(name)) return bytes(value);
  }
  return String(value);
}

/** A list of findings, the one to mend first in front. */
export function findingsList(explained, rights, done) {
  const { findings } = explained;
  if (!findings.length) {
    return h("p", { class: "well" }, badge("well", "good"), explained.waiting ? " Something waits, and no reason is known." : " Nothing waits without being on its way.");
  }
  return h("ol", { class: "findings" }, findings.map((finding) => h("li", { class: finding.waits ? "waits" : "informs", "data-code": finding.code, "data-keep": finding.code },
    h("p", { class: "sentence" }, badge(finding.waits ? "waits" : "good to know", finding.waits ? "bad" : "dim"), " ", finding.sentence),
    h("p", { class: "note" }, h("code", {}, finding.code), finding.since ? ` · for ${duration(Date.now() - finding.since)}` : ""),
    evidence(finding.evidence),
    (finding.actions || []).length > 0 && h("div", { class: "actions" }, finding.actions.map((action) => (action.method && action.path
      ? actionButton(action, rights, done)
      : h("span", { class: "action-row" }, h("span", {}, action.text), action.command && h("code", {}, action.command))))))));
}

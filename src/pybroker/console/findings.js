// Findings of `explain` in words, and the calls that mend them: each is asked about before it is made, and needs its right.

import { act, get } from "/console/api.js";
import { badge, duration, h, replace, say } from "/console/dom.js";

/** Which right a call needs, as docs/admin-rest.md has it: what is done with a subscription `consume`, with the rest of a topic `administer`. */
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
    type: "button", class: "action", "aria-disabled": lacks ? "true" : null, title: why || `${action.method} ${action.path}`,
    onclick: () => { if (lacks) say(why); else confirmAndCall(action, done); },
  }, action.text);
  return h("span", { class: "action-row" }, button, lacks && h("span", { class: "note" }, why));
}

/** A button that shows what `explain`, or another look, answers. */
export function lookButton(text, path, rights) {
  return h("button", { type: "button", class: "action", title: path, onclick: () => look({ text, path }, rights) }, text);
}

/** What a suggested look shows: findings in words, anything else as it is. */
async function look(action, rights) {
  const shown = h("div", {}, "…");
  const close = () => { dialog.close(); dialog.remove(); };
  const dialog = h("dialog", { "aria-labelledby": "look", oncancel: () => dialog.remove() }, h("h2", { id: "look" }, action.text), shown,
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: close }, "Close")));
  document.body.append(dialog);
  dialog.showModal();
  try {
    const answer = await get(action.path, new AbortController().signal);
    replace(shown, answer && Array.isArray(answer.findings)
      ? findingsList(answer, rights, close)
      : h("pre", { class: "code answer", tabindex: 0 }, JSON.stringify(answer, null, 2).slice(0, 100000)));
  } catch (error) {
    replace(shown, h("p", { class: "trouble" }, error.reason || error.message));
  }
}

/** Ask, and make the call. The dialog says what is called, so that nobody has to trust a label. */
export function confirmAndCall(action, done) {
  const outcome = h("p", { role: "status" });
  const close = () => { dialog.close(); dialog.remove(); };
  const go = h("button", { type: "button", class: "main", onclick: async () => {
    go.disabled = true;
    replace(outcome, "At work …");
    try {
      await act(action.method, action.path, action.body);
      say(`Done: ${action.text}`);
      close();
      if (done) done();
    } catch (error) {
      go.disabled = false;
      outcome.className = "trouble";
      replace(outcome, error.reason || error.message);
    }
  } }, action.text);
  const dialog = h("dialog", { "aria-labelledby": "ask", oncancel: () => dialog.remove() },
    h("h2", { id: "ask" }, `${action.text}?`),
    action.why && h("p", {}, action.why),
    h("p", {}, "The broker is asked for:"),
    h("pre", { class: "code" }, `${action.method} ${action.path}${action.body === undefined ? "" : `\n${JSON.stringify(action.body, null, 2)}`}`),
    action.command && h("p", { class: "note" }, "On the command line: ", h("code", {}, action.command)),
    outcome,
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: close }, "Leave it"), go));
  document.body.append(dialog);
  dialog.showModal();
}

function evidence(values) {
  const pairs = Object.entries(values || {});
  if (!pairs.length) return null;
  return h("details", {}, h("summary", {}, "What this is seen by"), h("dl", { class: "evidence" }, pairs.map(([name, value]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, typeof value === "object" ? JSON.stringify(value) : String(value))))));
}

/** A list of findings, the one to mend first in front. */
export function findingsList(explained, rights, done) {
  const { findings } = explained;
  if (!findings.length) {
    return h("p", { class: "well" }, badge("well", "good"), explained.waiting ? " Something waits, and no reason is known." : " Nothing waits without being on its way.");
  }
  return h("ol", { class: "findings" }, findings.map((finding) => h("li", { class: finding.waits ? "waits" : "informs", "data-code": finding.code },
    h("p", { class: "sentence" }, badge(finding.waits ? "waits" : "good to know", finding.waits ? "bad" : "dim"), " ", finding.sentence),
    h("p", { class: "note" }, h("code", {}, finding.code), finding.since ? ` · for ${duration(Date.now() - finding.since)}` : ""),
    evidence(finding.evidence),
    (finding.actions || []).length > 0 && h("div", { class: "actions" }, finding.actions.map((action) => (action.method && action.path
      ? actionButton(action, rights, done)
      : h("span", { class: "action-row" }, h("span", {}, action.text), action.command && h("code", {}, action.command))))))));
}

// The frame of all pages: routing, the user's credentials, and colours. A page is a function that fills `main`.

import {
  ApiError, endSession, getOrNull, isKept, isSignedIn, returnToPlace, signIn, signInWithOpenId, signOut, topicPath, waysToSignIn,
} from "/console/api.js";
import { closeDialogs, field, h, openDialog, replace, say, trouble } from "/console/dom.js";
import { brokerPage } from "/console/broker.js";
import { clusterPage } from "/console/cluster.js";
import { docsPage } from "/console/docs.js";
import { messagesPage } from "/console/messages.js";
import { overviewPage } from "/console/overview.js";
import { subscriptionPage } from "/console/subscription.js";
import { topicPage } from "/console/topic.js";
import { transactionsPage } from "/console/transactions.js";

const PAGES = {
  "": { title: "Topics", show: overviewPage, menu: "Topics" },
  topic: { title: "Topic", show: atOwner(topicPage) },
  subscription: { title: "Subscription", show: atOwner(subscriptionPage) },
  messages: { title: "Messages", show: atOwner(messagesPage) },
  transactions: { title: "Transactions", show: transactionsPage, menu: "Transactions" },
  broker: { title: "Broker", show: brokerPage, menu: "Broker" },
  cluster: { title: "Cluster", show: clusterPage, menu: "Cluster" },
  docs: { title: "Interface", show: docsPage, menu: "Interface" },
};
const THEME = "pybroker.theme";

const main = document.getElementById("main");
const menu = document.getElementById("pages");
let shown = null;
let ways = { openid: false, session: false }; // how users sign in

/** Parse the address: a page, its names in order, and a query. */
function address() {
  const hash = location.hash.replace(/^#\/?/, "") || (location.pathname.startsWith("/docs") ? "docs" : "");
  const [path, text] = hash.split("?");
  const [name, ...names] = path.split("/");
  return { name: Object.hasOwn(PAGES, name) ? name : "", names: names.map(decoded), query: new URLSearchParams(text || "") };
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

/** A page of a topic. If another broker of the cluster serves the topic, it leads to the console of that broker. */
function atOwner(page) {
  return async (main, asked) => {
    const [topic] = asked.names;
    const owner = await getOrNull(topicPath(topic, "/admin/v3/console/cluster/owner"), asked.signal, [401, 403, 404, 500, 503]);
    if (!owner || owner.isHere) return page(main, asked);
    main.append(h("h1", { class: "long" }, topic),
      h("p", { class: "notice" }, `Broker ${owner.broker} serves this topic. `,
        h("a", { href: `${owner.webUrl}/console/${location.hash}`, rel: "noreferrer" }, "Open this page there"), "."));
    return undefined;
  };
}

async function show() {
  if (shown) shown.abort();
  closeDialogs();
  const stop = shown = new AbortController();
  const { name, names, query } = address();
  const page = PAGES[name];
  document.title = `${names.length ? `${names[names.length - 1]} · ` : ""}${page.title} · pybroker`;
  for (const link of menu.children) {
    if (link.dataset.page === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.setAttribute("aria-busy", "true");
  replace(main);
  try {
    const rights = await getOrNull("/admin/v3/console/rights", stop.signal, [401]);
    if (stop.signal.aborted) return;
    document.getElementById("who").textContent = rights && rights.role ? rights.role : "";
    if (!rights) await askForCredentials();
    document.getElementById("sign-out").hidden = !isSignedIn();
    if (!rights) return;
    await page.show(main, { names, query, signal: stop.signal, rights });
  } catch (error) {
    if (error.name === "AbortError" || stop.signal.aborted) return;
    if (!(error instanceof ApiError)) console.error(error);
    if (!main.querySelector("h1")) main.prepend(h("h1", {}, page.title));
    main.append(trouble(error));
    if (error.status === 0) setTimeout(() => { if (shown === stop) show(); }, 3000);
  } finally {
    if (shown === stop) {
      main.setAttribute("aria-busy", "false");
      say(`${page.title} ${names.join(" ")}`);
    }
  }
}

/** The form for credentials. `done` is called when they have been stored. */
function signInForm(ways, isKeeping, done, ...introduction) {
  const token = h("textarea", { name: "token", rows: 4, autocomplete: "off", spellcheck: "false", autofocus: true });
  const user = h("input", { name: "user", autocomplete: "off" });
  const password = h("input", { name: "password", type: "password", autocomplete: "off" });
  const keep = h("input", { type: "checkbox", name: "keep" });
  keep.checked = isKeeping;
  return h("form", { class: "sign-in", onsubmit: (event) => {
    event.preventDefault();
    if (token.value.trim()) signIn("Bearer", token.value, keep.checked);
    else signIn("Basic", `${user.value}:${password.value}`, keep.checked);
    done();
  } },
  introduction,
  ways.openid && h("p", {}, h("button", { type: "button", class: "openid", onclick: signInWithOpenId }, "Sign in with OpenID Connect")),
  ways.openid && h("p", { class: "or" }, "or"),
  field("Token", token),
  h("p", { class: "or" }, "or"),
  field("User", user), field("Password", password),
  h("label", { class: "check" }, keep, " store the credentials until this tab is closed"),
  h("button", { type: "submit" }, "Sign in"));
}

async function askForCredentials() {
  ways = await waysToSignIn();
  const form = signInForm(ways, false, show,
    h("h1", {}, "Sign in"),
    h("p", {}, "This broker requires authentication. Your credentials are sent in the Authorization header and are lost when you leave this page."),
    isSignedIn() && h("p", { class: "trouble", role: "alert" }, "The broker does not accept these credentials; they may have expired."));
  signOut();
  replace(main, form);
  form.querySelector("textarea").focus();
}

/** Offer to renew credentials that expire at `expiry` (Unix milliseconds), without leaving the page. */
function offerRenewal(expiry) {
  document.getElementById("renewal")?.remove();
  if (!isSignedIn()) return; // a client certificate
  const renew = () => {
    const dialog = openDialog("Sign in again", signInForm(ways, isKept(), () => dialog.close()),
      h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Cancel"));
  };
  const notice = h("p", { class: "notice", role: "alert", id: "renewal" },
    `Your credentials expire at ${new Date(expiry).toLocaleTimeString()}. `,
    h("button", { type: "button", onclick: renew }, "Sign in again"));
  main.before(notice);
}

function setTheme(theme) {
  const button = document.getElementById("theme");
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  const isDark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  button.textContent = isDark ? "Light" : "Dark";
  button.setAttribute("aria-label", `Switch to ${isDark ? "light" : "dark"} colours`);
  button.onclick = () => {
    const chosen = isDark ? "light" : "dark";
    localStorage.setItem(THEME, chosen);
    setTheme(chosen);
  };
}

for (const [name, page] of Object.entries(PAGES)) {
  if (page.menu) menu.append(h("a", { href: `#/${name}`, "data-page": name }, page.menu));
}
document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
document.getElementById("sign-out").addEventListener("click", async () => {
  signOut();
  if (ways.session) await endSession();
  ways = await waysToSignIn();
  show();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(localStorage.getItem(THEME)));
setTheme(localStorage.getItem(THEME));
addEventListener("unknown-caller", () => show());
addEventListener("credentials-expire", (event) => offerRenewal(event.detail));
addEventListener("signed-in", () => document.getElementById("renewal")?.remove());
addEventListener("hashchange", () => { show().then(() => { scrollTo(0, 0); main.focus({ preventScroll: true }); }); });
returnToPlace();
waysToSignIn().then((found) => { ways = found; show(); });

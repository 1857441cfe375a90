// Requests to the broker. Credentials are sent in the Authorization header only. If the user requests it, they are stored in this
// tab's sessionStorage; otherwise they are lost with the page. Client certificates are the browser's task. After a login with OpenID
// Connect, the browser sends the id of the session, which scripts cannot read.

const KEPT = "pybroker.authorization";
const PLACE = "pybroker.place";
const OF_PAGE = { "X-Pybroker-Console": "1" }; // without this header, the broker ignores the session

let authorization = sessionStorage.getItem(KEPT);
let hasSession = false;

export class ApiError extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
    this.reason = reason;
  }
}

export function isSignedIn() {
  return authorization !== null || hasSession;
}

/** Ask how users sign in: `openid` is whether they can use OpenID Connect, `session` whether this browser is signed in with it. */
export async function waysToSignIn() {
  try {
    const response = await fetch("/console/sign-in", { credentials: "same-origin", cache: "no-store" });
    const ways = await response.json();
    hasSession = authorization === null && ways.session === true;
    return { ...ways, session: hasSession };
  } catch {
    return { openid: false, session: false }; // other requests report this
  }
}

/** Leave the page for the login with OpenID Connect. It comes back to the same place. */
export function signInWithOpenId() {
  sessionStorage.setItem(PLACE, location.hash);
  location.assign("/console/login");
}

/** Go to the place of the page from which the user left for the login. */
export function returnToPlace() {
  const place = sessionStorage.getItem(PLACE);
  sessionStorage.removeItem(PLACE);
  if (place && location.hash === "") history.replaceState(null, "", place);
}

/** `scheme`: Bearer or Basic. */
export function signIn(scheme, secret, isKept) {
  const text = scheme === "Basic" ? btoa(String.fromCharCode(...new TextEncoder().encode(secret))) : secret.trim();
  authorization = `${scheme} ${text}`;
  if (isKept) sessionStorage.setItem(KEPT, authorization);
  else sessionStorage.removeItem(KEPT);
  dispatchEvent(new Event("signed-in"));
}

/** Return whether the credentials stay in this tab's sessionStorage. */
export function isKept() {
  return sessionStorage.getItem(KEPT) !== null;
}

/** Returns assignments that run a shell command as the signed-in user, with a variable instead of the secret. */
export function callerInShell() {
  if (authorization === null) return hasSession ? 'PULSAR_TOKEN="$PULSAR_TOKEN" ' : "";
  if (authorization.startsWith("Bearer ")) return 'PULSAR_TOKEN="$PULSAR_TOKEN" ';
  return 'PULSAR_BASIC_USER="$PULSAR_BASIC_USER" PULSAR_BASIC_PASSWORD="$PULSAR_BASIC_PASSWORD" ';
}

export function signOut() {
  authorization = null;
  sessionStorage.removeItem(KEPT);
}

/** End the session of a login with OpenID Connect. */
export async function endSession() {
  hasSession = false;
  await fetch("/console/logout", { method: "POST", headers: OF_PAGE, credentials: "same-origin" });
}

function headers(more) {
  return { ...OF_PAGE, ...more, ...(authorization === null ? {} : { Authorization: authorization }) };
}

/** Handle a 401: it can mean a missing permission, or expired credentials, for which the page then asks again. */
let isAsking = false;
async function suspect() {
  if (isAsking) return;
  isAsking = true;
  try {
    const response = await fetch("/admin/v3/console/rights", { headers: headers({}), credentials: "same-origin", cache: "no-store" });
    if (response.status === 401) dispatchEvent(new Event("unknown-caller"));
  } catch { /* other requests report this */ }
  setTimeout(() => { isAsking = false; }, 5000);
}

async function refused(response) {
  if (response.status === 401 && !response.url.endsWith("/console/rights")) suspect();
  const text = await response.text();
  let reason = text;
  try { reason = JSON.parse(text).reason || text; } catch { /* the text is the reason */ }
  return new ApiError(response.status, reason || `${response.status} ${response.statusText}`);
}

/** Send a request with the credentials and return the response, also if it is an error. Throws ApiError without a response. */
export async function call(method, path, { body, signal, accept = "*/*" } = {}) {
  try {
    return await fetch(path, {
      method, body, signal, headers: headers({ Accept: accept, ...(body === undefined ? {} : { "Content-Type": "application/json" }) }),
      credentials: "same-origin", cache: "no-store", redirect: "error", referrerPolicy: "no-referrer",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The broker does not respond. It may be starting or stopping. This page retries automatically.");
  }
}

/** Like `call`, but throw an error response as ApiError with the broker's reason. */
export async function accepted(method, path, options) {
  const response = await call(method, path, options);
  if (!response.ok) throw await refused(response);
  return response;
}

/** Return the JSON of a GET. Throws ApiError. */
export async function get(path, signal) {
  const text = await (await accepted("GET", path, { signal })).text();
  return text ? JSON.parse(text) : null;
}

/** Like `get`, but return null for one of these statuses. */
export async function getOrNull(path, signal, statuses = [404]) {
  try {
    return await get(path, signal);
  } catch (error) {
    if (error instanceof ApiError && statuses.includes(error.status)) return null;
    throw error;
  }
}

/** Send a call that changes something. Throws ApiError. */
export async function act(method, path, body) {
  return (await accepted(method, path, { body: body === undefined ? undefined : JSON.stringify(body) })).text();
}

/** Wait. Ends early, without an error, when `signal` aborts. */
export function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    // Remove the listener: a page may stay open for days.
    const end = () => { clearTimeout(timer); signal.removeEventListener("abort", end); resolve(); };
    const timer = setTimeout(end, milliseconds);
    signal.addEventListener("abort", end);
  });
}

/**
 * Receive live figures until `signal` aborts: `on.begin(fields)`, `on.points(points)`, `on.trouble(reason)` while there are none.
 * Uses `fetch`, because an EventSource cannot send the Authorization header. A hidden page receives none.
 */
export async function watch(path, on, signal) {
  let wait = 1000;
  while (!signal.aborted) {
    if (document.hidden) { await seen(signal); continue; }
    const stop = new AbortController();
    const left = () => stop.abort();
    const hide = () => { if (document.hidden) stop.abort(); };
    document.addEventListener("visibilitychange", hide);
    addEventListener("signed-in", left); // go on with the new credentials
    signal.addEventListener("abort", left);
    try {
      const response = await accepted("GET", path, { signal: stop.signal, accept: "text/event-stream" });
      wait = 1000;
      const reason = await events(response.body.getReader(), on);
      if (reason) on.trouble(`Live figures have ended: ${reason}.`);
    } catch (error) {
      if (signal.aborted) return;
      if (!stop.signal.aborted) on.trouble(error instanceof ApiError ? error.reason : "The broker does not respond.");
      if (error instanceof ApiError && [401, 403, 404, 406].includes(error.status)) return;
    } finally {
      document.removeEventListener("visibilitychange", hide);
      removeEventListener("signed-in", left);
      signal.removeEventListener("abort", left);
    }
    await pause(wait + Math.random() * 500, signal);
    wait = Math.min(15000, wait * 2);
  }
}

function seen(signal) {
  return new Promise((resolve) => {
    const end = () => {
      document.removeEventListener("visibilitychange", end);
      signal.removeEventListener("abort", end);
      resolve();
    };
    document.addEventListener("visibilitychange", end);
    signal.addEventListener("abort", end);
  });
}

async function events(reader, on) {
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return null;
    text += decoder.decode(value, { stream: true });
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const lines = text.slice(0, end).split("\n");
      text = text.slice(end + 2);
      const name = lines.find((line) => line.startsWith("event: ")).slice(7);
      const data = JSON.parse(lines.find((line) => line.startsWith("data: ")).slice(6));
      if (name === "end") return data.reason;
      if (name === "begin") on.begin(data.fields);
      if (name === "points") on.points(data);
      if (name === "challenge") dispatchEvent(new CustomEvent("credentials-expire", { detail: data.expiresAt }));
    }
  }
}

/** Parse a full topic name into `{domain, tenant, namespace, name}`. */
export function topicParts(topic) {
  if (!/^(non-)?persistent:\/\/[^/]+\/[^/]+\/./.test(topic || "")) {
    throw new ApiError(412, `${topic || "This"} is not a full topic name, such as persistent://tenant/namespace/name.`);
  }
  const [domain, rest] = topic.split("://");
  const [tenant, namespace, ...local] = rest.split("/");
  return { domain, tenant, namespace, name: local.join("/") };
}

/** Return the topic's path below `/admin/v2` or another base. */
export function topicPath(topic, base = "/admin/v2") {
  const { domain, tenant, namespace, name } = topicParts(topic);
  return [base, domain, ...[tenant, namespace, name].map(encodeURIComponent)].join("/");
}

export function subscriptionPath(topic, subscription, base = "/admin/v2") {
  return `${topicPath(topic, base)}/subscription/${encodeURIComponent(subscription)}`;
}

/** Return a query string of the non-empty values. */
export function query(values) {
  const found = new URLSearchParams(Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== ""));
  const text = found.toString();
  return text ? `?${text}` : "";
}

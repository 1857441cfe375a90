import { h } from "/console/dom.js";
export async function subscriptionPage(main) { main.append(h("h1", {}, "Subscription")); }

import { h } from "/console/dom.js";
export async function messagesPage(main) { main.append(h("h1", {}, "Messages")); }

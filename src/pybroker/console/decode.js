// Decoder of payloads by the topic's schema. It runs in the browser, so it costs the broker nothing and hostile bytes affect only this page.

import { decodeAvro } from "/console/avro.js";
import { utf8 } from "/console/binary.js";
import { decodeProtobuf, fields } from "/console/protobuf.js";

const SHOWN_BYTES = 4096;
const SHOWN_OF_BYTES = 256;
const MAX_TEXT = 200000;
const MAX_MESSAGES = 1000;
const INTEGERS = { INT8: 1, INT16: 2, INT32: 4, INT64: 8 };
const NANOSECONDS = 1000000n;

/** Return `{text, how, problem?}` of a payload. `schema` is as in REST, or null. */
export function decodePayload(payload, schema) {
  try {
    if (schema) return decodeBySchema(payload, schema);
  } catch (error) {
    return { ...asItLooks(payload), problem: `The payload does not match its schema (${schema.type}): ${error.message}` };
  }
  return asItLooks(payload);
}

function decodeBySchema(payload, schema) {
  const { type } = schema;
  if (type === "JSON") return { text: prettyJson(utf8(payload)), how: "JSON" };
  if (type === "AVRO") return { text: written(decodeAvro(JSON.parse(schema.data), payload)), how: "Avro" };
  if (type === "PROTOBUF_NATIVE") return { text: written(decodeProtobuf(schema.data, payload)), how: "Protobuf" };
  if (type === "STRING") return { text: utf8(payload), how: "text" };
  if (type === "KEY_VALUE") return { text: "", how: "key and value" };
  const primitive = primitiveText(type, payload);
  if (primitive !== null) return { text: primitive, how: type };
  const seen = asItLooks(payload);
  return type === "BYTES" || type === "NONE" ? seen : { ...seen, problem: `The console cannot decode ${type} schemas; it shows the bytes.` };
}

function primitiveText(type, payload) {
  const view = new DataView(payload.buffer, payload.byteOffset, payload.byteLength);
  if (type in INTEGERS) {
    need(payload, INTEGERS[type]);
    return { 1: () => view.getInt8(0), 2: () => view.getInt16(0), 4: () => view.getInt32(0), 8: () => view.getBigInt64(0) }[payload.length]().toString();
  }
  if (type === "FLOAT") { need(payload, 4); return String(view.getFloat32(0)); }
  if (type === "DOUBLE") { need(payload, 8); return String(view.getFloat64(0)); }
  if (type === "BOOLEAN") { need(payload, 1); return payload[0] ? "true" : "false"; }
  if (["DATE", "TIME", "TIMESTAMP"].includes(type)) { need(payload, 8); return moment(type, view.getBigInt64(0)); }
  if (type === "LOCAL_DATE") { need(payload, 8); return day(view.getBigInt64(0)); }
  if (type === "LOCAL_TIME") { need(payload, 8); return clock(view.getBigInt64(0)); }
  if (type === "LOCAL_DATE_TIME") { need(payload, 16); return `${day(view.getBigInt64(0))}T${clock(view.getBigInt64(8))}`; }
  if (type === "INSTANT") { need(payload, 12); return new Date(Number(view.getBigInt64(0)) * 1000 + view.getInt32(8) / 1e6).toISOString(); }
  return null;
}

function need(payload, length) {
  if (payload.length !== length) throw new Error(`${payload.length} bytes instead of ${length}`);
}

function moment(type, milliseconds) {
  const text = new Date(Number(milliseconds)).toISOString();
  return type === "TIME" ? text.slice(11, 23) : text;
}

function day(days) {
  return new Date(Number(days) * 86400000).toISOString().slice(0, 10);
}

function clock(nanoseconds) {
  return new Date(Number(nanoseconds / NANOSECONDS)).toISOString().slice(11, 23);
}

/** Decode key and value of a KEY_VALUE message with `decodePayload`. `key`: the message's key bytes, for separate encoding. */
export function decodeKeyValue(payload, schema, key) {
  try {
    const properties = schema.properties || {};
    const parts = JSON.parse(schema.data);
    const schemaOf = (part) => ({ type: properties[`${part}.schema.type`] || "BYTES", data: typeof parts[part] === "string" ? parts[part] : JSON.stringify(parts[part]) });
    if (properties["kv.encoding.type"] === "SEPARATED") {
      return [decodePayload(key || new Uint8Array(), schemaOf("key")), decodePayload(payload, schemaOf("value"))];
    }
    const view = new DataView(payload.buffer, payload.byteOffset, payload.byteLength);
    const piece = (at) => {
      const length = view.getInt32(at);
      if (length < -1 || at + 4 + length > payload.length) throw new Error("a length is invalid");
      return length === -1 ? new Uint8Array() : payload.subarray(at + 4, at + 4 + length);
    };
    const first = piece(0);
    return [decodePayload(first, schemaOf("key")), decodePayload(piece(4 + first.length), schemaOf("value"))];
  } catch (error) {
    return [null, { ...asItLooks(payload), problem: `The payload does not match its schema (KEY_VALUE): ${error.message}` }];
  }
}

/** Without a schema: UTF-8 text, otherwise bytes. */
function asItLooks(payload) {
  try {
    const text = utf8(payload);
    if (!/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/.test(text)) return { text: prettyJson(text), how: "text" };
  } catch { /* not text */ }
  return { text: hex(payload), how: "bytes" };
}

function hex(payload) {
  const lines = [];
  for (let at = 0; at < Math.min(payload.length, SHOWN_BYTES); at += 16) {
    const row = [...payload.subarray(at, at + 16)];
    const letters = row.map((each) => (each > 31 && each < 127 ? String.fromCharCode(each) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hexOf(row, " ").padEnd(47)}  ${letters}`);
  }
  if (payload.length > SHOWN_BYTES) lines.push(`… ${payload.length - SHOWN_BYTES} bytes more`);
  return lines.join("\n");
}

function hexOf(bytes, between) {
  return [...bytes].map((each) => each.toString(16).padStart(2, "0")).join(between);
}

/** Indent JSON without parsing, because a parser would round numbers above 53 bits. */
export function prettyJson(text) {
  if (text.length > MAX_TEXT) return `${text.slice(0, MAX_TEXT)}\n… ${text.length - MAX_TEXT} characters more`;
  try { JSON.parse(text); } catch { return text; }
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, 40))}`;
  return text.trim().replace(/"(?:[^"\\]|\\.)*"|\{\s*\}|\[\s*\]|[^\s"{}[\],:]+|[{}[\],:]|\s+/g, (part) => {
    if (/^[{[]\s*[}\]]$/.test(part)) return part[0] + part[part.length - 1];
    if (part === "{" || part === "[") { depth += 1; return part + line(); }
    if (part === "}" || part === "]") { depth -= 1; return line() + part; }
    if (part === ",") return part + line();
    if (part === ":") return ": ";
    return /^\s+$/.test(part) ? "" : part;
  });
}

/** Format a decoded value as JSON, with exact 64-bit numbers and bytes. */
function written(value) {
  const text = JSON.stringify(value, (_, each) => {
    if (typeof each === "bigint") return Number.isSafeInteger(Number(each)) ? Number(each) : `${each}`;
    if (each instanceof Uint8Array) return `0x${hexOf(each.subarray(0, SHOWN_OF_BYTES), "")}${each.length > SHOWN_OF_BYTES ? "…" : ""}`;
    return typeof each === "number" && !Number.isFinite(each) ? String(each) : each;
  }, 2);
  return text === undefined ? "null" : text;
}

/**
 * Return the messages of a batch: `{payload, key, keyIsBase64, properties, isNull}`. Throws Error.
 * Tested with the vectors in tests/vectors/stored_entries.json.
 */
export function messagesOfBatch(payload, count) {
  const found = [];
  const view = new DataView(payload.buffer, payload.byteOffset, payload.byteLength);
  let at = 0;
  while (found.length < Math.min(count, MAX_MESSAGES)) {
    const size = view.getUint32(at);
    const head = single(payload.subarray(at + 4, at + 4 + size));
    at += 4 + size;
    if (at + head.size > payload.length || head.size < 0) throw new Error("the batch ends too early");
    found.push({ ...head, payload: payload.subarray(at, at + head.size) });
    at += head.size;
  }
  return found;
}

/** Decode the displayed fields of SingleMessageMetadata. */
function single(bytes) {
  const head = { size: 0, key: null, keyIsBase64: false, properties: [], isNull: false };
  fields(bytes, (field, value) => {
    if (field === 1) {
      const pair = {};
      fields(value, (part, text) => { pair[part] = loose(text); });
      head.properties.push([pair[1], pair[2]]);
    } else if (field === 2) head.key = loose(value);
    else if (field === 3) head.size = Number(BigInt.asIntN(32, value));
    else if (field === 6) head.keyIsBase64 = value !== 0n;
    else if (field === 9) head.isNull = value !== 0n;
  });
  return head;
}

function loose(bytes) {
  return bytes instanceof Uint8Array ? new TextDecoder().decode(bytes) : String(bytes);
}

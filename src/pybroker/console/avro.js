// Decoder of Avro's binary encoding, to display messages. Input is untrusted, so the number of values per message is limited.

import { Binary, counter, utf8, zigzag } from "/console/binary.js";

const MAX_VALUES = 20000;
const MAX_DEPTH = 64;
const NAMED = new Set(["record", "error", "enum", "fixed"]);

class Reader extends Binary {
  constructor(bytes) {
    super(bytes);
    this.count = counter(MAX_VALUES, "it");
  }

  long() {
    return zigzag(this.varint());
  }

  length() {
    const value = this.long();
    if (value < 0n || value > BigInt(this.left)) throw new Error("a length is invalid");
    return Number(value);
  }

  text() {
    return utf8(this.take(this.length()));
  }
}

/** Decode `bytes` by a schema (parsed JSON) to JSON values and BigInts. Throws Error. */
export function decodeAvro(schema, bytes) {
  const names = new Map();
  collect(schema, "", names, 0);
  const reader = new Reader(bytes);
  const value = read(schema, reader, names, "", 0);
  if (reader.left) throw new Error(`${reader.left} bytes are left over`);
  return value;
}

function fullName(schema, space) {
  const name = String(schema.name);
  if (name.includes(".")) return name;
  const own = schema.namespace === undefined ? space : schema.namespace;
  return own ? `${own}.${name}` : name;
}

function spaceOf(name) {
  return name.includes(".") ? name.slice(0, name.lastIndexOf(".")) : "";
}

function collect(schema, space, names, depth) {
  if (depth > MAX_DEPTH || schema === null || typeof schema !== "object") return;
  if (Array.isArray(schema)) { schema.forEach((each) => collect(each, space, names, depth + 1)); return; }
  if (NAMED.has(schema.type)) {
    const name = fullName(schema, space);
    names.set(name, schema);
    (schema.fields || []).forEach((each) => collect(each.type, spaceOf(name), names, depth + 1));
  } else {
    for (const part of [schema.items, schema.values, typeof schema.type === "object" ? schema.type : null]) collect(part, space, names, depth + 1);
  }
}

function read(schema, reader, names, space, depth) {
  reader.count();
  if (depth > MAX_DEPTH) throw new Error("the value is nested too deeply");
  if (Array.isArray(schema)) {
    const branch = schema[Number(reader.long())];
    if (branch === undefined) throw new Error("a union has no such branch");
    return read(branch, reader, names, space, depth + 1);
  }
  if (typeof schema === "string") {
    if (Object.hasOwn(PRIMITIVES, schema)) return PRIMITIVES[schema](reader);
    const name = names.has(schema) ? schema : `${space}.${schema}`;
    if (!names.has(name)) throw new Error(`the schema names a type that it does not have: ${schema}`);
    return read(names.get(name), reader, names, spaceOf(name), depth + 1);
  }
  if (typeof schema.type === "object") return read(schema.type, reader, names, space, depth + 1);
  const value = readType(schema, reader, names, space, depth);
  return Object.hasOwn(LOGICAL, schema.logicalType) ? LOGICAL[schema.logicalType](value, schema) : value;
}

function readType(schema, reader, names, space, depth) {
  if (schema.type === "record" || schema.type === "error") {
    const inner = spaceOf(fullName(schema, space));
    return Object.fromEntries(schema.fields.map((each) => [each.name, read(each.type, reader, names, inner, depth + 1)]));
  }
  if (schema.type === "enum") {
    const symbol = schema.symbols[Number(reader.long())];
    if (symbol === undefined) throw new Error("an enum has no such symbol");
    return symbol;
  }
  if (schema.type === "fixed") return reader.take(schema.size);
  if (schema.type === "array") return blocks(reader, () => read(schema.items, reader, names, space, depth + 1));
  if (schema.type === "map") return Object.fromEntries(blocks(reader, () => [reader.text(), read(schema.values, reader, names, space, depth + 1)]));
  return read(schema.type, reader, names, space, depth + 1);
}

function blocks(reader, one) {
  const found = [];
  for (let count = reader.long(); count !== 0n; count = reader.long()) {
    if (count < 0n) { count = -count; reader.long(); }
    for (let index = 0n; index < count; index += 1n) { reader.count(); found.push(one()); }
  }
  return found;
}

const PRIMITIVES = {
  null: () => null,
  boolean: (reader) => reader.take(1)[0] !== 0,
  int: (reader) => Number(reader.long()),
  long: (reader) => reader.long(),
  float: (reader) => { reader.take(4); return reader.view.getFloat32(reader.at - 4, true); },
  double: (reader) => { reader.take(8); return reader.view.getFloat64(reader.at - 8, true); },
  bytes: (reader) => reader.take(reader.length()),
  string: (reader) => reader.text(),
};

function instant(milliseconds) {
  const date = new Date(Number(milliseconds));
  return Number.isNaN(date.getTime()) ? milliseconds : date.toISOString();
}

const LOGICAL = {
  date: (value) => { const text = instant(value * 86400000); return typeof text === "string" ? text.slice(0, 10) : value; },
  "timestamp-millis": (value) => instant(value),
  "timestamp-micros": (value) => instant(value / 1000n),
  "time-millis": (value) => { const text = instant(value); return typeof text === "string" ? text.slice(11, 23) : value; },
  decimal: (value, schema) => decimal(value, schema.scale || 0),
};

/** Decode two's complement exactly. */
function decimal(bytes, scale) {
  if (!(bytes instanceof Uint8Array)) return bytes;
  let value = 0n;
  for (const byte of bytes.subarray(0, 256)) value = (value << 8n) | BigInt(byte);
  if (bytes.length && bytes[0] > 127) value -= 1n << BigInt(8 * bytes.length);
  const digits = (value < 0n ? -value : value).toString().padStart(scale + 1, "0");
  const text = scale ? `${digits.slice(0, -scale)}.${digits.slice(-scale)}` : digits;
  return value < 0n ? `-${text}` : text;
}

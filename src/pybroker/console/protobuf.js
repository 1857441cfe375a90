// Decoder of Protobuf's binary encoding by a descriptor, to display messages. Bytes and descriptors are untrusted, so the number of
// values per message and the nesting depth are limited. Fields that the descriptor does not have are shown by number.

import { Binary, counter, utf8, zigzag } from "/console/binary.js";

const MAX_VALUES = 20000;
const MAX_DESCRIPTOR_FIELDS = 500000;
const MAX_DEPTH = 64;
const KEPT_SCHEMAS = 8;
const VARINT = 0, FIXED64 = 1, PIECE = 2, GROUP = 3, GROUP_END = 4, FIXED32 = 5;
const GROUP_TYPE = 10, MESSAGE = 11, ENUM = 14, REPEATED = 3;

/** Yield a message's fields in order: `field(number, value, kind)`, with varints as BigInt, others as bytes. Throws Error. */
export function fields(bytes, field, count = () => {}) {
  const wire = new Binary(bytes);
  const value = (kind, depth) => {
    if (kind === VARINT) return wire.varint();
    if (kind === FIXED64) return wire.take(8);
    if (kind === PIECE) return wire.take(Number(wire.varint()));
    if (kind === FIXED32) return wire.take(4);
    if (kind !== GROUP || depth > MAX_DEPTH) throw new Error("a field has an unknown wire type");
    const start = wire.at;
    for (;;) {
      count();
      const end = wire.at;
      const inner = Number(wire.varint() & 7n);
      if (inner === GROUP_END) return bytes.subarray(start, end);
      value(inner, depth + 1);
    }
  };
  while (wire.left) {
    count();
    const tag = wire.varint();
    const kind = Number(tag & 7n);
    field(Number(tag >> 3n), value(kind, 0), kind);
  }
}

const known = new Map();

/** Decode `bytes` by a PROTOBUF_NATIVE schema (its text) to JSON values, BigInts and bytes. */
export function decodeProtobuf(text, bytes) {
  let schema = known.get(text);
  if (!schema) {
    schema = parsed(text);
    if (known.size >= KEPT_SCHEMAS) known.delete(known.keys().next().value);
    known.set(text, schema);
  }
  return read(schema.types, schema.root, bytes, counter(MAX_VALUES, "it"), 0);
}

/** Messages and enums of all files by full name. Nested types are added when they are needed. */
function parsed(text) {
  const { fileDescriptorSet, rootMessageTypeName } = JSON.parse(text);
  const count = counter(MAX_DESCRIPTOR_FIELDS, "the schema");
  const types = new Map();
  const walk = (bytes, of) => fields(bytes, (number, value) => { if (Object.hasOwn(of, number)) of[number](value); }, count);
  const message = (bytes, space, depth) => {
    if (depth > MAX_DEPTH) throw new Error("the schema is nested too deeply");
    const found = { raw: [], isMap: false };
    const inner = [];
    let name = "";
    walk(bytes, {
      1: (value) => { name = `${space}.${utf8(value)}`; },
      2: (value) => found.raw.push(value),
      3: (value) => inner.push(() => message(value, name, depth + 1)),
      4: (value) => inner.push(() => enumeration(value, name)),
      7: (value) => walk(value, { 7: (flag) => { found.isMap = flag === 1n; } }),
    });
    types.set(name, found);
    inner.forEach((each) => each());
  };
  const enumeration = (bytes, space) => {
    const names = new Map();
    let name = "";
    walk(bytes, {
      1: (value) => { name = `${space}.${utf8(value)}`; },
      2: (value) => {
        const one = { number: 0, name: "" };
        walk(value, { 1: (each) => { one.name = utf8(each); }, 2: (each) => { one.number = Number(BigInt.asIntN(32, each)); } });
        if (!names.has(one.number)) names.set(one.number, one.name);
      },
    });
    types.set(name, names);
  };
  walk(Uint8Array.from(atob(fileDescriptorSet), (letter) => letter.charCodeAt(0)), {
    1: (file) => {
      let space = "";
      const inner = [];
      walk(file, {
        2: (value) => { space = `.${utf8(value)}`; },
        4: (value) => inner.push(() => message(value, space, 0)),
        5: (value) => inner.push(() => enumeration(value, space)),
      });
      inner.forEach((each) => each());
    },
  });
  return { types, root: `.${rootMessageTypeName}` };
}

function messageType(types, name) {
  const type = types.get(name);
  if (!type || !type.raw) throw new Error(`the schema names a message that it does not have: ${name.slice(1)}`);
  type.fields ||= new Map(type.raw.map((bytes) => {
    const field = { name: "", number: 0, type: 0, typeName: "", isRepeated: false };
    fields(bytes, (number, value) => {
      if (number === 1) field.name = utf8(value);
      else if (number === 3) field.number = Number(value);
      else if (number === 4) field.isRepeated = Number(value) === REPEATED;
      else if (number === 5) field.type = Number(value);
      else if (number === 6) field.typeName = utf8(value);
    });
    return [field.number, field];
  }));
  return type;
}

function read(types, name, bytes, count, depth) {
  if (depth > MAX_DEPTH) throw new Error("the value is nested too deeply");
  count();  // also defaults, which use memory although not sent
  const type = messageType(types, name);
  const found = new Map();
  const push = (title, value) => { if (!found.has(title)) found.set(title, []); found.get(title).push(value); };
  fields(bytes, (number, value, kind) => {
    const field = type.fields.get(number);
    if (!field || !fits(field, kind)) { push(`field ${number}`, value); return; }
    const one = (each) => single(types, field, each, count, depth);
    if (!field.isRepeated) {
      found.set(field.name, kind === PIECE && KINDS[field.type] !== PIECE ? unpacked(field, value, count).map(one).pop() : one(value));
    } else if (isMap(types, field)) {
      const entry = one(value);
      if (!found.has(field.name)) found.set(field.name, new Map());
      found.get(field.name).set(String(entry.key), entry.value);
    } else if (kind === PIECE && KINDS[field.type] !== PIECE) unpacked(field, value, count).forEach((each) => push(field.name, one(each)));
    else push(field.name, one(value));
  }, count);
  if (type.isMap) {
    for (const each of type.fields.values()) if (!found.has(each.name)) found.set(each.name, empty(types, each, count, depth));
  }
  const value = Object.fromEntries([...found].map(([title, each]) => [title, each instanceof Map ? Object.fromEntries(each) : each]));
  return name in SHORT ? SHORT[name](value) : value;
}

/** Return the wire type of a field type. A field with another wire type is shown by its number. */
const KINDS = { 1: FIXED64, 2: FIXED32, 6: FIXED64, 7: FIXED32, 9: PIECE, 10: GROUP, 11: PIECE, 12: PIECE, 15: FIXED32, 16: FIXED64,
  3: VARINT, 4: VARINT, 5: VARINT, 8: VARINT, 13: VARINT, 14: VARINT, 17: VARINT, 18: VARINT };

function fits(field, kind) {
  const own = KINDS[field.type];
  return own === kind || (kind === PIECE && own !== undefined && own !== GROUP) || (kind === GROUP && field.type === MESSAGE);
}

function isMap(types, field) {
  return field.type === MESSAGE && types.get(field.typeName)?.isMap === true;
}

/** Decode a packed field to its numbers. */
function unpacked(field, bytes, count) {
  const wire = new Binary(bytes);
  const kind = KINDS[field.type];
  const found = [];
  while (wire.left) {
    count();
    found.push(kind === VARINT ? wire.varint() : wire.take(kind === FIXED64 ? 8 : 4));
  }
  return found;
}

function single(types, field, value, count, depth) {
  if (field.type === MESSAGE || field.type === GROUP_TYPE) return read(types, field.typeName, value, count, depth + 1);
  if (field.type === ENUM) {
    const number = Number(BigInt.asIntN(32, value));
    const names = types.get(field.typeName);
    return names instanceof Map && names.has(number) ? names.get(number) : number;
  }
  return READERS[field.type](value instanceof Uint8Array ? new Binary(value).view : value, value);
}

const READERS = {
  1: (view) => view.getFloat64(0, true), 2: (view) => view.getFloat32(0, true),
  3: (value) => BigInt.asIntN(64, value), 4: (value) => BigInt.asUintN(64, value), 5: (value) => Number(BigInt.asIntN(32, value)),
  6: (view) => view.getBigUint64(0, true), 7: (view) => view.getUint32(0, true), 8: (value) => value !== 0n,
  9: (_, bytes) => utf8(bytes), 12: (_, bytes) => bytes, 13: (value) => Number(BigInt.asUintN(32, value)),
  15: (view) => view.getInt32(0, true), 16: (view) => view.getBigInt64(0, true),
  17: (value) => Number(BigInt.asIntN(32, zigzag(BigInt.asUintN(32, value)))), 18: (value) => zigzag(BigInt.asUintN(64, value)),
};

/** Return the default of a missing key or value of a map. */
function empty(types, field, count, depth) {
  if (field.type === MESSAGE) return read(types, field.typeName, new Uint8Array(), count, depth + 1);
  if (field.type === 9) return "";
  return single(types, field, { [FIXED64]: new Uint8Array(8), [FIXED32]: new Uint8Array(4), [PIECE]: new Uint8Array() }[KINDS[field.type]] ?? 0n, count, depth);
}

const SHORT = {
  ".google.protobuf.Timestamp": (value) => {
    const date = new Date(Number(value.seconds ?? 0n) * 1000);
    if (Number.isNaN(date.getTime())) return value;
    return `${date.toISOString().slice(0, -5)}${part(value.nanos)}Z`;
  },
  ".google.protobuf.Duration": ({ seconds = 0n, nanos = 0 }) =>
    `${seconds < 0n || nanos < 0 ? "-" : ""}${seconds < 0n ? -seconds : seconds}${part(Math.abs(nanos))}s`,
};

function part(nanos) {
  return nanos ? `.${String(nanos).padStart(9, "0").replace(/(000)+$/, "")}` : "";
}

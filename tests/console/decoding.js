// What the page's decoders make of bytes: a list of {what, is, should}. Run in the page by test_pages.py.
async () => {
  const { decodePayload, decodeKeyValue, messagesOfBatch, prettyJson } = await import("/console/decode.js");
  const { decodeAvro } = await import("/console/avro.js");
  const found = [];
  const bytes = (...values) => Uint8Array.from(values);
  const text = (value) => new TextEncoder().encode(value);
  const check = (what, is, should) => found.push({ what, is, should });
  const decoded = (type, payload) => decodePayload(payload, { type, data: "" }).text;

  check("INT8", decoded("INT8", bytes(255)), "-1");
  check("INT16", decoded("INT16", bytes(1, 0)), "256");
  check("INT32", decoded("INT32", bytes(0, 0, 1, 0)), "256");
  check("INT64", decoded("INT64", bytes(127, 255, 255, 255, 255, 255, 255, 255)), "9223372036854775807");
  check("FLOAT", decoded("FLOAT", bytes(63, 192, 0, 0)), "1.5");
  check("DOUBLE", decoded("DOUBLE", bytes(63, 248, 0, 0, 0, 0, 0, 0)), "1.5");
  check("BOOLEAN", decoded("BOOLEAN", bytes(1)), "true");
  check("TIMESTAMP", decoded("TIMESTAMP", bytes(0, 0, 0, 0, 0, 0, 3, 232)), "1970-01-01T00:00:01.000Z");
  check("LOCAL_DATE", decoded("LOCAL_DATE", bytes(0, 0, 0, 0, 0, 0, 0, 1)), "1970-01-02");
  check("LOCAL_TIME", decoded("LOCAL_TIME", bytes(0, 0, 0, 0, 59, 154, 202, 0)), "00:00:01.000");
  check("INSTANT", decoded("INSTANT", bytes(0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0)), "1970-01-01T00:00:01.000Z");
  check("INT32 of five bytes", decodePayload(bytes(1, 2, 3, 4, 5), { type: "INT32" }).problem, "The payload does not match its schema (INT32): 5 bytes instead of 4");
  check("PROTOBUF", decodePayload(bytes(8, 1), { type: "PROTOBUF" }).problem, "The console cannot decode PROTOBUF schemas; it shows the bytes.");
  check("large numbers of JSON", prettyJson('{"n":9007199254740993,"e":[],"s":"a{\\"b"}'), '{\n  "n": 9007199254740993,\n  "e": [],\n  "s": "a{\\"b"\n}');
  check("texts of JSON", prettyJson('{"s":"{ }","e":[ ],"o":{\n}}'), '{\n  "s": "{ }",\n  "e": [],\n  "o": {}\n}');
  check("no JSON", prettyJson("{no"), "{no");
  check("text", decodePayload(text("hello"), null).text, "hello");
  check("bytes", decodePayload(bytes(0, 65), null).how, "bytes");

  const pair = { type: "KEY_VALUE", data: JSON.stringify({ key: "", value: "" }), properties: { "key.schema.type": "STRING", "value.schema.type": "INT32", "kv.encoding.type": "INLINE" } };
  const inline = decodeKeyValue(bytes(0, 0, 0, 1, 75, 0, 0, 0, 4, 0, 0, 0, 7), pair, null);
  check("key inline", inline[0].text, "K");
  check("value inline", inline[1].text, "7");
  const apart = decodeKeyValue(bytes(0, 0, 0, 7), { ...pair, properties: { ...pair.properties, "kv.encoding.type": "SEPARATED" } }, text("K"));
  check("key apart", apart[0].text, "K");
  check("value apart", apart[1].text, "7");
  check("a pair that ends too early", decodeKeyValue(bytes(0, 0, 0, 99), pair, null)[0], null);

  const record = { type: "record", name: "R", namespace: "n", fields: [
    { name: "u", type: ["null", "string"] }, { name: "e", type: { type: "enum", name: "E", symbols: ["A", "B"] } }, { name: "again", type: "n.E" },
    { name: "l", type: { type: "array", items: "long" } }, { name: "m", type: { type: "map", values: "int" } },
    { name: "d", type: { type: "int", logicalType: "date" } }, { name: "c", type: { type: "bytes", logicalType: "decimal", precision: 5, scale: 2 } },
    { name: "next", type: ["null", "R"] }] };
  const one = decodeAvro(record, bytes(2, 2, 120, 2, 0, 2, 3, 0, 2, 2, 107, 10, 0, 2, 2, 133, 0));
  check("a record", `${one.u} ${one.e} ${one.again} ${one.l} ${one.m.k} ${one.d} ${one.c} ${one.next}`, "x B A -2 5 1970-01-02 -1.23 null");
  const failure = (schema, payload) => { try { decodeAvro(schema, payload); return "it was read"; } catch (error) { return error.message; } };
  check("endless nothings", failure({ type: "array", items: "null" }, bytes(254, 255, 255, 255, 255, 255, 255, 255, 127, 0)), "it has more than 20000 values");
  check("a record in itself", failure({ type: "record", name: "R", fields: [{ name: "r", type: "R" }] }, bytes()), "the value is nested too deeply");
  check("a length beyond the end", failure("bytes", bytes(254, 255, 255, 255, 15)), "a length is invalid");
  check("what is left over", failure("int", bytes(2, 2)), "1 bytes are left over");
  check("an enum without that symbol", failure({ type: "enum", name: "E", symbols: ["A"] }, bytes(2)), "an enum has no such symbol");
  check("a type by the name of what every object has", failure("constructor", bytes(2)), "the schema names a type that it does not have: constructor");
  check("properties of a batch", messagesOfBatch(bytes(0, 0, 0, 17, 10, 13, 10, 9, ...text("__proto__"), 18, 0, 24, 0), 1)[0].properties.join(), "__proto__,");
  check("a type that is none", failure("unknown", bytes(2)), "the schema names a type that it does not have: unknown");
  return found;
}

// Reader of untrusted bytes for Avro and Protobuf: slices and varints.

export class Binary {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.at = 0;
  }

  get left() {
    return this.bytes.length - this.at;
  }

  take(length) {
    if (length < 0 || length > this.left) throw new Error("the data ends too early");
    this.at += length;
    return this.bytes.subarray(this.at - length, this.at);
  }

  /** Return a varint exactly; the caller reduces it to 64 bits. */
  varint() {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const [byte] = this.take(1);
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    throw new Error("a number is too long");
  }
}

/** Decode a zigzag number. */
export function zigzag(value) {
  return (value >> 1n) ^ -(value & 1n);
}

export function utf8(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw new Error("a text is not UTF-8");
  }
}

/** Count values and throw above a limit. `of` names the object in the error. */
export function counter(most, of) {
  let count = 0;
  return () => {
    count += 1;
    if (count > most) throw new Error(`${of} has more than ${most} values`);
  };
}

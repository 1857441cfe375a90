"""The console's reader of batches against the shared vectors of stored entries, run by Node.

The browser gets the payload of an entry from the broker, without compression; it never parses the frame around it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.stored_entries import BATCH_ERRORS, OPEN_BATCHES

import pybroker

NODE = shutil.which("node")
READ_BATCHES = """
import { readFileSync } from "node:fs";
import { messagesOfBatch } from "./decode.js";

const hex = (bytes) => Buffer.from(bytes).toString("hex");
const shown = ({ payload, isNull, key, keyIsBase64, properties }) =>
  ({ value: isNull ? null : hex(payload), key, keyIsBase64, properties });
const read = ([payload, count]) => {
  try {
    return { messages: messagesOfBatch(new Uint8Array(Buffer.from(payload, "hex")), count).map(shown) };
  } catch (error) {
    return { problem: error.message };
  }
};
console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf-8")).map(read)));
"""
# The console has no required fields: it shows as much of a message as it can.
VECTORS = [each for each in OPEN_BATCHES if each.error is None or each.error in BATCH_ERRORS]


def test_console_reads_the_batches_of_the_vectors(tmp_path: Path) -> None:
    if NODE is None:
        pytest.skip("there is no Node (apt-get install nodejs)")
    for module in Path(pybroker.__file__).with_name("console").glob("*.js"):
        text = module.read_text(encoding="utf-8").replace('from "/console/', 'from "./')
        tmp_path.joinpath(module.name).write_text(text, encoding="utf-8")
    tmp_path.joinpath("package.json").write_text('{"type": "module"}', encoding="utf-8")
    program = tmp_path / "read_batches.js"
    program.write_text(READ_BATCHES, encoding="utf-8")
    batches = [[each.payload.hex(), each.fields["message_count"]] for each in VECTORS if each.payload is not None]
    ran = subprocess.run(
        [NODE, str(program)], input=json.dumps(batches), capture_output=True, text=True, timeout=60, check=False
    )
    assert not ran.returncode, ran.stderr
    for vector, read in zip(VECTORS, json.loads(ran.stdout), strict=True):
        if vector.error is None:
            assert read == {"messages": [shown(each) for each in vector.messages]}, vector.name
        else:
            assert read.get("problem"), vector.name


def shown(message: dict[str, Any]) -> dict[str, Any]:
    return {name: message[name] for name in ("value", "key", "properties")} | {"keyIsBase64": False}

"""Write `metadata_documents.json`: shared metadata documents of the reference broker, and its answers about them.

    python -m tests.vectors.record_metadata

Starts a reference broker on a real ZooKeeper, sends the calls of `tests/support/metadata_calls.py`, and records two maps:

    documents    the text of each node below DOCUMENT_ROOTS, by path
    answers      status and body of each call of READS, by path; the body is parsed, and null for none

Addresses of the broker itself are replaced by those of a default configuration.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.support.metadata_calls import DOCUMENT_ROOTS, READS, WRITES
from tests.support.reference_on_zookeeper import ReferenceOnZooKeeper, reference_on_zookeeper, zookeeper_documents
from tests.support.rest import call

VECTORS = Path(__file__).with_name("metadata_documents.json")
Answers = dict[str, tuple[int, Any]]


def write_all(http_url: str) -> None:
    for write in WRITES:
        answer = call(http_url + write.path, write.method, body=write.body)
        assert answer.status in (200, 204), (write, answer)


def answers(http_url: str) -> Answers:
    return {path: answer(http_url, path) for path in READS}


def answer(http_url: str, path: str) -> tuple[int, Any]:
    """Return status and parsed body of a GET; a text that is no JSON as it is, None for an empty body."""
    found = call(http_url + path)
    try:
        return found.status, json.loads(found.text) if found.text else None
    except ValueError:
        return found.status, found.text


def recorded(reference: ReferenceOnZooKeeper) -> dict[str, Any]:
    """Return documents and answers of a reference broker on which `write_all` was called."""
    documents = zookeeper_documents(reference.zookeeper, DOCUMENT_ROOTS)
    own = {reference.http_url: "http://127.0.0.1:8080", reference.service_url: "pulsar://127.0.0.1:6650"}
    for path, text in documents.items():
        for address, replacement in own.items():
            documents[path] = documents[path].replace(address, replacement)
        assert "127.0.0.1" not in text or path.endswith("/standalone"), path
    return {"documents": documents, "answers": answers(reference.http_url)}


def text_of(found: dict[str, Any]) -> str:
    """Return the content of the file: one line for each entry."""
    parts = []
    for name, entries in found.items():
        lines = ",\n".join(
            f"    {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in entries.items()
        )
        parts.append(f"  {json.dumps(name)}: {{\n{lines}\n  }}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, reference_on_zookeeper(Path(directory)) as reference:
        write_all(reference.http_url)
        VECTORS.write_text(text_of(recorded(reference)))


if __name__ == "__main__":
    main()

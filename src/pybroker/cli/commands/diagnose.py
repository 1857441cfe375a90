"""`pybroker diagnose`: Collect the state of a broker in one archive, for a problem report.

The archive contains versions, configuration, metrics, stacks, the recent log, and the findings of `explain` with
statistics of the worst topics. Secrets are masked and message payloads omitted. It does contain names of topics,
subscriptions and clients, and keys of blocked messages; check it before sending it.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pybroker.cli.admin_rest import AdminRest, path_of
from pybroker.cli.commands.explain import stuck_topics
from pybroker.cli.exit_codes import EXIT_OK, CommandFailed
from pybroker.cli.output import output_of
from pybroker.cli.parsing import described
from pybroker.cli.text_tables import size
from pybroker.cli.which_broker import add_broker_options, broker_of
from pybroker.model.names import TopicName
from pybroker.version import __version__

EXAMPLES = """
pybroker diagnose
pybroker diagnose --output /tmp/broker-1.tar.gz --url http://127.0.0.1:8080
"""
WORST_TOPICS = 10
MAX_STUCK = 500
_DOCUMENTS = {
    "configuration.json": "/admin/v2/brokers/configuration/runtime",
    "overrides.json": "/admin/v2/brokers/configuration/values",
    "shares.json": "/admin/v3/shares",
    "data-snapshots.json": "/admin/v3/data-snapshots",
    "load-report.json": "/admin/v2/broker-stats/load-report",
}
_TEXTS = {"metrics.txt": "/metrics", "ready.txt": "/ready"}


def add_options(parser: argparse.ArgumentParser) -> None:
    described(parser, __doc__ or "", EXAMPLES)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the archive (default: pybroker-diagnose-TIME.tar.gz in this directory)",
    )
    add_broker_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    path = options.output or Path(f"pybroker-diagnose-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar.gz")
    with AdminRest(broker_of(options)) as rest:
        diagnostics = rest.get("/admin/v3/diagnostics")  # without this, there is nothing to collect
        files, failures = collect(rest, diagnostics)
    if failures:
        files["failures.txt"] = "\n".join(failures).encode() + b"\n"
    try:
        write_archive(path, files)
    except OSError as error:
        raise CommandFailed(
            f"cannot write {path}: {error.strerror or error}; choose another file with --output"
        ) from error
    output = output_of(options)
    output.line(
        f"Wrote {path} ({size(path.stat().st_size)}, {len(files)} files). "
        "The archive contains names and keys: check the archive before you send it."
    )
    for failure in failures:
        output.line(f"Not collected: {failure}")
    return EXIT_OK


def collect(rest: AdminRest, diagnostics: dict[str, Any]) -> tuple[dict[str, bytes], list[str]]:
    """Return the contents of the archive's files by name, and a sentence for each file that could not be collected."""
    files = {"log.txt": "\n".join(diagnostics.pop("log")).encode() + b"\n"}
    files["process.json"] = _encoded({**diagnostics, "clientVersion": __version__})
    failures: list[str] = []

    def add(name: str, read: Callable[[], bytes]) -> None:
        try:
            files[name] = read()
        except CommandFailed as error:
            failures.append(f"{name}: {error}")

    def document(where: str) -> bytes:
        return _encoded(rest.get(where))

    for name, where in _DOCUMENTS.items():
        add(name, partial(document, where))
    for name, where in _TEXTS.items():
        add(name, partial(_body, rest, where))
    stuck: list[dict[str, Any]] = []

    def stuck_document() -> bytes:
        document = stuck_topics(rest, MAX_STUCK)
        stuck.extend(document["topics"])
        return _encoded(document)

    add("explain.json", stuck_document)
    names = list(dict.fromkeys(str(each["topic"]) for each in stuck))[:WORST_TOPICS]
    for number, name in enumerate(names):
        topic = path_of(TopicName.parse(name))
        # Files are numbered, because topics may have any name. `explain.json` lists the topics in the same order.
        for file, last in (("explain", "explain"), ("stats", "stats"), ("internal", "internalStats")):
            add(f"topics/{number}-{file}.json", partial(document, f"{topic}/{last}"))
    return files, failures


def write_archive(path: Path, files: dict[str, bytes]) -> None:
    """Write a compressed archive that only its owner can read."""
    path.touch(mode=0o600)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{path.name.partition('.')[0]}/{name}")
            member.size = len(content)
            member.mtime = int(time.time())
            member.mode = 0o600
            archive.addfile(member, io.BytesIO(content))


def _body(rest: AdminRest, where: str) -> bytes:
    return rest.call("GET", where).body


def _encoded(document: object) -> bytes:
    return json.dumps(document, indent=1).encode()

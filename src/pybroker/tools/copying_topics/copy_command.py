"""`pybroker ledger copy`: the topics to copy, the dry run, and the output."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from pybroker.config import BrokerConfig
from pybroker.errors import StoreError
from pybroker.local_store.data_directory import INCOMPLETE_COPY_NAME, DataDirectoryInUse, ForeignDirectory
from pybroker.metadata import metadata_paths
from pybroker.model.names import NamespaceName, TopicName
from pybroker.schema.schema_storage import MetadataSchemaStorage
from pybroker.tools.copying_topics.copy_progress import incomplete_copies
from pybroker.tools.copying_topics.opening import Side, open_bookkeeper, open_local
from pybroker.tools.copying_topics.schema_copy import copy_schemas
from pybroker.tools.copying_topics.topic_copy import TopicContents, TopicCopy, contents_of
from pybroker.tools.items import Item, item_text

EXIT_OK = 0
EXIT_FAILED = 2
BOOKKEEPER, LOCAL = "bookkeeper", "local"
NOTE = (
    "Policies and partitioned topics are not copied: move them with `pybroker metadata export` and `import`."
    " Message ids change: ids that clients stored are not valid for the copy."
)
_PROGRESS_S = 1.0


class CopyRequest(NamedTuple):
    """The parsed arguments. Exactly one of `topic` and `namespace` is set."""

    target: str
    topic: TopicName | None
    namespace: NamespaceName | None
    is_dry_run: bool
    is_json: bool


def main(config: BrokerConfig, request: CopyRequest) -> int:
    """Run the command, and return its exit code. Raises ConfigError."""
    try:
        return asyncio.run(_CopyCommand(config, request).run())
    except (StoreError, DataDirectoryInUse, ForeignDirectory) as error:
        sys.stderr.write(f"pybroker: {error}\n")
    except OSError as error:
        sys.stderr.write(f"pybroker: {error.filename or config.data_directory}: {error.strerror or error}\n")
    return EXIT_FAILED


class _CopyCommand:
    def __init__(self, config: BrokerConfig, request: CopyRequest) -> None:
        self._config = config
        self._request = request
        self._directory = Path(config.data_directory)
        self._shows_progress = sys.stderr.isatty()
        self._shown_s = time.monotonic()
        self._topic = ""
        self._entries = self._bytes = 0

    async def run(self) -> int:
        async with AsyncExitStack() as opened:
            is_to_bookkeeper = self._request.target == BOOKKEEPER
            remote = await open_bookkeeper(self._config, opened)  # first: it refuses without a change
            local = await open_local(self._config, must_exist=is_to_bookkeeper, opened=opened)
            source, target = (local, remote) if is_to_bookkeeper else (remote, local)
            topics = await self._topics(source)
            if self._request.is_dry_run:
                return await self._show(source, target, topics)
            return await self._copy(source, target, topics)

    async def _topics(self, source: Side) -> Sequence[TopicName]:
        request = self._request
        if request.topic is not None:
            return [request.topic]
        assert request.namespace is not None
        parent = metadata_paths.managed_ledgers(request.namespace, "persistent")
        names = await source.metadata.children(parent)
        if not names:
            raise StoreError(f"namespace {request.namespace} has no persistent topic in {source.name}")
        return [metadata_paths.topic_of_segment(request.namespace, "persistent", each) for each in sorted(names)]

    async def _show(self, source: Side, target: Side, topics: Sequence[TopicName]) -> int:
        exit_code = EXIT_OK
        for topic in topics:
            path = metadata_paths.managed_ledger(topic)
            found = await source.records.load(path)
            if found.info is None:
                raise StoreError(f"topic {topic} does not exist in {source.name}")
            exists = await target.records.exists(path)
            self._write(_item(topic, "exists in the target" if exists else "would be copied", contents_of(found.info)))
        self._write({"kind": "note", "text": NOTE})
        return exit_code

    async def _copy(self, source: Side, target: Side, topics: Sequence[TopicName]) -> int:
        mark = self._directory / INCOMPLETE_COPY_NAME
        if target.kind == LOCAL:
            mark.touch(mode=0o600)
        for topic in topics:
            self._topic, self._entries, self._bytes = str(topic), 0, 0
            path = metadata_paths.managed_ledger(topic)
            result = await TopicCopy(source, target, path, self._directory, self._progress).run()
            # A broker with local ledgers and a metadata store has its schemas there.
            of_source = [
                source.schemas,
                *([MetadataSchemaStorage(target.metadata)] if target.kind == BOOKKEEPER else []),
            ]
            versions = await copy_schemas(of_source, target.schemas, topic)
            self._end_progress()
            state = "already copied" if result.was_complete else "copied"
            self._write(_item(topic, state, result.contents) | {"schema_versions": versions})
        self._write({"kind": "note", "text": NOTE})
        if target.kind == LOCAL:
            if left := incomplete_copies(self._directory, LOCAL):
                raise StoreError(
                    "the requested topics are copied, but an earlier command did not complete the copies of the topics "
                    f"{', '.join(each.name for each in left)}. Copy these topics again: until then, no broker starts on the "
                    "directory"
                )
            mark.unlink(missing_ok=True)
        self._write({"kind": "summary", "topics": len(topics), "state": "complete", "target": target.name})
        return EXIT_OK

    def _write(self, item: Item) -> None:
        sys.stdout.write(f"{json.dumps(item) if self._request.is_json else item_text(item)}\n")
        sys.stdout.flush()

    def _progress(self, entries: int, size_bytes: int) -> None:
        self._entries += entries
        self._bytes += size_bytes
        if self._shows_progress and time.monotonic() - self._shown_s >= _PROGRESS_S:
            self._shown_s = time.monotonic()
            sys.stderr.write(f"\r\x1b[K{self._topic}: {self._entries:,} entries, {self._bytes:,} bytes")
            sys.stderr.flush()

    def _end_progress(self) -> None:
        if self._shows_progress:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _item(topic: TopicName, state: str, contents: TopicContents) -> Item:
    item: Item = {
        "kind": "topic",
        "topic": str(topic),
        "state": state,
        "ledgers": contents.ledgers,
        "entries": contents.entries,
        "size_bytes": contents.size_bytes,
        "cursors": contents.cursors,
    }
    if contents.open_ledgers:
        item["open_ledgers"] = contents.open_ledgers
    if contents.has_compacted:
        item["compacted"] = True
    return item

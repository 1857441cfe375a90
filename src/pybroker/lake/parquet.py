"""Tables of plain Parquet files, with a log that lists the files and the progress of pipelines.

    data/...parquet                        data files; a file that no log entry names is not part of the table
    _pybroker/log/00000000000000000042     changes of version 42, as JSON; created atomically if absent
    _pybroker/log/00000000000000000064.all complete state of version 64, where a reader begins

A version exists if its file exists. Two writers cannot both create the same version (`Storage.put_if_absent`).
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pybroker.lake import steps
from pybroker.lake.evolution import ChangeInside, EvolutionRefused, RenameColumn, Step, evolved, steps_between
from pybroker.lake.orphaned_files import Leftovers
from pybroker.lake.partitioning import Partitioning
from pybroker.lake.progress import Lease, Progress, lease_of, lease_text, positions_of, positions_text
from pybroker.lake.storage import AlreadyThere, Storage
from pybroker.lake.table_format import Change, CommitConflict, LakeTable, TableFile, TableMissing, TableState

LOG = "_pybroker/log"
WHOLE_EVERY = 64
"""Number of versions between two files with the complete state; limits the small files that a reader opens."""
FORMAT_VERSION = 1


@dataclass
class _Log:
    version: int = -1
    schema: str = ""
    partitioning: list[str] | None = None
    files: dict[str, list[Any]] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    pipelines: dict[str, dict[str, str]] = field(default_factory=dict)

    def apply(self, entry: dict[str, Any]) -> None:
        self.schema = entry.get("schema", self.schema)
        self.partitioning = entry.get("partitioning", self.partitioning)
        for path in entry.get("remove", ()):
            del self.files[path]
            self.gone[path] = entry["timeMs"]
        self.files.update(entry.get("add", {}))
        for path in entry.get("forget", ()):
            self.gone.pop(path, None)
        self.pipelines.update(entry.get("pipelines", {}))


class ParquetTable(LakeTable):
    """A directory or prefix on any fsspec target, for one pipeline."""

    def __init__(self, location: str, pipeline: str, options: dict[str, Any] | None = None) -> None:
        self.name = location
        self._pipeline = pipeline
        self._storage = Storage(location, options)

    def create(self, schema: pa.Schema, partitioning: Partitioning | None) -> None:
        if self._versions():
            return
        entry = {
            "schema": _schema_text(schema),
            "partitioning": [partitioning.column, partitioning.unit] if partitioning else None,
        }
        try:
            self._put(0, entry)
        except AlreadyThere:
            return

    def load(self) -> TableState:
        # A version may be trimmed between listing and reading. Then a newer complete state exists: try again.
        for _ in range(3):
            try:
                return self._state(self._read())
            except FileNotFoundError:
                continue
        raise TableMissing(
            f"the table {self.name} cannot be read, because its log changes faster than it can be read. Try again"
        )

    def commit(self, state: TableState, change: Change) -> TableState:
        progress = change.progress
        entry = {
            "add": {
                self._storage.relative(file.location): [file.size_bytes, file.row_count, file.partition]
                for file in change.added
            },
            "remove": [file.location for file in change.removed],
            "pipelines": {
                self._pipeline: {"positions": positions_text(progress.positions), "lease": lease_text(progress.lease)}
            },
            "note": change.note,
        }
        return self._commit(state, entry)

    def _commit(self, state: TableState, entry: dict[str, Any]) -> TableState:
        log: _Log = state.reference
        version = log.version + 1
        steps.reached("before-commit")
        try:
            self._put(version, entry)
        except AlreadyThere as error:
            raise CommitConflict(
                f"the commit to {self.name} failed: another process has already written version {version}"
            ) from error
        if not self._storage.exists(f"{LOG}/{log.version:020}"):
            # The base version was trimmed during a pause of this writer, so readers ignore the new version.
            self._storage.delete(self._storage.location(f"{LOG}/{version:020}"))
            raise CommitConflict(
                f"the commit to {self.name} failed: version {log.version} of the table no longer exists"
            )
        steps.reached("after-commit")
        after = _Log(version, log.schema, log.partitioning, dict(log.files), dict(log.gone), dict(log.pipelines))
        after.apply(entry)
        if version % WHOLE_EVERY == 0:
            self._storage.replace(f"{LOG}/{version:020}.all", json.dumps({"v": FORMAT_VERSION, **vars(after)}).encode())
        return self._state(after)

    def check_columns(self, state: TableState, wanted: pa.Schema, renames: dict[str, str]) -> list[Step]:
        changes = steps_between(state.schema, wanted, renames)
        renamed = [step for step in changes if isinstance(step, RenameColumn | ChangeInside)]
        if renamed:
            raise EvolutionRefused(
                f"plain Parquet files identify columns by name, so {renamed} is not possible: "
                "use --format iceberg, or another table"
            )
        return changes

    def evolve(self, state: TableState, wanted: pa.Schema, renames: dict[str, str]) -> TableState:
        changes = self.check_columns(state, wanted, renames)
        if not changes:
            return state
        return self._commit(state, {"schema": _schema_text(evolved(state.schema, changes))})

    def files(self, state: TableState) -> list[TableFile]:
        log: _Log = state.reference
        return [TableFile(path, size, rows, partition) for path, (size, rows, partition) in log.files.items()]

    def read_file(self, state: TableState, file: TableFile) -> pa.Table:
        return self._storage.read_rows(file.location, state.schema)

    def expire(self, state: TableState, keep_versions: int, older_than_ms: int) -> int:
        """Delete data files that were removed from the table before `older_than_ms` (Unix time). Also delete the log
        files that precede the second newest log file with a complete state. Return the number of deleted data files.
        `keep_versions` has no effect.
        """
        log: _Log = state.reference
        forgotten = [path for path, gone_ms in log.gone.items() if gone_ms < older_than_ms]
        if forgotten:
            # The log first, then the files: a kill in between leaves orphans, which cleaning removes.
            self._commit(state, {"forget": forgotten})
            steps.reached("expired")
            self.delete_files([self._storage.location(path) for path in forgotten])
        names = self._versions()  # without temporary files, which belong to pending commits
        wholes = [name for name in names if name.endswith(".all")]
        if len(wholes) > 1:
            needless = [name for name in names if name[:20] < wholes[-2][:20]]
            self.delete_files([self._storage.location(f"{LOG}/{name}") for name in needless])
        return len(forgotten)

    def orphans(self, state: TableState, older_than_ms: int) -> list[str]:
        log: _Log = state.reference
        leftovers = Leftovers(self._pipeline, state.progress.lease.epoch, older_than_ms)
        found = []
        for file in self._storage.walk():
            path = self._storage.relative(file.location)
            is_log = path.startswith(f"{LOG}/")
            is_known = path in log.files or path in log.gone or (is_log and not path.endswith(".tmp"))
            if not is_known and leftovers.may_go(file.location, file.changed_ms):
                found.append(file.location)
        return found

    def delete_files(self, locations: Sequence[str]) -> None:
        for location in locations:
            self._storage.delete(location)

    def data_files(self) -> list[str]:
        """Return the locations of the newest version's files, for readers such as DuckDB or pandas."""
        return [self._storage.location(file.location) for file in self.files(self.load())]

    def _put(self, version: int, entry: dict[str, Any]) -> None:
        entry |= {"v": FORMAT_VERSION, "timeMs": int(time.time() * 1000)}
        self._storage.put_if_absent(f"{LOG}/{version:020}", json.dumps(entry, separators=(",", ":")).encode())

    def _versions(self) -> list[str]:
        return [
            name
            for name in self._storage.names(LOG)
            if name[:20].isdecimal() and (len(name) == 20 or name.endswith(".all"))
        ]

    def _read(self) -> _Log:
        names = self._versions()
        if not names:
            raise TableMissing(f"the table {self.name} does not exist")
        log = _Log()
        wholes = [name for name in names if name.endswith(".all")]
        if wholes:
            document = json.loads(self._storage.read(f"{LOG}/{wholes[-1]}"))
            _check_version(document, self.name)
            log = _Log(**{key: value for key, value in document.items() if key != "v"})
        for name in names:
            if len(name) == 20 and int(name) > log.version:
                document = json.loads(self._storage.read(f"{LOG}/{name}"))
                _check_version(document, self.name)
                if int(name) != log.version + 1:  # a listing is no snapshot: a commit or trimming ran meanwhile
                    raise FileNotFoundError(f"{LOG}/{log.version + 1:020}")
                log.apply(document)
                log.version = int(name)
        return log

    def _state(self, log: _Log) -> TableState:
        own = log.pipelines.get(self._pipeline, {})
        partitioning = (
            Partitioning(log.partitioning[0], "hour" if log.partitioning[1] == "hour" else "day")
            if log.partitioning
            else None
        )
        return TableState(
            progress=Progress(
                positions_of(own["positions"]) if "positions" in own else {},
                lease_of(own["lease"]) if "lease" in own else Lease(),
            ),
            schema=pa.ipc.read_schema(pa.py_buffer(base64.b64decode(log.schema))),
            partitioning=partitioning,
            data_location=self._storage.location("data"),
            version=str(log.version),
            reference=log,
        )


def _schema_text(schema: pa.Schema) -> str:
    nullable = pa.schema([column.with_nullable(True).remove_metadata() for column in schema])
    return base64.b64encode(nullable.serialize().to_pybytes()).decode()


def _check_version(document: dict[str, Any], name: str) -> None:
    if document.get("v") != FORMAT_VERSION:
        raise TableMissing(
            f"the log of the table {name} has version {document.get('v')}, but this release reads only version "
            f"{FORMAT_VERSION}: use a newer pybroker"
        )

"""`pybroker ledger verify`: reads every copy of every entry on BookKeeper, and reports invalid copies."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from pybroker.bookkeeper import LedgerReader, LedgerState
from pybroker.bookkeeper.errors import EntryUnavailable, InvalidMetadata, NoSuchLedger
from pybroker.bookkeeper.inspection.copies import CopyState, EntryCopies, EntryCopy
from pybroker.tools.items import Item
from pybroker.tools.ledgers_on_bookkeeper.connecting import EXIT_FOUND, EXIT_OK, LedgerTool
from pybroker.tools.ledgers_on_bookkeeper.dumping import open_note, open_without_recovery

_PROGRESS_S = 1.0


@dataclass(slots=True)
class _Run:
    copy: EntryCopy
    first_entry_id: int
    last_entry_id: int
    count: int = 1


class Verification:
    """The verification of one or all ledgers, with the number of damaged ledgers."""

    def __init__(self, tool: LedgerTool) -> None:
        self._tool = tool
        self._runs: dict[str, _Run] = {}
        self._shows_progress = sys.stderr.isatty()
        self._shown_s = time.monotonic()
        self._ledger_count = 0
        self._entry_count = 0
        self._copy_count = 0
        self._lost_count = 0
        self._bad_counts: dict[CopyState, int] = {}
        self._unreadable_count = 0

    async def run(self, ledger_id: int | None) -> int:
        """Verify one ledger, or all ledgers if `ledger_id` is None. Return the exit code."""
        if ledger_id is not None:
            await self._verify(await open_without_recovery(self._tool, ledger_id))
        else:
            async for page in self._tool.client.ledger_pages():
                for each in page:
                    await self.verify_one(each)
        return self.finish({})

    def finish(self, more: Item) -> int:
        self._tool.write(self._summary() | more)
        return EXIT_FOUND if sum(self._bad_counts.values()) + self._unreadable_count else EXIT_OK

    async def verify_one(self, ledger_id: int) -> None:
        """Verify a ledger. It counts as damaged if it cannot be opened, and is skipped if it does not exist."""
        try:
            reader = await open_without_recovery(self._tool, ledger_id)
        except NoSuchLedger:
            return  # deleted meanwhile
        except (InvalidMetadata, EntryUnavailable) as error:
            self._unreadable_count += 1
            self._tool.write({"kind": "damage", "ledger": ledger_id, "text": str(error)})
            return
        await self._verify(reader)

    async def _verify(self, reader: LedgerReader) -> None:
        ledger_id = reader.ledger_id
        self._ledger_count += 1
        if reader.metadata.state is not LedgerState.CLOSED:
            self._tool.write(open_note(ledger_id, reader))
        async for entry in self._tool.client.read_copies(reader, 0, reader.last_readable):
            self._take(reader, entry)
            self._progress(ledger_id, entry.entry_id, reader.last_readable)
        for run in self._runs.values():
            self._write(ledger_id, run)
        self._runs.clear()

    def _take(self, reader: LedgerReader, entry: EntryCopies) -> None:
        self._entry_count += 1
        self._copy_count += len(entry.copies)
        valid_count = sum(each.state is CopyState.VALID for each in entry.copies)
        self._lost_count += valid_count == 0
        # The writer of an open ledger need not have stored the copies above the ack quorum yet.
        is_pending = reader.metadata.state is LedgerState.OPEN and valid_count >= reader.metadata.quorums.ack_quorum
        for copy in entry.copies:
            run = self._runs.get(copy.bookie_id)
            if run is not None and run.copy.state is copy.state:
                run.last_entry_id, run.count = entry.entry_id, run.count + 1
            else:
                if run is not None:
                    self._write(reader.ledger_id, self._runs.pop(copy.bookie_id))
                if copy.state is CopyState.VALID or (copy.state is CopyState.MISSING and is_pending):
                    continue
                self._runs[copy.bookie_id] = _Run(copy, entry.entry_id, entry.entry_id)
            self._bad_counts[copy.state] = self._bad_counts.get(copy.state, 0) + 1

    def _write(self, ledger_id: int, run: _Run) -> None:
        first, last, copy = run.first_entry_id, run.last_entry_id, run.copy
        item: Item = {
            "kind": "copies",
            "state": copy.state.value,
            "bookie": copy.bookie_id,
            "first": f"{ledger_id}:{first}",
            "last": f"{ledger_id}:{last}",
            "count": run.count,
        }
        if copy.detail:
            item["text"] = copy.detail
        self._tool.write(item)

    def _summary(self) -> Item:
        return {
            "kind": "summary",
            "ledgers": self._ledger_count,
            "entries": self._entry_count,
            "copies": self._copy_count,
            **{state.value: self._bad_counts.get(state, 0) for state in CopyState if state is not CopyState.VALID},
            "entries_without_valid_copy": self._lost_count,
            "ledgers_not_verified": self._unreadable_count,
        }

    def _progress(self, ledger_id: int, entry_id: int, last_entry_id: int) -> None:
        if self._shows_progress and time.monotonic() - self._shown_s >= _PROGRESS_S:
            self._shown_s = time.monotonic()
            sys.stderr.write(f"verify: ledger {ledger_id}, entry {entry_id} of {last_entry_id}\n")

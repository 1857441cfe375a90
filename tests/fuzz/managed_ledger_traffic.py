"""What clients do to managed ledgers, and how a step finds what it is about: the first half of the steps of a script.

Each step takes plain numbers, which are taken modulo what there is, so that a script stays valid when steps are left out.
"""

from __future__ import annotations

from random import Random

from tests.fuzz.managed_ledger_life import HEADER_BYTES
from tests.fuzz.managed_ledger_model import ModelCursor, ModelRun, ModelTopic
from tests.fuzz.managed_ledger_world import LiveTopic, ManagedLedgerWorld

from pybroker.errors import LedgerFenced, LedgerTerminated, StorageFull, StoreError
from pybroker.ledgers.ledger_store import EntryRun
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.model import ack_set
from pybroker.model.position import Position


class Traffic(ManagedLedgerWorld):
    """The world with publishing, reading and acknowledging."""

    # --- choosing ----------------------------------------------------------------------------------------------------

    def pick(self, number: int) -> LiveTopic | None:
        live = list(self.open.values())
        return live[number % len(live)] if live else None

    def pick_cursor(self, topic: int, cursor: int) -> tuple[LiveTopic, ModelCursor, ManagedCursor] | None:
        live = self.pick(topic)
        if live is None or not live.model.cursors:
            return None
        name = sorted(live.model.cursors)[cursor % len(live.model.cursors)]
        return live, live.model.cursors[name], live.managed.cursors[name]

    @staticmethod
    def pick_position(model: ModelTopic, number: int) -> Position:
        """Some entry, or, rarely, a place where none is."""
        if not model.entries or number % 11 == 10:
            return Position(max(0, model.last_position.ledger_id) + number % 2, number)
        return model.entries[number % len(model.entries)].position

    # --- publishing --------------------------------------------------------------------------------------------------

    def append(self, topic: int, runs: int, size: int, count: int, waits: int) -> None:
        """`runs` runs of `count` entries of about `size` bytes."""
        live = self.pick(topic)
        if live is None:
            return
        for _ in range(runs):
            run = self.new_run(size, count)
            live.model.pending.append(run)
            try:
                live.managed.append(run.payloads, run.message_counts, sum(map(len, run.payloads)), run)
            except LedgerTerminated:
                assert live.model.is_terminated
                live.model.refuse(run)
            except (LedgerFenced, StorageFull):
                assert self.life.faults.has_refused, "refused for no reason"
                live.model.refuse(run)
        if waits:
            self.life.until(lambda: not live.model.pending)

    def new_run(self, size: int, count: int) -> ModelRun:
        payloads, counts = [], []
        now_ms = self.life.clock.wall_ms()
        for _ in range(count):
            self.counter += 1
            head = self.counter.to_bytes(8, "little") + now_ms.to_bytes(8, "little")
            payloads.append(head + Random(self.counter).randbytes(max(0, size - HEADER_BYTES)))
            counts.append((1, 1, 3, 70)[self.counter % 4])
        return ModelRun(payloads, counts, now_ms)

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(self, topic: int, cursor: int, entries: int, size: int) -> None:
        picked = self.pick_cursor(topic, cursor)
        if picked is None:
            return
        live, model, real = picked
        self.note_trimmed(live)
        expected = [entry for entry in live.model.entries if entry.position >= model.read_next]
        position = real.next_entry()
        assert (position is not None) == bool(expected)
        if position is None:
            return
        run = real.read_cached(position, entries, size)
        if run is None:
            try:
                run = self.life.run(self.read_and_look(live, real, entries, size))
            except StoreError:
                assert self.life.faults.failed_reads, "a read failed for no reason"
                self.life.faults.failed_reads = 0
                return
            if run is None:
                assert expected[0].position not in live.model.positions, "nobody has moved the cursor"
                return
            expected = [entry for entry in expected if live.model.has(entry.position)]
        assert 0 < len(run.payloads) <= entries
        for number, payload in enumerate(run.payloads):
            position = Position(run.ledger_id, run.first_entry_id + number)
            assert number < len(expected), f"{position} is not there for readers yet"
            assert position == expected[number].position, f"{position} read, {expected[number].position} expected"
            assert payload == expected[number].payload, f"{position} holds other bytes"
            assert run.message_counts[number] == expected[number].message_count
        model.read_next = Position(run.ledger_id, run.first_entry_id + len(run.payloads))

    async def read_and_look(self, live: LiveTopic, real: ManagedCursor, entries: int, size: int) -> EntryRun | None:
        run = await real.read(entries, size)
        self.note_trimmed(live)  # now: in the next turn there may be less
        return run

    def read_while_publishing(self, topic: int, cursor: int, size: int, turns: int) -> None:
        """From the front, and no further than what is durable."""
        self.rewind(topic, cursor)
        self.append(topic, 2, size, 1, waits=0)
        self.settle(turns)
        for _ in range(4):
            self.read(topic, cursor, entries=100, size=100_000)

    def rewind(self, topic: int, cursor: int) -> None:
        if picked := self.pick_cursor(topic, cursor):
            self.note_trimmed(picked[0])
            picked[2].rewind()
            picked[1].rewind()

    # --- acknowledging -----------------------------------------------------------------------------------------------

    def changed(self, model: ModelCursor, real: ManagedCursor, receipt: int, waits: int) -> None:
        """The cursor has changed; with `receipt` its present state is promised once that is told."""
        if not receipt:
            real.changed(None)
            return
        life, version, answers = self.life, model.version, []

        def done(error: StoreError | None) -> None:
            answers.append(error)
            if not life.is_over:
                if error is None:
                    model.promised(version)
                elif not life.faults.has_refused:
                    life.broken.append(error)

        real.changed(done)
        if waits:
            self.life.until(lambda: bool(answers))

    def acknowledge(
        self, topic: int, cursor: int, first: int, count: int, stride: int, receipt: int, waits: int
    ) -> None:
        """Entries of one ledger in any order; `stride` -1 takes them backwards, 0 from where the cursor stands."""
        picked = self.pick_cursor(topic, cursor)
        if picked is None:
            return
        live, model, real = picked
        ledger_id, entry_id = self.pick_position(live.model, first)
        if stride == 0 and (left := model.left()):
            ledger_id, entry_id = left[0].position
        entry_ids = [entry_id + number * max(1, abs(stride)) for number in range(count)]
        if stride < 0:
            entry_ids.reverse()
        newly = model.delete(Position(ledger_id, entry_id) for entry_id in entry_ids)
        assert real.state.acknowledge(ledger_id, entry_ids) == newly
        self.changed(model, real, receipt, waits)

    def acknowledge_ledger(self, topic: int, cursor: int, entry: int, receipt: int, waits: int) -> None:
        """All that some entry's ledger holds."""
        picked = self.pick_cursor(topic, cursor)
        if picked is None:
            return
        live, model, real = picked
        ledger_id = self.pick_position(live.model, entry).ledger_id
        positions = [each.position for each in live.model.entries if each.position.ledger_id == ledger_id]
        newly = model.delete(positions)
        assert real.state.acknowledge(ledger_id, [position.entry_id for position in positions]) == newly
        self.changed(model, real, receipt, waits)

    def acknowledge_batch(self, topic: int, cursor: int, entry: int, word: int, receipt: int, waits: int) -> None:
        picked = self.pick_cursor(topic, cursor)
        if picked is None or not picked[0].model.entries:
            return
        live, model, real = picked
        there = live.model.entries[entry % len(live.model.entries)]
        # The same bits for each word of a batch of seventy.
        words = ack_set.to_words(ack_set.full(there.message_count) & (word | word << 67))
        left = model.delete_batch(there, ack_set.from_words(words))
        assert real.state.acknowledge_batch(there.position, words, there.message_count) == left
        self.changed(model, real, receipt, waits)

    def acknowledge_up_to(self, topic: int, cursor: int, entry: int, receipt: int, waits: int) -> None:
        picked = self.pick_cursor(topic, cursor)
        if picked is None:
            return
        live, model, real = picked
        position = self.pick_position(live.model, entry)
        assert real.state.mark_delete_to(position) == model.delete_up_to(position)
        self.changed(model, real, receipt, waits)

    def settle(self, turns: int) -> None:
        self.life.turns(turns)

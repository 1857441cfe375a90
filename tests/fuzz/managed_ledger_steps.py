"""What owners and administrators do to managed ledgers, and all that can befall the machine: the steps of a script.

`STEPS` says how often a random walk takes each, and which numbers it draws.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tests.fuzz.managed_ledger_life import Crashed
from tests.fuzz.managed_ledger_model import ModelCursor, ModelTopic
from tests.fuzz.managed_ledger_traffic import Traffic
from tests.fuzz.managed_ledger_world import TOPIC_NAMES, LiveTopic, Next

from pybroker.errors import StoreError
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.managed_ledger.retention import RetentionLimits
from pybroker.model.position import EARLIEST, LATEST, Position


class Steps(Traffic):
    """The world with everything that can be done to it."""

    # --- cursors and topics come and go ------------------------------------------------------------------------------

    def create_cursor(self, topic: int, name: int, entry: int, durable: int) -> None:
        """Behind some entry, behind all of them (`entry` -1) or before all of them (-2)."""
        live = self.pick(topic)
        if live is None:
            return
        key = f"{'cn'[not durable]}{name}"
        if key in live.model.cursors:
            return
        if not durable:
            position = self.place_of_cursor(live, entry)
            live.model.cursors[key] = ModelCursor(live.model, position, is_durable=False)
            live.model.cursors[key].properties = [{}]
            self.life.factory.create_non_durable_cursor(live.managed, key, position)
            return
        model: ModelCursor
        position: Position  # type: ignore[no-redef]

        def create() -> None:
            # From the call on nothing is trimmed that the cursor shall read.
            nonlocal model, position
            position = self.place_of_cursor(live, entry)
            model = live.model.maybe[key] = live.model.cursors[key] = ModelCursor(live.model, position, is_durable=True)
            model.properties = [{"made": key}]

        def work() -> Awaitable[ManagedCursor]:
            return self.life.factory.create_cursor(live.managed, key, position, {"made": key})

        try:
            self.changing(live, create, work)
        except Crashed:
            live.model.cursors.pop(key, None)
            raise
        except StoreError:
            assert self.life.faults.has_refused
            live.model.cursors.pop(key)
        del live.model.maybe[key]

    def place_of_cursor(self, live: LiveTopic, entry: int) -> Position:
        position = live.managed.last_confirmed if entry == -1 else self.pick_position(live.model, entry)
        if entry == -2 or not live.managed.ledgers.has_entry(position):
            position = live.managed.ledgers.previous_position(EARLIEST)
        return position

    def delete_cursor(self, topic: int, cursor: int) -> None:
        picked = self.pick_cursor(topic, cursor)
        if picked is None:
            return
        live, model, real = picked
        del live.model.cursors[real.name]
        if not model.is_durable:
            self.life.factory.drop_non_durable_cursor(live.managed, real)
            return
        live.model.maybe[real.name] = model
        try:
            self.life.run(self.life.factory.delete_cursor(live.managed, real))
        except StoreError:
            assert self.life.faults.has_refused
            if real.name in live.managed.cursors:
                live.model.cursors[real.name] = model
        else:
            self.dead_cursors.add(real.cursor_id)
        live.model.maybe.pop(real.name, None)

    def set_properties(self, topic: int, cursor: int, value: int) -> None:
        picked = self.pick_cursor(topic, cursor)
        if picked is None:
            return
        model, real = picked[1:]
        properties = {"made": real.name, "value": str(value)}
        model.properties.append(properties)
        try:
            self.life.run(real.set_properties(properties))
        except StoreError:
            assert self.life.faults.has_refused
            model.properties.pop()
        model.properties = model.properties[-1:]

    # --- what an administrator does ----------------------------------------------------------------------------------

    def administer(
        self, live: LiveTopic, model: ModelCursor, change: Callable[[], int], work: Callable[[], Awaitable[int | None]]
    ) -> None:
        """`change` the model and do `work`, which is durable when it returns; both say how many entries that deleted."""
        version = deleted = 0

        def change_model() -> None:
            nonlocal version, deleted
            deleted = change()
            version = model.version

        try:
            answer = self.changing(live, change_model, work)
        except StoreError:
            assert self.life.faults.has_refused or self.life.faults.failed_reads
            return
        assert answer is None or answer == deleted, f"{deleted} entries were to be deleted"
        if answer != 0:  # else there was perhaps nothing to write
            model.promised(version)

    def reset(self, topic: int, cursor: int, entry: int) -> None:
        """To some entry, or behind the last one (-1), or before all (-2)."""
        picked = self.pick_cursor(topic, cursor)
        if picked is None:
            return
        live, model, real = picked
        position = {-1: LATEST, -2: EARLIEST}.get(entry) or self.pick_position(live.model, entry)
        self.administer(live, model, lambda: model.reset(position), lambda: real.reset(position))

    def skip(self, topic: int, cursor: int, entries: int) -> None:
        """So many entries, or all of them (-1)."""
        picked = self.pick_cursor(topic, cursor)
        if picked is None:
            return
        live, model, real = picked

        def change() -> int:
            left = model.left()[: entries if entries >= 0 else None]
            deleted = model.delete_up_to(left[-1].position) if left else 0
            if entries:
                model.skip_reading()
            return deleted

        self.administer(live, model, change, lambda: real.skip(entries) if entries >= 0 else real.skip_all())

    def expire(self, topic: int, cursor: int, age: int, is_position: int) -> None:
        """What is older than so many tenths of a second; or up to the entry of that number."""
        picked = self.pick_cursor(topic, cursor)
        if picked is None:
            return
        live, model, real = picked
        self.calm_down()
        self.life.faults.read_errors = 0
        self.note_trimmed(live)
        before_ms = self.life.clock.wall_ms() - 100 * age
        position = self.pick_position(live.model, age)

        def change() -> int:
            entries = live.model.entries
            old = [
                e.position for e in entries if (e.position <= position if is_position else e.published_ms < before_ms)
            ]
            deleted = model.delete(old)
            if is_position or deleted:
                model.skip_reading()
            return deleted

        self.administer(
            live, model, change, lambda: real.expire_to(position) if is_position else real.expire(before_ms)
        )

    def find(self, topic: int, age: int) -> None:
        """By publish time."""
        live = self.pick(topic)
        if live is None:
            return
        self.calm_down()
        self.life.faults.read_errors = 0
        self.note_trimmed(live)
        time_ms = self.life.clock.wall_ms() - 100 * age
        late = [entry.position for entry in live.model.entries if entry.published_ms >= time_ms]
        found = self.life.run(live.managed.find_by_publish_time(time_ms))
        assert found == (late[0] if late else live.managed.ledgers.end_position)

    def set_retention(self, topic: int, time_ms: int, size: int) -> None:
        live = self.pick(topic)
        if live is not None:
            live.managed.retention = live.model.retention = RetentionLimits(time_ms, size)

    def trim(self, topic: int) -> None:
        live = self.pick(topic)
        if live is None:
            return
        self.calm_down()
        try:
            self.life.run(live.managed.trim())
        except StoreError:
            assert self.life.faults.has_refused
            return
        self.calm_down()
        self.note_trimmed(live)
        if not self.life.faults.has_refused:
            self.check_nothing_is_left_to_trim(live)

    def truncate(self, topic: int) -> None:
        live = self.pick(topic)
        if live is None:
            return
        self.calm_down()
        versions: dict[str, int] = {}

        def change() -> None:
            live.model.ignores_retention = True
            for name, cursor in live.model.cursors.items():
                cursor.delete([entry.position for entry in live.model.entries])
                cursor.skip_reading()
                versions[name] = cursor.version

        try:
            self.changing(live, change, live.managed.truncate)
        except StoreError:
            # Some cursors may be as they were.
            assert self.life.faults.has_refused
            self.crash(0, 0)
        for name, version in versions.items():
            live.model.cursors[name].promised(version)
        self.note_trimmed(live)
        live.model.ignores_retention = False

    def terminate(self, topic: int) -> None:
        live = self.pick(topic)
        if live is None:
            return
        model = live.model
        model.may_be_terminated = True
        try:
            last = self.life.run(live.managed.terminate())
        except StoreError:
            assert self.life.faults.has_refused
            model.may_be_terminated = False
            return
        model.is_terminated = True
        assert not model.pending, "appends were under way when the last position was told"
        # An empty ledger comes behind entries that are trimmed.
        assert last == model.last_position or (last.entry_id == -1 and last > model.last_position)

    def open_topic(self, name: int) -> None:
        """Make a topic, or open one that was closed."""
        key = TOPIC_NAMES[name % len(TOPIC_NAMES)]
        if key not in self.open:
            self.open_and_check(self.topics.setdefault(key, ModelTopic(key)))

    def close_topic(self, topic: int) -> None:
        """What was acknowledged is stored then, receipt or not."""
        live = self.pick(topic)
        if live is None:
            return
        try:
            self.life.run(live.managed.close())
        except StoreError:
            assert self.life.faults.has_refused
            self.crash(0, 0)
        self.closed(live.model)

    def closed(self, model: ModelTopic) -> None:
        self.check_ledger_ids(self.open[model.name])
        del self.open[model.name]
        assert not model.pending, "a topic is closed and appends are not answered"
        model.cursors = {name: cursor for name, cursor in model.cursors.items() if cursor.is_durable}
        for cursor in model.cursors.values():
            if not self.life.faults.has_refused:
                cursor.promised(cursor.version)

    def delete_topic(self, topic: int) -> None:
        live = self.pick(topic)
        if live is None:
            return
        model = live.model
        model.is_going = True
        cursor_ids = [cursor.cursor_id for cursor in live.managed.cursors.values() if cursor.is_durable]
        try:
            self.life.run(self.life.factory.delete(live.managed))
        except StoreError:
            assert self.life.faults.has_refused
            self.crash(0, 0)
        del self.topics[model.name], self.open[model.name]
        self.dead_cursors.update(cursor_ids)

    # --- the store ---------------------------------------------------------------------------------------------------

    def checkpoint(self, waits: int, after: int = 0) -> None:
        """In `after` tenths of a millisecond, when something else may be under way."""

        async def later() -> bool:
            await asyncio.sleep(after / 10_000)
            return await self.life.store._checkpointer.run()

        work = later()
        if waits and not self.life.faults.is_full:
            assert self.life.run(work)
        else:
            self.background.add(task := self.life.loop.create_task(work))
            task.add_done_callback(self.background.discard)

    def time_passes(self, tenths: int) -> None:
        self.pass_time(tenths / 10)

    def look(self) -> None:
        """Everything comes to rest, and all of it is read."""
        self.calm_down()
        faults = self.life.faults
        has_trouble = faults.is_full or faults.metadata_errors or faults.has_refused
        self.pass_time(1)
        for live in self.open.values():
            self.note_trimmed(live)
            self.check_entries(live)
            self.check_backlogs(live)
            if not has_trouble:  # what nobody asked a receipt for is written soon
                for cursor in live.model.cursors.values():
                    cursor.promised(cursor.version)
        self.check_ledgers_of_store()

    def restart(self) -> None:
        """A clean stop; nothing may be lost even if the power goes right then."""
        try:
            for live in list(self.open.values()):
                self.life.run(live.managed.close())
                self.closed(live.model)
            self.life.run(self.life.factory.close())
            self.life.run(self.life.store.close())
        except StoreError:
            assert self.life.faults.has_refused
            self.crash(1, 0)
        # With a full disk the journal is all there is, and perhaps not synced.
        self.next = Next(is_power_loss=self.options.sync_data or not self.life.faults.is_full)
        self.life.end()
        raise Crashed

    # --- what befalls the machine ------------------------------------------------------------------------------------

    def crash(self, is_power_loss: int, again: int) -> None:
        """Now. With `again`, the next start is cut off too, so many operations after it began."""
        self.next = Next(bool(is_power_loss) and self.options.sync_data, again or None)
        self.life.end()
        raise Crashed

    def crash_soon(self, operations: int, is_power_loss: int, again: int) -> None:
        """At some operation on the disk or on metadata, whichever step it is that makes it."""
        self.next = Next(bool(is_power_loss) and self.options.sync_data, again or None)
        self.life.faults.crash_after = operations

    def write_fails_soon(self, operations: int, is_power_loss: int) -> None:
        """Which ends the process, and perhaps the machine."""
        self.next = Next(bool(is_power_loss) and self.options.sync_data)
        self.life.faults.write_error_after = operations

    def reads_fail(self, count: int) -> None:
        self.life.faults.read_errors = count

    def metadata_fails(self, count: int) -> None:
        self.life.faults.metadata_errors = count

    def answers_are_lost(self, stored: int) -> None:
        """It is unknown whether the next run is stored; `stored` of its entries are."""
        self.life.store.lost_answers = 1
        self.life.store.stored_count = stored

    def no_space(self, kept: int) -> None:
        """No write finds room; of each, `kept` bytes are written all the same."""
        self.life.faults.is_full = True
        self.life.faults.kept_bytes = kept

    def space_returns(self) -> None:
        """Publishing resumes by itself."""
        faults = self.life.faults
        faults.is_full = False
        faults.metadata_errors = 0
        for _ in range(3):
            self.calm_down()
            self.pass_time(1)
            for live in self.open.values():
                live.managed.roll_if_old()  # as the broker does from time to time
        self.calm_down()
        for live in self.open.values():
            if not live.model.may_be_terminated:
                run = self.new_run(100, 1)
                live.model.pending.append(run)
                live.managed.append(run.payloads, run.message_counts, sum(map(len, run.payloads)), run)
                self.life.until(lambda model=live.model: not model.pending)  # type: ignore[misc]
                assert live.model.entries[-1].payload == run.payloads[0], "publishing does not resume"

    def disk_is_slow(self, factor: int) -> None:
        self.life.loop.slowness = factor

    def bit_flips(self, topic: int, entry: int, offset: int) -> None:
        """One entry of a segment file is damaged: nobody is given wrong bytes. Then the flip is undone."""
        live = self.pick(topic)
        if live is None or not live.model.entries:
            return
        self.calm_down()
        there = live.model.entries[entry % len(live.model.entries)]
        file = f"{there.position.ledger_id:020d}.ledger"
        if file not in [path.name for path in self.life.disk._names]:
            return
        at = self.life.disk.read_whole(file).find(there.payload)
        if at < 0:
            return
        at += offset % len(there.payload)
        self.life.disk.flip_bit(file, at)
        try:
            for number in range(-1, 2):
                self.read_damaged(live, Position(there.position.ledger_id, there.position.entry_id + number))
        finally:
            self.life.disk.flip_bit(file, at)

    def read_damaged(self, live: LiveTopic, position: Position) -> None:
        if not live.model.has(position):
            return
        expected = [entry for entry in live.model.entries if entry.position >= position]
        try:
            run = self.life.run(live.managed.read(position, 10, 100_000))
        except StoreError:
            return
        assert run.payloads == [entry.payload for entry in expected[: len(run.payloads)]], "damaged bytes are given out"


def numbers(low: int, high: int) -> Sequence[int]:
    return range(low, high + 1)


BOTH = (0, 1)
TOPIC = {"topic": numbers(0, 2)}
CURSOR = {**TOPIC, "cursor": numbers(0, 5)}
RECEIPT = {"receipt": BOTH, "waits": BOTH}
AGAIN = (0, 0, 0, 3, 8, 20)

STEPS: dict[str, tuple[int, dict[str, Sequence[int]]]] = {
    "append": (
        14,
        {
            **TOPIC,
            "runs": (1, 1, 2, 4),
            "size": (0, 40, 100, 700, 5000, 30_000),
            "count": (1, 1, 2, 3, 8),
            "waits": BOTH,
        },
    ),
    "read": (6, {**CURSOR, "entries": (1, 2, 5, 100), "size": (1, 1000, 100_000)}),
    "read_while_publishing": (2, {**CURSOR, "size": (0, 700, 5000), "turns": (0, 2, 10)}),
    "rewind": (1, CURSOR),
    "acknowledge": (
        10,
        {**CURSOR, "first": numbers(0, 60), "count": (1, 1, 2, 3, 7), "stride": (0, 0, 1, 2, -1), **RECEIPT},
    ),
    "acknowledge_ledger": (4, {**CURSOR, "entry": numbers(0, 60), **RECEIPT}),
    "acknowledge_batch": (4, {**CURSOR, "entry": numbers(0, 60), "word": numbers(0, 7), **RECEIPT}),
    "acknowledge_up_to": (3, {**CURSOR, "entry": numbers(0, 60), **RECEIPT}),
    "create_cursor": (
        3,
        {**TOPIC, "name": numbers(0, 2), "entry": (-2, -2, -1, *numbers(0, 20)), "durable": (0, 1, 1)},
    ),
    "delete_cursor": (1, CURSOR),
    "set_properties": (1, {**CURSOR, "value": numbers(0, 9)}),
    "reset": (2, {**CURSOR, "entry": (-2, -1, *numbers(0, 60))}),
    "skip": (1, {**CURSOR, "entries": (-1, 0, 1, 4)}),
    "expire": (1, {**CURSOR, "age": (0, 1, 5, 20), "is_position": BOTH}),
    "find": (1, {**TOPIC, "age": (0, 1, 5, 20)}),
    "set_retention": (2, {**TOPIC, "time_ms": (-1, 0, 0, 300, 5000), "size": (-1, 0, 0, 300, 10_000)}),
    "trim": (3, TOPIC),
    "truncate": (1, TOPIC),
    "terminate": (1, TOPIC),
    "open_topic": (3, {"name": numbers(0, 2)}),
    "close_topic": (1, TOPIC),
    "delete_topic": (1, TOPIC),
    "checkpoint": (4, {"waits": BOTH, "after": (0, 0, 1, 5, 10, 20)}),
    "settle": (3, {"turns": (1, 2, 5, 20)}),
    "time_passes": (1, {"tenths": (1, 20)}),
    "look": (1, {}),
    "restart": (1, {}),
    "crash": (3, {"is_power_loss": BOTH, "again": AGAIN}),
    "crash_soon": (4, {"operations": numbers(0, 40), "is_power_loss": BOTH, "again": AGAIN}),
    "write_fails_soon": (1, {"operations": numbers(0, 20), "is_power_loss": BOTH}),
    "reads_fail": (1, {"count": (1, 3)}),
    "metadata_fails": (1, {"count": (1, 2)}),
    "answers_are_lost": (3, {"stored": (0, 1, 2, 5)}),
    "no_space": (1, {"kept": (0, 10, 36)}),
    "space_returns": (2, {}),
    "disk_is_slow": (1, {"factor": (1, 1, 100)}),
    "bit_flips": (2, {**TOPIC, "entry": numbers(0, 60), "offset": (0, 9, 15, 20, 500)}),
}

"""The model of a Key_Shared subscription, in all of its modes.

Beside what `dispatch_model.py` holds for every type: nobody but its holder has unacknowledged entries of a hash; an entry
is sent only when every earlier one of its hash is acknowledged or held; whatever may go to somebody who can take it does
go, or somebody is woken for it, however many entries of other keys are stuck; the counts of what drains are
right; and what is listed takes no more memory than it may, while what is set aside is found again, once, and in order.
Delayed entries are held back when they are read and come in front of others of their key later.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from tests.fuzz.dispatch_model import ModelConsumer, Read, Subscription, entry_at, position_of

from pybroker.dispatch.consumer_state import ConsumerState, KeySharedOptions
from pybroker.dispatch.dispatcher import ReadPlan, Redelivery
from pybroker.dispatch.key_shared.keyed_redelivery import ENTRY_BYTES, HASH_BYTES, PART_BYTES
from pybroker.dispatch.key_shared_classic import ClassicKeySharedDispatcher
from pybroker.dispatch.key_shared_dispatcher import KeySharedDispatcher, KeySharedSettings
from pybroker.errors import ConsumerAssignError, ConsumerBusy

# Few keys, so that they meet; spread over the space, so that owners differ.
KEY_HASHES = [3, 14_000, 26_000, 40_000, 58_000]
SEGMENTS = [(0, 16383), (16384, 32767), (32768, 49151), (49152, 65535)]
MAX_ENTRY_BYTES = ENTRY_BYTES + HASH_BYTES + 2 * PART_BYTES
MODES = ("ring", "halves", "sticky", "out of order", "classic")


class KeySharedSubscription(Subscription):
    """The subscription, its cursor, its consumers, and who holds what of which key."""

    def __init__(self) -> None:
        super().__init__()
        self.mode = "ring"
        self.look_ahead = (0, 0, 0)
        self.has_delays = False
        self.was_due: set[int] = set()
        self.joined_at: dict[str, int] = {}  # classic: the read position when a consumer joined

    # --- the model ---------------------------------------------------------------------------------------------------

    @property
    def key_shared(self) -> KeySharedDispatcher:
        assert isinstance(self.dispatcher, KeySharedDispatcher)
        return self.dispatcher

    @property
    def promises_one_holder(self) -> bool:
        return self.mode != "out of order"

    def key_of(self, entry: int) -> int:
        """Which of the keys: the entry's number, mixed."""
        return entry * entry % 31 % len(KEY_HASHES)

    def key_hashes(self, entries: list[int]) -> list[int] | None:
        return [KEY_HASHES[self.key_of(entry)] for entry in entries]

    def hash_of(self, entry: int) -> int:
        return self.key_shared.owners.selector.sticky_hashes([KEY_HASHES[self.key_of(entry)]])[0]

    def owner_of(self, entry: int) -> ModelConsumer | None:
        owner = self.key_shared.owners.selector.owner(self.hash_of(entry))
        return next((consumer for consumer in self.consumers if consumer.state is owner), None)

    def same_key(self, entry: int) -> list[int]:
        return [other for other in range(len(self.left)) if self.key_of(other) == self.key_of(entry)]

    def is_full(self) -> bool:
        per_consumer, per_subscription, _ = self.look_ahead
        limits = [limit for limit in (per_consumer * len(self.consumers), per_subscription) if limit]
        return bool(limits) and len(self.listed()) >= min(limits)

    def listed(self) -> set[int]:
        replay = self.key_shared.waiting
        return {entry for entry in self.waiting if position_of(entry) in replay}

    def is_delayed(self, entry: int) -> bool:
        return self.has_delays and entry % 7 in (2, 5) and entry not in self.was_due

    def first_unacked(self) -> int:
        return next((entry for entry, left in enumerate(self.left) if left), len(self.left))

    def is_limited(self, consumer: ModelConsumer, entry: int) -> bool:
        """Classic: whether `consumer` came too late for this entry."""
        return consumer.state.name in self.joined_at and entry >= min(self.joined_at.values())

    def movable(self) -> list[int]:
        """What the pump would move now: of each key at most the first entry that nobody holds."""
        if self.blocked:
            return []
        first: dict[int, int] = {}
        holders: dict[int, set[str]] = {}
        for entry, left in enumerate(self.left):
            if left and entry in self.holders:
                holders.setdefault(self.key_of(entry), set()).add(self.holders[entry].state.name)
            elif left and entry not in self.delayed and (entry < self.read_position or not self.is_delayed(entry)):
                first.setdefault(self.key_of(entry), entry)
        is_full = self.is_full()
        found = []
        for key, entry in first.items():
            owner = self.owner_of(entry)
            if owner is None or not owner.can_take() or self.is_limited(owner, entry):
                continue
            if self.promises_one_holder and holders.get(key, set()) - {owner.state.name}:
                continue
            if entry in self.waiting or (entry >= self.read_position and not is_full):
                found.append(entry)
        return found

    # --- consumers ---------------------------------------------------------------------------------------------------

    @initialize(
        kind=st.sampled_from(MODES),
        limit=st.sampled_from([0, 0, 8]),
        per_consumer=st.integers(0, 3),
        most=st.integers(0, 6),
        most_bytes=st.sampled_from([0, 1, 1500, 5000]),
        has_delays=st.booleans(),
    )
    def begin(
        self,
        kind: str,
        limit: int,
        per_consumer: int = 0,
        most: int = 0,
        most_bytes: int = 0,
        has_delays: bool = False,
    ) -> None:
        self.look_ahead = (per_consumer, most, most_bytes)
        self.has_delays = has_delays
        self.new_dispatcher(kind, limit)

    def new_dispatcher(self, kind: str, limit: int) -> None:
        self.mode = kind
        points = 0 if kind in ("halves", "classic") else 3
        settings = KeySharedSettings(points, *self.look_ahead)
        dispatcher = ClassicKeySharedDispatcher if kind == "classic" else KeySharedDispatcher
        self.dispatcher = dispatcher(self.tracker, 10, 1 << 20, limit, settings)
        self.limit = limit
        self.rewind()

    @precondition(lambda self: not self.consumers)
    @rule(kind=st.sampled_from(MODES), limit=st.sampled_from([0, 8]))
    def change_type(self, kind: str, limit: int) -> None:
        self.new_dispatcher(kind, limit)

    @precondition(lambda self: len(self.consumers) < 4)
    @rule(
        limit=st.sampled_from([0, 0, 1, 6]),
        permits=st.integers(0, 8),
        segments=st.sets(st.integers(0, 3), max_size=3),
        stranger=st.integers(0, 9),
    )
    def join(self, limit: int, permits: int, segments: set[int], stranger: int = 9) -> None:
        """A consumer joins, now and then one of another mode (`stranger` 0) or flag (1)."""
        is_sticky = (self.mode == "sticky") != (stranger == 0)
        ranges = [SEGMENTS[index] for index in sorted(segments)] if is_sticky else None
        options = KeySharedOptions(ranges, (self.mode == "out of order") != (stranger == 1))
        self.names += 1
        consumer = ModelConsumer(ConsumerState(f"c{self.names}", 0, limit, None, options))
        if stranger < 2 and not self.consumers:
            return  # It would be no stranger.
        if self.mode == "classic":
            consumer.state.read_position_when_joining = position_of(self.read_position)
            self.dispatcher.mark_delete_moved(position_of(self.first_unacked()))
        before = self.key_shared.owners.selector.ranges()
        try:
            redelivery = self.dispatcher.add_consumer(consumer.state)
        except ConsumerBusy:
            assert stranger < 2
            return
        except ConsumerAssignError:
            assert self.key_shared.owners.selector.ranges() == before, "a refused consumer left something behind"
            taken = [each for ranges in before.values() for each in ranges]
            assert not ranges or any(a <= end and start <= b for a, b in ranges for start, end in taken)
            return
        assert stranger >= 2, "a stranger was let in"
        self.consumers.append(consumer)
        if self.mode == "classic" and len(self.consumers) > 1 and self.read_position > self.first_unacked():
            self.joined_at[consumer.state.name] = self.read_position
        self.apply(redelivery)
        if permits:
            self.flow(consumer, permits)

    def apply(self, redelivery: Redelivery) -> None:
        super().apply(redelivery)
        self.is_woken = self.is_woken or redelivery.wake
        names = {consumer.state.name for consumer in self.consumers}
        self.joined_at = {name: entry for name, entry in self.joined_at.items() if name in names}
        if len(names) == 1:
            self.joined_at.clear()

    def rewind(self) -> None:
        super().rewind()
        self.joined_at.clear()

    def flow(self, consumer: ModelConsumer, permits: int) -> None:
        super().flow(consumer, permits)
        self.is_woken = self.is_woken or (consumer.can_take() and not self.blocked)

    # --- reading -----------------------------------------------------------------------------------------------------

    def check_plan(self, plan: ReadPlan | None) -> None:
        movable, listed = self.movable(), self.listed()
        ready = [entry for entry in movable if entry in listed]
        if plan is None:
            assert not any(entry in self.waiting for entry in movable), "what could go is not planned"
            assert not self.can_move() or self.is_full(), "nothing is read though somebody can take it"
            return
        assert self.can_move()
        if plan.scan is not None:
            assert self.waiting - listed or self.key_shared.parked, "looks again for nothing"
            return
        if plan.replay is None:
            assert not ready, "new entries are read before those that can go"
            assert not self.is_full(), "read ahead beyond the limit"
            return
        planned = [entry_at(*position) for position in plan.replay]
        assert planned == sorted(planned)
        assert set(planned) <= self.waiting
        assert 0 < len(planned) <= 10
        for entry in planned:
            owner = self.owner_of(entry)
            assert owner is not None
            assert owner.can_take()
            ahead = [other for other in self.same_key(entry) if other < entry and other in self.waiting]
            assert set(ahead) <= set(planned), "an entry is planned before an earlier one of its key"

    def check_choice(self, consumer: ModelConsumer, entries: list[int]) -> None:
        for entry in entries:
            assert self.owner_of(entry) is consumer, "sent to a consumer that does not own the hash"

    def check_turn(self, consumer: ModelConsumer, entry: int) -> None:
        assert not self.is_limited(consumer, entry), "sent to a consumer that came too late for it"
        for other in self.same_key(entry):
            holder = self.holders.get(other)
            if self.promises_one_holder:
                assert holder in (None, consumer), "a key is unacknowledged at two consumers"
            # What was due comes in front of what is read later: it may be known from before the cursor went back.
            is_gone = holder or not self.left[other] or other in self.delayed or other >= self.read_position
            assert other >= entry or is_gone, "an entry overtook an earlier one of its key"

    def check_left_over(self, entries: set[int]) -> None:
        """What could go and was kept, because of others that came back meanwhile, goes with the next read."""

    def has_more(self) -> bool:
        return bool(self.movable())

    @rule()
    def pump(self) -> None:
        """Read until the dispatcher wants nothing more; then nothing that could move is left."""
        if self.read is not None:
            self.end_read(1.0)
        for _ in range(8 * len(self.left) + 20):
            self.begin_read()
            if self.read is None:
                break
            self.end_read(1.0)
        else:
            raise AssertionError("the pump does not come to an end")
        assert not self.movable(), "the pump left something behind"
        self.is_woken = False

    @precondition(lambda self: self.read is None)
    @rule()
    def begin_read(self) -> None:
        super().begin_read()
        if self.read is not None and not self.read.entries and self.read.plan.scan is None:
            plan = self.dispatcher.next_scan()  # Nothing is new: is there something to look at again?
            self.read = None if plan is None else Read(plan)
        if self.read is not None and self.read.plan.scan is not None:
            first = entry_at(*self.read.plan.scan)
            last = min(self.read_position, first + self.read.plan.max_entries)
            self.read.entries = list(range(first, last))
        self.is_woken = self.read is not None  # The pump goes on when the read is done.

    def end_read(self, done: float) -> None:
        read = self.read
        assert read is not None
        if read.plan.scan is None or self.dispatcher.is_void(read.plan):
            super().end_read(done)
            return
        self.read = None
        entries = read.entries[: int(len(read.entries) * done)]
        self.assign(read.plan, [entry for entry in entries if entry not in self.delayed])
        if entries or not read.entries:
            end = entries[-1] + 1 if entries else self.read_position
            self.dispatcher.scanned(read.plan, position_of(end), is_at_end=end >= self.read_position)
        if len(entries) < len(read.entries):
            self.dispatcher.give_back(read.plan)

    def assign(self, plan: ReadPlan, entries: list[int]) -> None:
        if plan.replay is None and plan.scan is None and not self.dispatcher.is_void(plan):
            self.delayed |= {entry for entry in entries if self.is_delayed(entry) and self.left[entry]}
            entries = [entry for entry in entries if entry not in self.delayed]
        before = self.key_shared.waiting.size_bytes
        super().assign(plan, entries)
        bound = self.look_ahead[2]
        if bound and plan.replay is None:
            most = max(before, bound + MAX_ENTRY_BYTES)
            assert self.key_shared.waiting.size_bytes <= most, "more is listed than there is room for"

    @precondition(lambda self: self.read is None and self.delayed)
    @rule(count=st.integers(1, 5))
    def some_are_due(self, count: int) -> None:
        plan = self.dispatcher.next_read()
        if plan is None or plan.replay is not None or plan.scan is not None:
            if plan is not None:
                self.dispatcher.give_back(plan)
            self.is_woken = True
            return
        due = sorted(self.delayed)[:count]
        self.delayed -= set(due)
        self.was_due |= set(due)
        self.assign(plan, due)
        self.is_woken = True

    # --- acknowledging -----------------------------------------------------------------------------------------------

    def after_acknowledgement(self, woken: bool) -> None:
        super().after_acknowledgement(woken)
        if self.mode == "classic":
            first = self.first_unacked()
            self.is_woken = self.dispatcher.mark_delete_moved(position_of(first)) or self.is_woken
            self.joined_at = {name: entry for name, entry in self.joined_at.items() if entry > first}

    # --- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def what_can_go_goes_or_somebody_is_woken(self) -> None:
        if self.is_woken or self.read is not None or self.key_shared.has_unblocked:
            return
        assert not self.movable(), "somebody could get an entry, and nobody is woken"

    @invariant()
    def what_waits_is_listed_or_set_aside(self) -> None:
        dispatcher = self.key_shared
        listed = self.listed()
        for entry in self.waiting - listed:
            assert dispatcher.parked.covers(self.hash_of(entry), position_of(entry)), f"entry {entry} waits nowhere"
        for sticky_hash, position in () if self.has_delays else dispatcher.parked:
            assert entry_at(*position) <= self.read_position, f"{sticky_hash} is set aside where nothing is read yet"

    @invariant()
    def what_drains_is_counted(self) -> None:
        held: dict[int, dict[str, int]] = {}
        for entry, holder in self.holders.items():
            names = held.setdefault(self.hash_of(entry), {})
            names[holder.state.name] = names.get(holder.state.name, 0) + 1
        if self.promises_one_holder:
            assert all(len(names) == 1 for names in held.values()), "a key is unacknowledged at two consumers"
        draining = self.key_shared.draining
        for sticky_hash, entry in draining:  # type: ignore[assignment]
            assert held[sticky_hash] == {entry.consumer.name: entry.unacked_entries}  # type: ignore[attr-defined]
        assert draining.unacked_entries() == sum(entry.unacked_entries for _, entry in draining)
        listed = {sticky_hash for sticky_hash, _ in draining}
        for entry, holder in self.holders.items():
            if self.promises_one_holder and self.owner_of(entry) is not holder:
                assert self.hash_of(entry) in listed, "a hash that moved does not drain"
        assert listed == {h for hashes in draining.by_consumer().values() for h, _ in hashes}

    @invariant()
    def newcomers_of_the_classic_mode_are_listed(self) -> None:
        if isinstance(self.dispatcher, ClassicKeySharedDispatcher):
            listed = {consumer.name: position for consumer, position in self.dispatcher.recently_joined()}
            assert listed == {name: position_of(entry) for name, entry in self.joined_at.items()}

    def check(self) -> None:
        super().check()
        self.what_can_go_goes_or_somebody_is_woken()
        self.what_drains_is_counted()
        self.what_waits_is_listed_or_set_aside()
        self.newcomers_of_the_classic_mode_are_listed()

"""All of a transaction or nothing of it; nothing before it is committed; nobody has what an open one holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.simulate import tape
from tests.simulate.case import Case, Finding, Key
from tests.simulate.tape import Event
from tests.simulate.transactions_seen import Became, SeenTxn

GRACE_S = 5.0
"""What was on its way to a consumer before a transaction held it has arrived by then."""
Position = tuple[int, int]


def nothing_is_seen_before_a_commit(case: Case) -> Iterator[Finding]:
    """Nobody gets a message of a transaction that is open, or was aborted."""
    for event in case.tape.of(tape.GOT):
        topic = event.facts["topic"]
        for value in event.facts["values"]:
            sent = case.sent.get(value)
            txn = None if sent is None else case.transactions.of(sent)
            if txn is None or (topic, None) in txn.forged:
                continue
            consumer = event.facts["consumer"]
            if event.index < txn.commit_asked:
                text = f"{consumer} got {value} of transaction {txn.id}, which nobody had asked to commit"
                yield Finding("dirty read", text, event.index)
            elif txn.became is Became.ABORTED:
                yield Finding("dirty read", f"{consumer} got {value} of transaction {txn.id}, aborted", event.index)


def ids_are_given_once(case: Case) -> Iterator[Finding]:
    for event in case.transactions.twice:
        yield Finding("transactions", f"{event.facts['txn']} was given to {event.actor}, and before", event.index)


def an_end_is_the_end(case: Case) -> Iterator[Finding]:
    """A transaction is committed or aborted, and does not get lost before somebody asks for one or its time is over."""
    for txn in case.transactions.by_id.values():
        if txn.contradiction is not None:
            text = f"{txn.id} was {txn.became}, and then {txn.contradiction}"
            yield Finding("transactions", text, txn.contradiction.index)
        for index, event in enumerate(txn.ends):
            error = event.facts.get("error")
            is_first = all(each.what != tape.TXN_ENDING for each in txn.ends[: index - 1])
            if error in ("TransactionNotFound", "InvalidTxnStatus") and is_first and event.at_s < txn.times_out_s:
                yield Finding("transactions", f"{txn.id} is lost: {event}", event.index)


def all_or_nothing(case: Case) -> Iterator[Finding]:
    """Where nobody was told what became of it, one message that is seen says that it was committed everywhere."""
    values: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in case.tape.of(tape.RECEIPTED):
        txn = case.transactions.of(event)
        if txn is not None and txn.became is Became.UNKNOWN:
            values[txn.id].append(event)
    if not values:
        return
    seen = {value for event in case.tape.of(tape.GOT) for value in event.facts["values"]}
    for id_, receipts in values.items():
        txn = case.transactions.by_id[id_]
        kept: dict[str, list[Event] | None] = {}
        of_txn = [event for event in receipts if _can_be_seen(case, txn, event, kept)]
        found = [event for event in of_txn if seen.issuperset(event.facts["values"])]
        if found and len(found) < len(of_txn):
            missing = next(event for event in of_txn if event not in found)
            text = f"of transaction {id_}, {found[0].facts['values']} is there and {missing.facts['values']} is not"
            yield Finding("atomicity", text, missing.index)


def _can_be_seen(case: Case, txn: SeenTxn, receipt: Event, kept: dict[str, list[Event] | None]) -> bool:
    topic = receipt.facts["topic"]
    if topic not in kept:
        kept[topic] = case.kept(topic)
    is_moved = any(window.how in ("clear backlog", "expiry") for window in case.windows)
    return kept[topic] is not None and not case.is_topic_ended(topic, 0) and not is_moved and not txn.forged


class _Held:
    """Something of an entry that a transaction surely holds, from `stored` on."""

    def __init__(self, txn: SeenTxn, stored: Event) -> None:
        self.txn = txn
        self.stored = stored
        self.asked: int = stored.facts["asked"]
        self.values: frozenset[str] | None = _values(stored)

    def meets(self, values: frozenset[str] | None) -> bool:
        return self.values is None or values is None or bool(self.values & values)


def _values(acked: Event) -> frozenset[str] | None:
    """Of a batch, which messages; None for whole entries."""
    return frozenset(acked.facts["values"]) if "part_of" in acked.facts else None


def _positions(acked: Event) -> list[Position]:
    """Of individual acknowledgements."""
    facts = acked.facts
    return [facts["part_of"]] if "part_of" in facts else list(facts.get("positions", ()))


def what_is_held_is_nobody_elses(case: Case) -> Iterator[Finding]:
    """While a transaction is surely open: no other one acknowledges what it has acknowledged, and nobody gets it."""
    held: dict[Key, dict[Position, list[_Held]]] = defaultdict(lambda: defaultdict(list))
    for event in case.tape.of(tape.ACK_STORED, tape.GOT):
        facts = event.facts
        key = (facts["topic"], facts["subscription"])
        if event.what == tape.GOT:
            for each in held[key].get(facts["position"], ()):
                is_late = event.at_s > each.stored.at_s + GRACE_S or _begun(case, event) > each.stored.index
                if is_late and each.meets(frozenset(facts["values"])) and _holds(case, each, event, key):
                    text = f"{facts['consumer']} got {facts['position']} while {each.txn.id} holds it on {key}"
                    yield Finding("held", text, event.index)
            continue
        txn = case.transactions.of(event)
        if txn is None or facts["error"]:
            continue
        for position in _positions(event):
            for each in held[key][position]:
                is_other = each.txn is not txn and each.stored.index < facts["asked"]
                if is_other and each.meets(_values(event)) and _holds(case, each, event, key):
                    text = f"{txn.id} acknowledged {position} on {key}, which {each.txn.id} holds"
                    yield Finding("conflict", text, event.index)
            held[key][position].append(_Held(txn, event))


def _begun(case: Case, got: Event) -> int:
    attached = case.attached.get(got.facts["consumer"])
    return -1 if attached is None else int(attached.facts["begun"])


def _holds(case: Case, held: _Held, at: Event, key: Key) -> bool:
    is_open = held.txn.is_surely_open(at) and key not in held.txn.forged
    return is_open and not case.is_disturbed(*key, held.asked, at.index)


def what_is_acknowledged_is_not_taken_again(case: Case) -> Iterator[Finding]:
    """A transaction cannot acknowledge what somebody has acknowledged for good."""
    done: dict[Key, dict[Position, list[tuple[int, Event]]]] = defaultdict(lambda: defaultdict(list))
    of_txn = [event for event in case.tape.of(tape.ACK_STORED) if not event.facts["error"]]
    if all(event.facts["txn"] is None for event in of_txn):
        return
    for event in of_txn:
        txn = case.transactions.of(event)
        key = (event.facts["topic"], event.facts["subscription"])
        if event.facts["txn"] is not None and (txn is None or not txn.is_committed_at(*key)):
            continue
        attached = case.attached.get(event.facts["consumer"])
        if attached is None or not attached.facts["durable"]:
            continue
        known_at = event.index if txn is None else max(event.index, txn.known_at)
        for position in _positions(event):
            done[key][position].append((known_at, event))
    for event in of_txn:
        if event.facts["txn"] is None:
            continue
        key, values = (event.facts["topic"], event.facts["subscription"]), _values(event)
        for position in _positions(event):
            for known_at, before in done[key].get(position, ()):
                # Who acknowledges a batch whole takes what is left of it.
                is_met = _values(before) is None or (values is not None and bool(values & (_values(before) or values)))
                is_before = known_at < event.facts["asked"] and before.facts["txn"] != event.facts["txn"]
                if is_met and is_before and not case.is_disturbed(*key, before.facts["asked"], event.index):
                    text = f"{event.facts['txn']} acknowledged {position} on {key}, which {before.actor} had before"
                    yield Finding("conflict", text, event.index)


OF_TRANSACTIONS = (
    nothing_is_seen_before_a_commit,
    ids_are_given_once,
    an_end_is_the_end,
    all_or_nothing,
    what_is_held_is_nobody_elses,
    what_is_acknowledged_is_not_taken_again,
)

"""Every subscription gets everything, nothing again that it said it has, and in the order that its type promises."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.simulate import tape
from tests.simulate.case import Case, Finding, Key
from tests.simulate.running import KEEPER

GRACE_S = 5.0
"""Who is said to hold a message must be attached for so long afterwards: its client may not know yet that it is closed."""
MOVED_S = 15.0
"""The same if another broker serves the subscription meanwhile: a frozen broker cannot notify its clients."""
EARLY_S = 1.01
"""A tick (`delayedDeliveryTickTimeMillis`), by which brokers may be early, and a little."""


def acknowledged_stays_acknowledged(case: Case) -> Iterator[Finding]:
    """Who subscribes after an acknowledgement was receipted never gets to see what it covers."""
    # Where each was known to be done for good, and where it was asked for.
    done: dict[Key, dict[tuple[int, int], tuple[int, int]]] = defaultdict(dict)
    up_to: dict[Key, list[tuple[tuple[int, int], tuple[int, int]]]] = defaultdict(list)
    # By position as well: without deduplication, what a client sends again after a cut may be stored twice.
    parts: dict[tuple[Key, tuple[int, int], str], tuple[int, int]] = {}
    never = (-1, -1)
    for event in case.tape.of(tape.ACK_STORED, tape.GOT):
        facts = event.facts
        key = (facts["topic"], facts["subscription"])
        if event.what == tape.ACK_STORED:
            if facts["error"] or not _is_durable(case, facts["consumer"]):
                continue
            txn = case.transactions.of(event)
            if facts["txn"] is not None and (txn is None or not txn.is_committed_at(*key)):
                continue
            at = (event.index if txn is None else max(event.index, txn.known_at), facts["asked"])
            if "up_to" in facts:
                up_to[key].append((facts["up_to"], at))
            elif "part_of" in facts:
                parts |= {(key, facts["part_of"], value): at for value in facts["values"]}
            else:
                done[key] |= dict.fromkeys(facts["positions"], at)
            continue
        attached = case.attached.get(facts["consumer"])
        if attached is None:
            continue
        begun = attached.facts["begun"]
        acked_at = [done[key].get(facts["position"], never)]
        acked_at += [at for position, at in up_to[key] if position >= facts["position"]]
        acked_at += [parts.get((key, facts["position"], value), never) for value in facts["values"]]
        for index, asked in acked_at:
            if 0 <= index < begun and not case.is_disturbed(*key, asked, event.index):
                yield Finding(
                    "acks",
                    f"{facts['position']} {facts['values']} came again to {facts['consumer']} on {key}",
                    event.index,
                )
                break


def _is_durable(case: Case, consumer: str) -> bool:
    attached = case.attached.get(consumer)
    return attached is not None and bool(attached.facts["durable"])


def everything_is_delivered(case: Case) -> Iterator[Finding]:
    """What was receipted after a subscription was there comes to its consumers until one of them has acknowledged it."""
    first: dict[Key, int] = {}
    compacted: set[Key] = set()
    for event in case.attached.values():
        key = (event.facts["topic"], event.facts["subscription"])
        if event.facts["compacted"]:
            compacted.add(key)
        if event.facts["durable"] and event.facts["begun"] > case.last_removal(*key):
            first.setdefault(key, event.index)
    for topic, stats in case.run.drained.stats.items():
        for name, facts in stats["subscriptions"].items():
            key = (topic, name)
            if name == KEEPER or key in compacted or key not in first or not facts.get("isDurable", True):
                continue
            got = {value for event in case.got[key] for value in event.facts["values"]}
            done = _acknowledged(case, key)
            for event in case.tape.of(tape.RECEIPTED):
                sent = case.sent[event.facts["values"][0]]
                if event.facts["topic"] != topic or sent.index < first[key] or case.is_disturbed(*key, sent.index):
                    continue
                if not case.must_be_seen(event.facts["values"][0], topic):
                    continue
                for value in event.facts["values"]:
                    where = f"{value} at {event.facts['position']}"
                    if value not in got:
                        yield Finding("delivery", f"{where} never came to {key}", event.index)
                    elif value not in done:
                        yield Finding("delivery", f"{where}, unacknowledged, did not come again to {key}", event.index)


def _acknowledged(case: Case, key: Key) -> set[str]:
    """All messages of which some consumer has said that it is done with them, with or without a receipt."""
    values_at: dict[tuple[int, int], set[str]] = defaultdict(set)
    for event in case.got[key]:
        values_at[event.facts["position"]].update(event.facts["values"])
    done: set[str] = set()
    for event in case.tape.of(tape.ACKED):
        facts = event.facts
        txn = case.transactions.of(event)
        if (facts["topic"], facts["subscription"]) != key or (txn is not None and txn.is_aborted_at(*key)):
            continue
        done.update(facts.get("values", ()))
        for position in facts.get("positions", ()):
            done |= values_at[position]
        if "up_to" in facts:
            done.update(*(values for position, values in values_at.items() if position <= facts["up_to"]))
    return done


def nothing_comes_early(case: Case) -> Iterator[Finding]:
    """A delayed message comes to Shared and Key_Shared consumers when it is time."""
    for event in case.tape.of(tape.GOT):
        attached = case.attached.get(event.facts["consumer"])
        sent = case.sent.get(event.facts["values"][0])
        if attached is None or sent is None or attached.facts["kind"] not in ("Shared", "Key_Shared"):
            continue
        early_s = sent.facts["deliver_at_s"] - event.at_s
        if early_s > EARLY_S:
            yield Finding("delays", f"{event.facts['values']} came {early_s:.3f} s early", event.index)


def what_is_deleted_stays_away(case: Case) -> Iterator[Finding]:
    """Nobody gets what was receipted before a topic was deleted, once that has been answered."""
    for window in case.windows:
        if window.how != "delete topic" or not window.is_done:
            continue
        gone = {
            value
            for event in case.tape.of(tape.RECEIPTED)
            if event.index < window.begin and event.facts["topic"] == window.topic
            for value in event.facts["values"]
        }
        for event in case.tape.of(tape.GOT):
            attached = case.attached.get(event.facts["consumer"])
            is_new = attached is not None and attached.facts["begun"] > window.end
            if is_new and event.facts["topic"] == window.topic and gone & set(event.facts["values"]):
                yield Finding(
                    "deleted", f"{event.facts['values']} came from {window.topic}, deleted before", event.index
                )


def nobody_gets_a_message_twice(case: Case) -> Iterator[Finding]:
    """One consumer, between two subscribes, gets it once, and once more for each time that it asked for it or became active.

    What it asks for again may be on its way to it for the first time.
    """
    for consumer, events in case.of_consumer.items():
        times: dict[tuple[tuple[int, int], str], int] = defaultdict(int)
        chances = 1 + case.transactions.releases(events[0].facts["topic"], events[0].facts["subscription"])
        for event in events:
            if event.what in (tape.NACKED, tape.ACTIVE):
                chances += 1
            elif event.what == tape.GOT:
                for value in event.facts["values"]:
                    place = (event.facts["position"], value)
                    times[place] += 1
                    if times[place] > chances:
                        yield Finding(
                            "twice", f"{consumer} got {value} at {event.facts['position']} again", event.index
                        )


def in_order_for_one(case: Case) -> Iterator[Finding]:
    """Exclusive and Failover: by position, until the consumer asks for something again. Key_Shared: by position for each key, but
    for what comes again."""
    for consumer, events in case.of_consumer.items():
        attached = case.attached.get(consumer)
        if attached is None or attached.facts["kind"] == "Shared" or attached.facts["out_of_order"]:
            continue
        is_keyed = attached.facts["kind"] == "Key_Shared"
        if is_keyed and _has_delays(case):
            continue
        last: dict[str, tuple[int, int]] = {}
        releases = case.transactions.releases(attached.facts["topic"], attached.facts["subscription"])
        for event in events:
            if event.what in (tape.NACKED, tape.ACTIVE) and not is_keyed:
                last.clear()
            elif event.what == tape.GOT and not (is_keyed and (not event.facts["key"] or event.facts["redeliveries"])):
                lane = event.facts["key"] if is_keyed else ""
                if event.facts["position"] < last.get(lane, (-1, -1)) and releases:
                    releases -= 1
                elif event.facts["position"] < last.get(lane, (-1, -1)):
                    yield Finding(
                        "order",
                        f"{consumer} got {event.facts['position']} of key {lane!r} after {last[lane]}",
                        event.index,
                    )
                last[lane] = event.facts["position"]


def _has_delays(case: Case) -> bool:
    return any("delay_s" in step.facts for actor in case.run.script.actors for step in actor.steps if step.do == "send")


def one_holder_of_a_key(case: Case) -> Iterator[Finding]:
    """Key_Shared: while somebody holds a message of a key, nobody else gets another of it.

    Who asks for everything again gives up what is on its way to it as well.
    """
    given_up_s: dict[str, float] = {}
    held: dict[tuple[str, str, str], dict[str, dict[tuple[int, int], tape.Event]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for event in case.tape.of(tape.GOT, tape.ACKED, tape.NACKED, tape.DETACHED):
        facts = event.facts
        if facts["topic"].startswith("non-persistent:"):
            continue  # Nobody holds anything there.
        consumer = facts.get("consumer")
        attached = case.attached.get(consumer or "")
        if attached is None or attached.facts["kind"] != "Key_Shared" or attached.facts["out_of_order"]:
            continue
        key = (facts["topic"], facts["subscription"])
        if event.what == tape.GOT:
            if not facts["key"]:
                continue
            lane = held[*key, facts["key"]]
            for other, positions in lane.items():
                if other != consumer and positions and _stays(case, other, event):
                    yield Finding(
                        "keys",
                        f"{consumer} got {facts['position']} of {facts['key']} while {other} holds {sorted(positions)}",
                        event.index,
                    )
            if event.at_s > given_up_s.get(consumer or "", -GRACE_S) + GRACE_S:
                lane[consumer][facts["position"]] = event  # type: ignore[index]
            continue
        if event.what == tape.NACKED and facts["positions"] is None:
            given_up_s[consumer or ""] = event.at_s
        for (topic, subscription, _), lane in held.items():
            if (topic, subscription) != key or consumer not in lane:
                continue
            if event.what == tape.DETACHED or facts.get("positions", ()) is None:
                lane[consumer].clear()
            else:
                for position in facts.get("positions") or ():
                    lane[consumer].pop(position, None)


def _stays(case: Case, consumer: str, since: tape.Event) -> bool:
    """Whether it is attached, without having asked for anything again, for a while from then on."""
    brokers = {case.attached[each].facts["broker"] for each in (consumer, since.facts["consumer"])}
    grace_s = GRACE_S if len(brokers) == 1 else MOVED_S
    for event in case.of_consumer[consumer]:
        if event.index > since.index and event.what == tape.DETACHED:
            return event.at_s - since.at_s > grace_s
    return True


def what_is_not_stored_comes_at_most_once(case: Case) -> Iterator[Finding]:
    """Of a non-persistent topic each subscription gets a message as often as it was sent, or not at all, and one consumer those
    of a producer in their order."""
    sent: dict[str, list[int]] = defaultdict(list)
    for event in case.tape.of(tape.SENT):
        for value in event.facts["values"]:
            sent[value].append(event.index)
    got: Counter[tuple[Key, str]] = Counter()
    last: dict[tuple[str, str], int] = {}
    for event in case.tape.of(tape.GOT):
        topic, consumer = event.facts["topic"], event.facts["consumer"]
        if not topic.startswith("non-persistent:"):
            continue
        for value in event.facts["values"]:
            place = ((topic, event.facts["subscription"]), value)
            got[place] += 1
            if got[place] > len(sent[value]):
                yield Finding("twice", f"{consumer} got {value} of {topic}, sent {len(sent[value])} times", event.index)
            if len(sent[value]) == 1:
                lane = (consumer, case.sent[value].facts["session"])
                if sent[value][0] < last.get(lane, -1):
                    yield Finding("order", f"{consumer} got {value} of {topic} behind what was sent later", event.index)
                last[lane] = sent[value][0]


OF_DELIVERY = (
    what_is_not_stored_comes_at_most_once,
    acknowledged_stays_acknowledged,
    everything_is_delivered,
    nothing_comes_early,
    what_is_deleted_stays_away,
    nobody_gets_a_message_twice,
    in_order_for_one,
    one_holder_of_a_key,
)

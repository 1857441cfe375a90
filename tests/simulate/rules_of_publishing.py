"""What is receipted is there, once, where the receipt says, and in the order in which it was sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.simulate import tape
from tests.simulate.case import Case, Finding


def no_place_twice(case: Case) -> Iterator[Finding]:
    """Two messages never have one position, unless the topic was deleted in between."""
    taken: dict[tuple[str, tuple[int, int]], tape.Event] = {}
    for event in case.tape.of(tape.RECEIPTED):
        key = (event.facts["topic"], event.facts["position"])
        before = taken.get(key)
        if before is not None and before.facts["values"] != event.facts["values"]:
            yield Finding(
                "positions", f"{event.facts['values']} and {before.facts['values']} are both at {key}", event.index
            )
        taken[key] = event


def a_session_is_in_order(case: Case) -> Iterator[Finding]:
    last: dict[str, tape.Event] = {}
    for event in case.tape.of(tape.RECEIPTED):
        session = event.facts["session"]
        before = last.get(session)
        if before is not None and before.facts["position"] >= event.facts["position"]:
            yield Finding(
                "order",
                f"{session}: {event.facts['values']} at {event.facts['position']} after {before.facts['position']}",
                event.index,
            )
        last[session] = event


def receipted_messages_are_kept(case: Case) -> Iterator[Finding]:
    """A subscription that nobody touched has all of them, and a receipt tells the truth about the place."""
    for topic in _topics(case):
        kept = case.kept(topic)
        if kept is None:
            continue
        place_of: dict[str, set[tuple[int, int]]] = defaultdict(set)
        for event in kept:
            for value in event.facts["values"]:
                place_of[value].add(event.facts["position"])
        for event in case.tape.of(tape.RECEIPTED):
            facts = event.facts
            sent = case.sent[facts["values"][0]]
            if (
                facts["topic"] != topic
                or not case.must_be_seen(facts["values"][0], topic)
                or case.is_topic_ended(topic, sent.index)
                or _is_keeper_disturbed(case, topic, sent.index)
            ):
                continue
            for value in facts["values"]:
                if value not in place_of:
                    yield Finding(
                        "loss", f"{value} was receipted at {facts['position']} of {topic} and is gone", event.index
                    )
                elif facts["position"] not in place_of[value]:
                    yield Finding(
                        "positions",
                        f"{value} was receipted at {facts['position']}, it is at {place_of[value]}",
                        event.index,
                    )


def kept_messages_are_in_order(case: Case) -> Iterator[Finding]:
    """By position, and by the order in which each producer of a client sent them first."""
    for topic in _topics(case):
        last_position = (-1, -1)
        last_of: dict[str, int] = {}
        seen: set[str] = set()
        for event in case.kept(topic) or ():
            if event.facts["position"] <= last_position:
                yield Finding("order", f"{event.facts['position']} came after {last_position}", event.index)
            last_position = event.facts["position"]
            for value in event.facts["values"]:
                sent = case.sent.get(value)
                if sent is None:
                    yield Finding("loss", f"{topic} holds {value!r}, which nobody sent", event.index)
                    continue
                if value in seen:
                    continue
                seen.add(value)
                sender = sent.facts["session"].partition("#")[0]
                if sent.index < last_of.get(sender, -1):
                    yield Finding("order", f"{value} stands behind what {sender} sent later", event.index)
                last_of[sender] = sent.index


def deduplication_is_exact(case: Case) -> Iterator[Finding]:
    """Where it is on, each message is there once; what is called a duplicate is there."""
    users: dict[tuple[str, str], set[str]] = defaultdict(set)
    for event in case.tape.of(tape.SENT):
        users[event.facts["topic"], event.facts["producer"]].add(event.actor)
    for topic in _topics(case):
        kept = case.kept(topic)
        is_on = case.topic_facts(topic).get("deduplication")
        counts: dict[str, int] = defaultdict(int)
        for event in kept or ():
            for value in event.facts["values"]:
                counts[value] += 1
        for value, count in counts.items():
            sent = case.sent.get(value)
            if is_on and count > 1 and sent is not None and not case.is_topic_ended(topic, sent.index):
                yield Finding("deduplication", f"{value} is {count} times in {topic}", sent.index)
        for event in case.tape.of(tape.DUPLICATE):
            facts = event.facts
            if facts["topic"] != topic or len(users[topic, facts["producer"]]) > 1:
                continue
            if not case.must_be_seen(facts["values"][0], topic):
                continue
            if not is_on:
                yield Finding("deduplication", f"{facts['values']} was called a duplicate in {topic}", event.index)
            elif kept is not None and not case.is_topic_ended(topic, case.sent[facts["values"][0]].index):
                for value in facts["values"]:
                    if value not in counts and not _is_keeper_disturbed(case, topic, event.index):
                        yield Finding("deduplication", f"{value} was called a duplicate and is not there", event.index)


def only_what_was_cut_off_is_stored_twice(case: Case) -> Iterator[Finding]:
    """A broker that closes a producer answers first what it has taken: so what is sent again then is stored once."""
    why: dict[str, str] = {}
    for event in case.tape.of(tape.DETACHED):
        if "session" in event.facts:
            why[event.facts["session"]] = event.facts["why"]
    sessions: dict[str, set[str]] = defaultdict(set)
    for event in case.tape.of(tape.SENT):
        for value in event.facts["values"]:
            sessions[value].add(event.facts["session"])
    for topic in _topics(case):
        seen: dict[str, tuple[int, int]] = {}
        for event in case.kept(topic) or ():
            for value in event.facts["values"]:
                before = seen.setdefault(value, event.facts["position"])
                is_told = all(why.get(session) in ("broker", "closed", None) for session in sessions[value])
                if before != event.facts["position"] and is_told and not case.has_crash():
                    yield Finding("twice", f"{value} is stored at {before} and {event.facts['position']}", event.index)


def nothing_follows_the_end(case: Case) -> Iterator[Finding]:
    """What is sent after a topic was said to be terminated is not receipted."""
    ends: dict[str, tape.Event] = {}
    for event in case.tape.of(tape.HTTP):
        if event.facts["path"].endswith("/terminate") and event.facts.get("status") in (200, 204):
            topic = "persistent://" + event.facts["path"].removeprefix("/persistent/").removesuffix("/terminate")
            ends.setdefault(topic, event)
    for event in case.tape.of(tape.RECEIPTED):
        end = ends.get(event.facts["topic"])
        sent = case.sent[event.facts["values"][0]]
        if end is not None and sent.index > end.index and not case.is_topic_ended(event.facts["topic"], 0):
            yield Finding("terminated", f"{event.facts['values']} was receipted behind the end", event.index)


def one_exclusive_producer(case: Case) -> Iterator[Finding]:
    """Nothing of another producer is stored between what an exclusive one sends while it is attached and not fenced."""
    holder: dict[str, tape.Event] = {}
    for event in case.tape.of(tape.ATTACHED, tape.DETACHED, tape.RECEIPTED):
        facts = event.facts
        if "session" not in facts:
            continue
        topic = facts["topic"]
        held = holder.get(topic)
        if event.what == tape.DETACHED:
            if held is not None and held.facts["session"] == facts["session"]:
                del holder[topic]
        elif event.what == tape.ATTACHED:
            holder.pop(topic, None)
            if facts["access"] != "Shared":
                holder[topic] = event
        elif held is not None and held.facts["session"] != facts["session"]:
            sent = case.tape.events[_last_sent(case, event)]
            if sent.index > held.index:
                yield Finding(
                    "exclusive", f"{facts['session']} published while {held.facts['session']} had {topic}", event.index
                )


def _last_sent(case: Case, receipt: tape.Event) -> int:
    for event in reversed(case.tape.events[: receipt.index]):
        if (
            event.what == tape.SENT
            and event.facts["session"] == receipt.facts["session"]
            and event.facts["values"] == receipt.facts["values"]
        ):
            return event.index  # type: ignore[no-any-return]
    return -1


def _is_keeper_disturbed(case: Case, topic: str, since: int) -> bool:
    return any(
        window.end >= since and (window.how == "clear backlog" or (window.how == "expiry" and window.topic == topic))
        for window in case.windows
    )


def _topics(case: Case) -> list[str]:
    return list(case.run.drained.stats)


OF_PUBLISHING = (
    no_place_twice,
    a_session_is_in_order,
    receipted_messages_are_kept,
    kept_messages_are_in_order,
    deduplication_is_exact,
    only_what_was_cut_off_is_stored_twice,
    nothing_follows_the_end,
    one_exclusive_producer,
)

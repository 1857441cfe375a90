"""When nothing happens any more: nothing waits without a reason, nobody is left, and statistics say what the clients saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.simulate import tape
from tests.simulate.case import Case, Finding
from tests.simulate.running import backlogs

CUTS_COUNTERS = (
    "cut", "kill", "power_cut", "full_disk", "bad_disk", "stall", "unload", "namespace_unload", "delete_topic", "compact",
)  # fmt: skip
"""After these what clients saw is less than what a topic counts, or more than what it has counted since it was loaded."""


def the_run_ends(case: Case) -> Iterator[Finding]:
    if not case.run.finished:
        yield Finding("in time", "the run did not come to its end")


def nothing_waits_without_a_reason(case: Case) -> Iterator[Finding]:
    """Consumers were there who took and acknowledged everything: so everything is acknowledged."""
    look = case.run.settled
    for (topic, name), backlog in backlogs(look).items():
        facts = look.stats[topic]["subscriptions"][name]
        if backlog and facts["consumers"] and not _is_for_nobody(case, topic, name):
            blocked_reason = look.standstills.get((topic, name))
            yield Finding(
                "standstill",
                f"{backlog} entries wait on {name} of {topic} although consumers take everything: {blocked_reason}",
            )
        if facts["unackedMessages"] and facts["consumers"]:
            yield Finding("statistics", f"{facts['unackedMessages']} unacked on {name} of {topic}, clients hold none")


def _is_for_nobody(case: Case, topic: str, name: str) -> bool:
    """Who reads compacted leaves what is behind the compacted view to others."""
    return any(
        event.facts["compacted"] and (event.facts["topic"], event.facts["subscription"]) == (topic, name)
        for event in case.attached.values()
    )


def consumers_are_where_they_think(case: Case) -> Iterator[Finding]:
    """Who was not told that it was closed is on its subscription."""
    look = case.run.settled
    for topic, name, consumer in case.run.attached:
        subscriptions = look.stats.get(topic, {}).get("subscriptions", {})
        present = [each["consumerName"] for each in subscriptions.get(name, {}).get("consumers", ())]
        if consumer not in present:
            yield Finding("statistics", f"{consumer} is not on {name} of {topic}, and was not told")


def nothing_is_left(case: Case) -> Iterator[Finding]:
    look = case.run.drained
    for (topic, name), backlog in backlogs(look).items():
        if backlog:
            yield Finding(
                "standstill", f"{backlog} entries of {name} on {topic} never came to a consumer that takes all"
            )
    for topic, stats in look.stats.items():
        if stats["publishers"]:
            yield Finding(
                "left behind", f"producers on {topic}: {[each['producerName'] for each in stats['publishers']]}"
            )
        for name, facts in stats["subscriptions"].items():
            if facts["consumers"]:
                yield Finding("left behind", f"consumers on {name} of {topic}")
            if not facts.get("isDurable", True):
                yield Finding("left behind", f"the subscription {name} of a reader on {topic}")


def backlogs_are_exact(case: Case) -> Iterator[Finding]:
    """A subscription's backlog is what a consumer gets who takes it to its end."""
    for (topic, name), backlog in case.run.backlog_before_drain.items():
        got = {event.facts["position"] for event in case.got[topic, name] if event.actor.startswith("drain")}
        if len(got) != backlog:
            yield Finding("statistics", f"{name} of {topic} said it had {backlog} entries and gave {len(got)}")


def what_waits_is_explained(case: Case) -> Iterator[Finding]:
    """At rest `explain` finds a reason where entries wait for somebody, and none where nothing waits."""
    for look in (case.run.settled, case.run.drained):
        for (topic, name), backlog in backlogs(look).items():
            reasons = look.explained.get((topic, name))
            if reasons is None or _is_for_nobody(case, topic, name):
                continue
            visible = backlog - look.hidden.get((topic, name), 0)
            has_consumers = bool(look.stats[topic]["subscriptions"][name]["consumers"])
            if reasons and not backlog:
                yield Finding("explain", f"{name} of {topic} has no backlog, and waits: {reasons}")
            if visible > 0 and not has_consumers and "no-consumers" not in reasons:
                yield Finding("explain", f"{visible} entries of {name} of {topic} have no consumers: {reasons}")


def counters_say_what_clients_saw(case: Case) -> Iterator[Finding]:
    """Of a topic that stayed loaded, and whose clients nobody cut off: what came in, and what went out."""
    if any(step.do in CUTS_COUNTERS for actor in case.run.script.actors for step in actor.steps):
        return
    if any(event.facts["why"] == "ended" for event in case.tape.of(tape.UNLINKED)):
        return
    messages_in: Counter[str] = Counter()
    bytes_in: Counter[str] = Counter()
    for event in case.tape.of(tape.RECEIPTED):
        messages_in[event.facts["topic"]] += len(event.facts["values"])
        bytes_in[event.facts["topic"]] += event.facts["size_bytes"]
    messages_out: Counter[str] = Counter()
    for event in case.tape.of(tape.GOT, tape.PASSED):
        # Of a batch, what is not acknowledged.
        messages_out[event.facts["topic"]] += len(event.facts["values"])
    for topic, stats in case.run.drained.stats.items():
        for field, seen in (
            ("msgInCounter", messages_in),
            ("bytesInCounter", bytes_in),
            ("msgOutCounter", messages_out),
        ):
            if stats[field] != seen[topic]:
                yield Finding("statistics", f"{field} of {topic} is {stats[field]}, clients saw {seen[topic]}")


AT_REST = (
    what_waits_is_explained,
    counters_say_what_clients_saw,
    the_run_ends,
    nothing_waits_without_a_reason,
    consumers_are_where_they_think,
    nothing_is_left,
    backlogs_are_exact,
)

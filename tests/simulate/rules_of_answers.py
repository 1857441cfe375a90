"""Every request is answered, once, in time and with something that it may be answered with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.simulate import tape
from tests.simulate.case import Case, Finding

ANSWER_S = 65.0
"""Longer than a broker may wait for whatever a request waits for; `subscriptionTurnTimeoutSeconds` is 25."""
LATE_NEWS_S = 3.0
"""So long after a crash a client may learn of it only."""
LONGEST_BUSY_S = 40.0
"""A broker finds out within this time that a client is dead whose connection only seems to live."""
Place = tuple[str, str | None]
"""A topic and a subscription, or None for its producers."""
OPENED_BY = {"CLOSE_PRODUCER": "PRODUCER", "CLOSE_CONSUMER": "SUBSCRIBE"}
"""Who closes what it is opening gets an answer to that only, as on Pulsar."""
NEVER_TOLD = ("UnknownError", "TooManyRequests")
"""A bug, and a limit that no script comes near."""


def every_request_is_answered(case: Case) -> Iterator[Finding]:
    """Unless its connection ended."""
    ended = {event.facts["link"]: event for event in case.tape.of(tape.UNLINKED)}
    open_requests: dict[tuple[str, int], tape.Event] = {}
    for event in case.tape.of(tape.ASKED, tape.ANSWERED):
        key = (event.facts["link"], event.facts["request_id"])
        if event.what == tape.ASKED:
            opened_by = OPENED_BY.get(event.facts["command"])
            for given_up in [
                other
                for other, asked in open_requests.items()
                if other[0] == key[0] and (asked.facts["command"], asked.facts["of"]) == (opened_by, event.facts["of"])
            ]:
                del open_requests[given_up]
            open_requests[key] = event
        elif event.facts["answer"] == "PRODUCER_SUCCESS" and key in open_requests:
            open_requests.pop(key)  # One who waits for exclusive access was told that it waits.
        elif key in open_requests:
            asked = open_requests.pop(key)
            if event.at_s - asked.at_s > ANSWER_S:
                took_s = event.at_s - asked.at_s
                yield Finding("in time", f"{asked.facts['command']} of {asked.actor} took {took_s:.0f} s", event.index)
    end_s = case.tape.events[-1].at_s
    for (link, _), asked in open_requests.items():
        until = ended[link].at_s if link in ended else end_s
        if until - asked.at_s > ANSWER_S:
            yield Finding("answers", f"{asked.facts['command']} of {asked.actor} was never answered", asked.index)


def nobody_is_told_of_a_bug(case: Case) -> Iterator[Finding]:
    for event in case.tape.of(tape.ANSWERED, tape.SEND_REFUSED, tape.ACK_STORED):
        if event.facts.get("error") in NEVER_TOLD:
            yield Finding(
                "answers", f"{event.actor} was told {event.facts['error']}: {event.facts.get('message')}", event.index
            )
    spoiled, filled = _faults(case, ("bad_disk",)), _faults(case, ("full_disk",))
    for event in case.tape.of(tape.HTTP):
        answer = str(event.facts.get("answer"))
        is_bad = "storage failed" in answer and any(begin <= event.at_s <= end for begin, end in spoiled)
        is_full = any(begin <= event.at_s for begin, _ in filled) and "no space left on the broker's disk" in answer
        is_disk = "disk is full" in answer or is_bad or is_full
        if event.facts.get("status", 0) >= 500 and event.facts["status"] != 503 and not is_disk:
            yield Finding("answers", f"{event}", event.index)


def nobody_is_told_to_wait(case: Case) -> Iterator[Finding]:
    """What waiting settles, the broker waits for itself. Only one who is told already that it waits may be sent away."""
    asked: dict[tuple[str, int], str] = {}
    for event in case.tape.of(tape.ASKED, tape.ANSWERED):
        key = (event.facts["link"], event.facts["request_id"])
        if event.what == tape.ASKED:
            asked[key] = event.facts["command"]
        elif event.facts["error"] == "ServiceNotReady" and asked.get(key) != "PRODUCER":
            text = event.facts.get("message")
            yield Finding("answers", f"{event.actor} was told to wait at {asked.get(key)}: {text}", event.index)


def _faults(case: Case, kinds: tuple[str, ...]) -> list[tuple[float, float]]:
    """From when till when there were such faults, or people heard of them."""
    found: list[tuple[float, float]] = []
    for event in case.tape.of(tape.FAULT):
        if event.facts["how"] in kinds:
            if event.facts["is_begin"]:
                found.append((event.at_s, 1e12))
            elif found:
                found[-1] = (found[-1][0], event.at_s + LATE_NEWS_S)
    return found


def connections_end_for_a_reason(case: Case) -> Iterator[Finding]:
    """The broker ends one only when it stops, or when a client broke the protocol, which none does here."""
    down = _faults(case, ("kill", "power_cut", "stall"))
    # Who is fenced out is not told: the next message that it sends ends its connection, as on Pulsar; and all are out before it is
    # known whether the one who fences gets in.
    fenced = {
        step.facts["topic"]
        for actor in case.run.script.actors
        for step in actor.steps
        if step.facts.get("access") == "ExclusiveWithFencing"
    }
    victims = {event.actor for event in case.tape.of(tape.SENT) if case.short_name(event.facts["topic"]) in fenced}
    for event in case.tape.of(tape.UNLINKED):
        is_down = any(begin <= event.at_s <= end for begin, end in down)
        if event.facts["why"] == "ended" and not is_down and event.actor not in victims:
            yield Finding("answers", f"the broker ended the connection of {event.actor}", event.index)


def busy_only_with_somebody(case: Case) -> Iterator[Finding]:
    """A place is refused as taken only while somebody has it, had it until lately, or is about to learn that it has."""
    times = _stays(case)
    for event in case.tape.of(tape.REFUSED):
        facts = event.facts
        if facts["error"] not in ("ProducerBusy", "ConsumerBusy"):
            continue
        place = (facts["topic"], facts["subscription"])
        others = [stay for who, stays in times[place].items() if who != facts["slot"] for stay in stays]
        own = [stay for stay in times[place][facts["slot"]] if stay[1] > event.at_s - LONGEST_BUSY_S]
        if not own and not any(begin - LONGEST_BUSY_S <= event.at_s <= end + LONGEST_BUSY_S for begin, end in others):
            yield Finding(
                "answers", f"{facts['slot']} was told {facts['error']} on {place}, where nobody is", event.index
            )


def who_waits_gets_its_turn(case: Case) -> Iterator[Finding]:
    """Nobody waits for exclusive access to a topic on which there is no producer."""
    times = _stays(case, counts_waiters=False)
    for event in case.tape.of(tape.WAITED):
        stays = [stay for of_slot in times[event.facts["topic"], None].values() for stay in of_slot]
        if not any(begin <= event.at_s <= end + LONGEST_BUSY_S for begin, end in stays):
            yield Finding(
                "in time", f"{event.facts['slot']} waits for {event.facts['topic']}, which nobody has", event.index
            )


def _stays(case: Case, *, counts_waiters: bool = True) -> dict[Place, dict[str, list[tuple[float, float]]]]:
    """Of each place and slot, from when till when it had the place, or perhaps had it: a client whose connection ends before it
    is answered does not know."""
    times: dict[Place, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for event in case.tape.of(tape.ATTACHED, tape.DETACHED):
        facts = event.facts
        who = str(facts.get("consumer", facts.get("session"))).partition("#")[0]
        stays = times[facts["topic"], facts.get("subscription")][who]
        if event.what == tape.ATTACHED:
            stays.append((event.at_s, 1e12))
        elif stays:
            stays[-1] = (stays[-1][0], event.at_s)
    opening: dict[tuple[str, int], tape.Event] = {}
    for event in case.tape.of(tape.ASKED, tape.ANSWERED, tape.UNLINKED):
        facts = event.facts
        if event.what == tape.ASKED and facts["command"] in OPENED_BY.values():
            opening[facts["link"], facts["request_id"]] = event
        elif event.what == tape.ANSWERED and (facts["is_last"] or not counts_waiters):
            found = opening.pop((facts["link"], facts["request_id"]), None)
            if found is not None and facts["error"] not in ("", "ProducerBusy", "ConsumerBusy"):
                # It had the place while it was being opened, and was refused afterwards (a full disk).
                times[found.facts["place"]][f"{found.actor}.{found.facts['of']}"].append((found.at_s, event.at_s))
        elif event.what == tape.UNLINKED:
            for key in [key for key in opening if key[0] == facts["link"]]:
                asked = opening.pop(key)
                slot = f"{asked.actor}.{asked.facts['of']}"
                times[asked.facts["place"]][slot].append((asked.at_s, event.at_s))
    return times


OF_ANSWERS = (
    every_request_is_answered,
    nobody_is_told_of_a_bug,
    nobody_is_told_to_wait,
    connections_end_for_a_reason,
    busy_only_with_somebody,
    who_waits_gets_its_turn,
)

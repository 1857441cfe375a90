"""Judges a run by what its clients saw: everything that a broker promises, and none of how it is done.

Pure: a tape in, findings out. A rule is a function from `Case` to findings; `RULES` lists them. What somebody did by right to a
topic or a subscription (deleted it, moved its cursor) excuses what comes of it, and nothing else: see `windows.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.simulate import tape
from tests.simulate.case import Case, Finding
from tests.simulate.rules_at_rest import AT_REST
from tests.simulate.rules_of_answers import OF_ANSWERS
from tests.simulate.rules_of_delivery import OF_DELIVERY
from tests.simulate.rules_of_publishing import OF_PUBLISHING
from tests.simulate.rules_of_transactions import OF_TRANSACTIONS
from tests.simulate.running import Run

Rule = Callable[[Case], Iterator[Finding]]
MOST_FINDINGS = 5
"""Of one rule; the rest says nothing new."""


def told_by_clients(case: Case) -> Iterator[Finding]:
    """What a client could see from one frame alone."""
    for event in case.tape.of(tape.BROKEN):
        yield Finding(event.facts["rule"], f"{event.actor}: {event.facts['text']}", event.index)


RULES: tuple[Rule, ...] = (told_by_clients, *OF_ANSWERS, *OF_PUBLISHING, *OF_DELIVERY, *OF_TRANSACTIONS, *AT_REST)


def judge(run: Run) -> list[Finding]:
    """All that is wrong with this run; nothing when it is as promised."""
    case = Case(run)
    findings: list[Finding] = []
    for rule in RULES:
        for number, finding in enumerate(rule(case)):
            if number == MOST_FINDINGS:
                break
            findings.append(finding)
    return findings

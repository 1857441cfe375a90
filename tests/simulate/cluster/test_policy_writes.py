"""Which values of a topic policy may be in force after answered and unanswered changes."""

from __future__ import annotations

from tests.simulate import tape
from tests.simulate.cluster.policy_writes import PolicyWrites
from tests.simulate.tape import Event


def writes(*changes: tuple[float, int | None, float | None, int]) -> PolicyWrites:
    """Each change: when it begins, its value, when it is answered (None: never), and the status."""
    events: list[tuple[float, str, dict[str, object]]] = []
    for number, (begun_s, value, ended_s, status) in enumerate(changes):
        token = str(number)
        about: dict[str, object] = {"token": token, "topic": "t", "policy": "messageTTL", "value": value}
        events.append((begun_s, tape.POLICY_SETTING, about))
        if ended_s is not None:
            events.append((ended_s, tape.POLICY_SET, {"token": token, "status": status}))
    events.sort(key=lambda event: event[0])
    return PolicyWrites(Event(index, at_s, "admin", what, facts) for index, (at_s, what, facts) in enumerate(events))


def test_newest_answered_change_is_the_only_possible_one() -> None:
    found = writes((1, 10, 2, 204), (3, 11, 4, 204))
    assert found.possible("t", "messageTTL") == {11}
    assert found.possible("t", "messageTTL", answered_by_s=3.5) == {10, 11}
    assert found.possible("t", "messageTTL", answered_by_s=1.5) == {None, 10, 11}


def test_changes_at_the_same_time_are_in_no_order() -> None:
    assert writes((1, 10, 3, 204), (2, 11, 4, 204)).possible("t", "messageTTL") == {10, 11}


def test_change_without_an_answer_may_take_effect_later() -> None:
    assert writes((1, 10, None, 0), (3, 11, 4, 204)).possible("t", "messageTTL") == {10, 11}
    assert writes((1, 10, 2, 500), (3, 11, 4, 204)).possible("t", "messageTTL") == {10, 11}
    assert writes((1, 10, None, 0)).possible("t", "messageTTL") == {None, 10}


def test_refused_change_has_no_effect() -> None:
    assert writes((1, 10, 2, 204), (3, 11, 4, 412)).possible("t", "messageTTL") == {10}


def test_removal_is_a_change() -> None:
    assert writes((1, 10, 2, 204), (3, None, 4, 204)).possible("t", "messageTTL") == {None}

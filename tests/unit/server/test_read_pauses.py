"""Pauses of reading: the transport pauses at the first reason and resumes after the last."""

from __future__ import annotations

from itertools import permutations

import pytest
from tests.unit.server.in_memory_connection import MemoryTransport

from pybroker.server import read_pauses
from pybroker.server.read_pauses import ReadPauses

REASONS = (read_pauses.BUDGET, read_pauses.REQUESTS, read_pauses.STOP)


@pytest.mark.parametrize("order", list(permutations(REASONS)))
def test_reading_resumes_after_last_reason(order: tuple[int, ...]) -> None:
    transport = MemoryTransport()
    pauses = ReadPauses(transport)
    for reason in (*REASONS, *REASONS):
        pauses.add(reason)
        assert transport.is_reading_paused
    for reason in order:
        assert transport.is_reading_paused
        pauses.remove(reason)
        pauses.remove(reason)
    assert not transport.is_reading_paused
    assert not pauses.reasons


def test_removal_of_absent_reason_changes_nothing() -> None:
    transport = MemoryTransport()
    pauses = ReadPauses(transport)
    pauses.remove(read_pauses.BUDGET)
    pauses.add(read_pauses.STOP)
    pauses.remove(read_pauses.BUDGET)
    assert transport.is_reading_paused


def test_closing_transport_is_not_touched() -> None:
    transport = MemoryTransport()
    pauses = ReadPauses(transport)
    transport.close()
    pauses.add(read_pauses.BUDGET)
    assert not transport.is_reading_paused
    pauses.remove(read_pauses.BUDGET)
    assert not pauses.reasons


def test_text_names_first_reason_that_user_can_act_on() -> None:
    pauses = ReadPauses(MemoryTransport())
    assert pauses.in_words is None
    pauses.add(read_pauses.BUDGET)
    assert pauses.in_words is None
    pauses.add(read_pauses.REQUESTS)
    pauses.add(read_pauses.STOP)
    assert pauses.in_words == read_pauses.IN_WORDS[read_pauses.REQUESTS]

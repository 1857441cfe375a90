"""Permits of a consumer by the size of its messages."""

from __future__ import annotations

from pybroker.client.consuming.flow_window import FlowWindow


def test_first_permits_are_few_and_grow_with_small_messages() -> None:
    window = FlowWindow(64_000, first_permits=4, max_permits=1000)
    given = [window.due()]
    for _ in range(6):
        window.consumed_messages(given[-1], given[-1] * 100)
        given.append(window.due())
    assert given[:3] == [4, 16, 64]
    assert given[-1] == 640  # 64,000 bytes


def test_large_message_reduces_permits_to_one() -> None:
    window = FlowWindow(64_000, first_permits=4, max_permits=1000)
    assert window.due() == 4
    window.consumed_messages(1, 5_000_000)
    assert window.due() == 0  # three are outstanding
    for _ in range(3):
        window.consumed_messages(1, 5_000_000)
    assert window.due() == 1


def test_permits_do_not_exceed_their_maximum() -> None:
    window = FlowWindow(1_000_000, first_permits=64, max_permits=5)
    assert window.due() == 5
    window.consumed_messages(5, 5)
    assert window.due() == 5


def test_skipped_messages_do_not_change_the_estimate() -> None:
    window = FlowWindow(1000, first_permits=10, max_permits=100)
    window.due()
    window.consumed_messages(10, 10_000)
    assert window.due() == 1
    window.consumed_messages(1, 0)
    assert window.due() == 1

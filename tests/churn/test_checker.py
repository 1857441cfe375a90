"""The checker finds what it is there to find, and nothing in a run that is as it should be."""

import pytest
from tests.churn.checker import ACK_DELAY_NS, check
from tests.churn.trace import ACKED, CLOSED, GIVEN_BACK, KILLED, RECEIVED, Event, Message, parse

TYPES = ["Exclusive", "Failover", "Shared", "Key_Shared"]
KEYED = [Message("p", number, f"p-{number % 3}") for number in range(9)]


class Script:
    """Events one after the other, a millisecond each."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now_ns = 0

    def add(self, kind: str, consumer: str, *messages: Message) -> "Script":
        for message in messages or (None,):
            self.now_ns += 1_000_000
            self.events.append(Event(self.now_ns, kind, consumer, message))
        return self

    def work(self, consumer: str, *messages: Message) -> "Script":
        """Receive and acknowledge, one by one."""
        for message in messages:
            self.add(RECEIVED, consumer, message).add(ACKED, consumer, message)
        return self

    def wait(self) -> "Script":
        """Until acknowledgements have surely arrived."""
        self.now_ns += ACK_DELAY_NS
        return self

    def kinds(self, subscription_type: str, gives_back: bool = False) -> set[str]:
        found = check(subscription_type, KEYED, self.events, gives_back)
        return {text.split(":")[0] for text in found.violations}


@pytest.mark.parametrize("kind", TYPES)
def test_a_consumer_after_the_other_is_fine(kind: str) -> None:
    script = Script().work("a", *KEYED[:4]).add(CLOSED, "a").work("b", *KEYED[4:])
    assert script.kinds(kind) == set()


@pytest.mark.parametrize("kind", TYPES)
def test_what_a_killed_consumer_held_may_come_again(kind: str) -> None:
    script = Script().work("a", *KEYED[:3]).add(RECEIVED, "a", *KEYED[3:5]).add(KILLED, "a").work("b", *KEYED[2:])
    assert script.kinds(kind) == set()


@pytest.mark.parametrize("kind", TYPES)
def test_a_message_that_nobody_got_is_lost(kind: str) -> None:
    assert Script().work("a", *KEYED[:8]).kinds(kind) == {"lost"}


@pytest.mark.parametrize("kind", TYPES)
def test_a_message_that_nobody_could_acknowledge_is_stuck(kind: str) -> None:
    script = Script().work("a", *KEYED[:8]).add(RECEIVED, "a", KEYED[8]).add(CLOSED, "a")
    assert script.kinds(kind) == {"stuck"}


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
def test_a_producers_messages_out_of_order_are_found(kind: str) -> None:
    assert Script().work("a", KEYED[1], KEYED[0], *KEYED[2:]).kinds(kind) == {"order"}


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
def test_a_gap_that_another_consumer_fills_later_is_out_of_order(kind: str) -> None:
    assert Script().work("a", *KEYED[:3], *KEYED[4:]).add(CLOSED, "a").work("b", KEYED[3]).kinds(kind) == {"order"}


def test_the_former_active_consumer_may_work_off_what_it_has() -> None:
    script = Script().add(RECEIVED, "a", *KEYED[:4])
    script.work("b", *KEYED[:6]).add(RECEIVED, "a", *KEYED[4:6]).work("b", *KEYED[6:])
    assert script.kinds("Failover") == set()


def test_messages_of_other_keys_may_overtake() -> None:
    script = Script().work("a", KEYED[1], KEYED[0], KEYED[2], *KEYED[3:])
    assert script.kinds("Key_Shared") == set()


def test_a_keys_messages_out_of_order_are_found() -> None:
    script = Script().work("a", *KEYED[1:7], KEYED[0], *KEYED[7:])
    assert "order" in script.kinds("Key_Shared")


def test_a_keys_message_that_comes_again_behind_a_later_one_is_found() -> None:
    script = Script().add(RECEIVED, "a", KEYED[0]).add(CLOSED, "a").add(RECEIVED, "b", KEYED[0], KEYED[3], KEYED[0])
    script.add(ACKED, "b", KEYED[0], KEYED[3]).work("b", KEYED[1], KEYED[2], *KEYED[4:])
    assert script.kinds("Key_Shared") == {"order"}
    assert script.kinds("Key_Shared", gives_back=True) == set()


def test_a_key_at_two_consumers_is_found() -> None:
    script = Script().add(RECEIVED, "a", KEYED[0]).add(RECEIVED, "b", KEYED[3])
    script.add(ACKED, "a", KEYED[0]).add(ACKED, "b", KEYED[3]).work("a", KEYED[1], KEYED[2], *KEYED[4:])
    assert script.kinds("Key_Shared") == {"two holders"}
    assert script.kinds("Shared") == set()


def test_a_key_at_two_consumers_is_found_behind_shorter_holds_of_others() -> None:
    script = Script().add(RECEIVED, "a", KEYED[0]).work("a", KEYED[3]).work("a", KEYED[1], KEYED[2], KEYED[4], KEYED[5])
    script.work("b", KEYED[6]).add(ACKED, "a", KEYED[0]).work("b", KEYED[7], KEYED[8])
    assert script.kinds("Key_Shared") == {"two holders"}


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
def test_a_message_at_two_consumers_is_found(kind: str) -> None:
    script = Script().work("a", *KEYED[1:3]).add(RECEIVED, "a", KEYED[0]).add(RECEIVED, "b", KEYED[0])
    script.add(ACKED, "a", KEYED[0]).add(ACKED, "b", KEYED[0]).work("b", *KEYED[3:])
    assert "two holders" in script.kinds(kind)


@pytest.mark.parametrize("end", [ACKED, GIVEN_BACK, CLOSED, KILLED])
def test_a_key_may_go_on_elsewhere_once_it_is_free(end: str) -> None:
    script = Script().add(RECEIVED, "a", KEYED[0])
    script.add(end, "a", *([KEYED[0]] if end in (ACKED, GIVEN_BACK) else []))
    script.work("b", *KEYED[1:]) if end == ACKED else script.work("b", *KEYED)
    assert script.kinds("Key_Shared", gives_back=True) == set()


def test_what_a_consumer_gets_while_it_is_being_killed_is_not_held() -> None:
    script = Script().add(RECEIVED, "a", KEYED[0]).add(KILLED, "a").add(RECEIVED, "a", KEYED[3]).work("b", *KEYED)
    assert script.kinds("Key_Shared") == set()


def test_a_key_is_held_for_ever_by_a_consumer_that_never_ends() -> None:
    script = Script().add(RECEIVED, "a", KEYED[0]).wait().wait().work("b", *KEYED)
    assert script.kinds("Key_Shared") == {"two holders"}


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
def test_an_acknowledged_message_that_comes_again_is_found(kind: str) -> None:
    script = Script().work("a", *KEYED).wait().add(CLOSED, "a").work("b", KEYED[8])
    assert script.kinds(kind) == {"came again"}


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
def test_an_acknowledgement_is_believed_when_its_consumer_lived_on(kind: str) -> None:
    script = Script().work("a", *KEYED).wait().add(KILLED, "a").work("b", KEYED[8])
    assert script.kinds(kind) == {"came again"}


def test_of_many_violations_the_first_are_told() -> None:
    messages = [Message("p", number, "k") for number in range(40)]
    found = check("Exclusive", messages, [])
    assert len(found.violations) == 11
    assert found.violations[-1] == "lost: and more"


def test_receipts_are_counted() -> None:
    script = Script().add(RECEIVED, "a", KEYED[0]).add(KILLED, "a").work("b", *KEYED)
    found = check("Shared", KEYED, script.events)
    assert (found.received, found.received_again) == (10, 1)


def test_a_trace_is_read_as_it_was_written() -> None:
    message = Message("p", 7, "p-1")
    assert Message.of_payload(message.payload()) == message
    assert list(parse("a", ["12 R p 7 p-1", "13 C a"])) == [Event(12, RECEIVED, "a", message), Event(13, CLOSED, "a")]

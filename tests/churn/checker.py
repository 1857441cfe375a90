"""Decides from what consumers saw whether the broker kept its promises; pure.

A consumer sees less than the broker knows: it gets a message after the broker has sent it, and the broker learns of an
acknowledgement after the consumer gave it. So what is between the two times in a trace lies within the time in which the
broker counts the message as the consumer's, and no verdict here can be wrong because of what was under way.

What is judged, by type of subscription:

* nothing that was receipted is lost: each message was received, and in the end acknowledged;
* Exclusive, Failover: the messages of a producer arrive in order. Those that come again are no exception: they arrived
  in order the first time;
* Key_Shared: the same for the messages of a key; and one consumer gets them in order, whatever comes again;
* Shared: a message is at one consumer at a time; Key_Shared: so is a key;
* what was acknowledged does not come again, unless its consumer was killed right after. Failover is excepted: the
  next active consumer may have been sent it before the acknowledgement of the former one arrived.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.churn.trace import ACKED, CLOSED, GIVEN_BACK, KILLED, RECEIVED, Event, Message

# A client gathers acknowledgements for a tenth of a second; on a busy machine they leave late.
ACK_DELAY_NS = 2_000_000_000
NEVER_NS = 1 << 63
SHOWN = 10


@dataclass
class Findings:
    """What was found; `violations` are texts for people, of each kind the first few."""

    violations: list[str] = field(default_factory=list)
    received: int = 0
    received_again: int = 0
    _counts: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, text: str) -> None:
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        if count <= SHOWN:
            self.violations.append(f"{kind}: {text}")
        elif count == SHOWN + 1:
            self.violations.append(f"{kind}: and more")


@dataclass(frozen=True, slots=True)
class Hold:
    """A consumer had a message at least for this time."""

    start_ns: int
    end_ns: int
    consumer: str
    message: Message


def check(kind: str, published: Iterable[Message], events: list[Event], gives_back: bool = False) -> Findings:
    """Judge a run of a subscription of type `kind`: `events` by time, `published` what was receipted.

    `gives_back`: consumers ask for messages again, which then come out of order. The messages must be single ones then:
    with one message of a batch comes the whole batch, whatever its consumer is doing with the others.
    """
    findings = Findings()
    receipts = [event for event in events if event.kind == RECEIVED]
    findings.received = len(receipts)
    findings.received_again = len(receipts) - len({event.message for event in receipts})
    _check_loss(published, events, findings)
    if kind in ("Exclusive", "Failover"):
        _check_first_receipts(receipts, "producer", findings)
    elif kind == "Key_Shared" and not gives_back:
        _check_first_receipts(receipts, "key", findings)
        _check_order_at_each_consumer(receipts, findings)
    if kind in ("Shared", "Key_Shared"):
        _check_single_holder(holds(events), "key" if kind == "Key_Shared" else "message", findings)
    if kind != "Failover":
        _check_acknowledged_once(events, findings)
    return findings


def _check_loss(published: Iterable[Message], events: list[Event], findings: Findings) -> None:
    received = {event.message for event in events if event.kind == RECEIVED}
    acked = {event.message for event in events if event.kind == ACKED}
    for message in published:
        if message not in received:
            findings.add("lost", f"{message} was receipted and never arrived")
        elif message not in acked:
            findings.add("stuck", f"{message} arrived, its consumer went away, and it never came again")


def _group(message: Message, by: str) -> str:
    return message.key if by == "key" else message.producer


def _check_first_receipts(receipts: list[Event], by: str, findings: Findings) -> None:
    """Seen over all consumers, the first arrivals of a group's messages are in order."""
    seen: set[Message] = set()
    newest: dict[str, Event] = {}
    for event in receipts:
        message = event.message
        assert message is not None
        if message in seen:
            continue
        seen.add(message)
        before = newest.get(_group(message, by))
        if before is not None and before.message is not None and before.message.number > message.number:
            findings.add("order", f"{message} arrived at {event.consumer} after {before.message} at {before.consumer}")
        else:
            newest[_group(message, by)] = event


def _check_order_at_each_consumer(receipts: list[Event], findings: Findings) -> None:
    last: dict[tuple[str, str], Message] = {}
    for event in receipts:
        message = event.message
        assert message is not None
        before = last.get((event.consumer, message.key))
        if before is not None and before.number >= message.number:
            findings.add("order", f"{event.consumer} got {message} after {before}")
        last[event.consumer, message.key] = message


def holds(events: list[Event]) -> list[Hold]:
    """Who had what from when to when, by start.

    That a consumer is killed is written down before it is: what it gets in between says nothing of others.
    """
    open_since: dict[str, dict[Message, int]] = {}
    found: list[Hold] = []
    ended: set[str] = set()

    def end(consumer: str, message: Message, end_ns: int) -> None:
        start_ns = open_since[consumer].pop(message, None)
        if start_ns is not None:
            found.append(Hold(start_ns, end_ns, consumer, message))

    for event in events:
        mine = open_since.setdefault(event.consumer, {})
        if event.kind == RECEIVED and event.message is not None and event.consumer not in ended:
            mine.setdefault(event.message, event.time_ns)
        elif event.kind in (ACKED, GIVEN_BACK) and event.message is not None:
            end(event.consumer, event.message, event.time_ns)
        elif event.kind in (CLOSED, KILLED):
            ended.add(event.consumer)
            for message in list(mine):
                end(event.consumer, message, event.time_ns)
    for consumer, mine in open_since.items():
        for message in list(mine):
            end(consumer, message, NEVER_NS)
    return sorted(found, key=lambda hold: hold.start_ns)


def _check_single_holder(found: list[Hold], by: str, findings: Findings) -> None:
    """No two consumers have messages of one group at a time."""
    last: dict[object, list[Hold]] = {}  # by group: the holds that end last, one of each of two consumers
    for hold in found:
        group = hold.message.key if by == "key" else hold.message
        latest = last.setdefault(group, [])
        for other in latest:
            if other.consumer != hold.consumer and other.end_ns > hold.start_ns:
                findings.add(
                    "two holders",
                    f"{hold.consumer} got {hold.message} while {other.consumer} had {other.message} unacknowledged",
                )
        mine = next((each for each in latest if each.consumer == hold.consumer), None)
        if mine is None:
            latest.append(hold)
        elif hold.end_ns > mine.end_ns:
            latest[latest.index(mine)] = hold
        latest.sort(key=lambda each: -each.end_ns)
        del latest[2:]


def _check_acknowledged_once(events: list[Event], findings: Findings) -> None:
    killed_ns = {event.consumer: event.time_ns for event in events if event.kind == KILLED}
    acked: dict[Message, Event] = {}
    for event in events:
        if event.message is None:
            continue
        if event.kind == RECEIVED and event.message in acked:
            before = acked[event.message]
            findings.add("came again", f"{event.message} at {event.consumer}, though {before.consumer} acknowledged it")
        if event.kind == ACKED and event.time_ns + ACK_DELAY_NS < killed_ns.get(event.consumer, NEVER_NS):
            acked.setdefault(event.message, event)

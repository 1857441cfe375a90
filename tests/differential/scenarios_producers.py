"""Producers: who has access to a topic in which mode and with which epoch, names, sequence ids, and what is not taken.

Requests of the same raw session get their replies in order, so a scenario that waits for what another session causes asks for it
by `replies`. Messages of errors are free text: normalising leaves them out.
"""

import json
from typing import Any

from tests.differential.harness import Run, scenario
from tests.differential.scenarios_non_persistent import path, volatile
from tests.support.raw_client import RawClient, Type

from pybroker.wire import pulsar_api_pb2 as pb

MODES = {name: pb.ProducerAccessMode.Value(name) for name in pb.ProducerAccessMode.keys()}  # noqa: SIM118  (no mapping)


def opened(raw: RawClient, topic: str, producer_id: int, mode: str, **fields: Any) -> dict[str, Any]:
    """The first reply to PRODUCER."""
    return raw.open_producer(topic, producer_id, producer_access_mode=MODES[mode], **fields)


def access(run: Run, topic: str) -> dict[str, Any]:
    """What the stats say of it."""
    _, _, body = run.http("GET", path(topic) + "/stats", ..., "application/json")
    found = json.loads(body)
    shown = {name: found.get(name) for name in ("waitingPublishers", "topicEpoch")}
    return shown | {"publishers": sorted((each["accessMode"], each["producerId"]) for each in found["publishers"])}


@scenario
def producers_exclusive(run: Run) -> None:
    """A topic that is held exclusively, seen by newcomers of all modes, and the epochs of one holder after the other."""
    topic = run.topic()
    with run.raw() as holder, run.raw() as other:
        run.step("the first", opened(holder, topic, 1, "Exclusive", producer_name="holder"))
        run.step("stats", access(run, topic))
        for mode in ("Shared", "Exclusive"):
            run.step(f"{mode}, same connection", opened(holder, topic, 2, mode))
            run.step(f"{mode}, other connection", opened(other, topic, 2, mode))
        run.step("same name", opened(other, topic, 2, "Exclusive", producer_name="holder"))
        run.step("publishes", holder.publish(1, 2))
        run.step("leaves", holder.request(Type.CLOSE_PRODUCER, producer_id=1))
        run.step("stats without it", access(run, topic))
        run.step("the next", opened(other, topic, 3, "Exclusive"))
        run.step("leaves too", other.request(Type.CLOSE_PRODUCER, producer_id=3))
        run.step("Shared", opened(other, topic, 4, "Shared"))
        run.step("Exclusive beside Shared", opened(holder, topic, 5, "Exclusive"))
        run.step("stats in the end", access(run, topic))


@scenario
def producers_wait(run: Run) -> None:
    """Waiting for exclusive access: behind an exclusive producer, and in order."""
    topic = run.topic()
    with run.raw() as holder, run.raw() as first, run.raw() as second:
        run.step("holds", opened(holder, topic, 1, "Exclusive"))
        run.step("waits", opened(first, topic, 1, "WaitForExclusive"))
        run.step("waits, too", opened(second, topic, 1, "WaitForExclusive"))
        run.step("same id again", second.request(Type.PRODUCER, topic=topic, producer_id=1))
        run.step("Shared", opened(second, topic, 2, "Shared"))
        run.step("stats", access(run, topic))
        run.step("leaves", holder.request(Type.CLOSE_PRODUCER, producer_id=1))
        run.step("has its turn", first.replies())
        run.step("has it not", second.replies())
        run.step("publishes", first.publish(1, 1))
        first.close()
        run.step("has its turn, too", second.replies())
        run.step("stats in the end", access(run, topic))


@scenario
def producers_wait_behind_shared(run: Run) -> None:
    """Waiting for exclusive access behind producers that share the topic: until the last one has left."""
    topic = run.topic()
    with run.raw() as sharing, run.raw() as waiting:
        run.step("shares", opened(sharing, topic, 1, "Shared"))
        run.step("shares, too", opened(sharing, topic, 2, "Shared"))
        run.step("waits", opened(waiting, topic, 1, "WaitForExclusive"))
        run.step("Shared", opened(sharing, topic, 3, "Shared"))
        run.step("Exclusive", opened(sharing, topic, 4, "Exclusive"))
        run.step("still published to", sharing.publish(1, 1))
        run.step("one leaves", sharing.request(Type.CLOSE_PRODUCER, producer_id=1))
        run.step("nothing", waiting.replies())
        run.step("stats", access(run, topic))
        run.step("the other one leaves", sharing.request(Type.CLOSE_PRODUCER, producer_id=2))
        run.step("has its turn", waiting.replies())
        run.step("stats in the end", access(run, topic))


@scenario
def producers_waiting_publish(run: Run) -> None:
    """A message of a producer that waits ends its connection."""
    topic = run.topic()
    with run.raw() as holder, run.raw() as waiting:
        run.step("holds", opened(holder, topic, 1, "Exclusive"))
        run.step("waits", opened(waiting, topic, 1, "WaitForExclusive"))
        waiting.send_message(1, 0)
        run.step("publishes", waiting.replies())


@scenario
def producers_waiting_end(run: Run) -> None:
    """A producer that waits closes: it is neither told anything more nor counted."""
    topic = run.topic()
    with run.raw() as holder, run.raw() as waiting:
        run.step("holds", opened(holder, topic, 1, "Exclusive"))
        run.step("waits", opened(waiting, topic, 1, "WaitForExclusive"))
        run.step("closes", waiting.request(Type.CLOSE_PRODUCER, producer_id=1))
        run.step("nothing more", waiting.replies())
        run.step("stats", access(run, topic))


@scenario
def producers_waiting_topic_ends(run: Run) -> None:
    """What a producer that waits is told when its topic is unloaded, terminated, deleted."""
    for number, (end, method, suffix) in enumerate(
        (("unload", "PUT", "/unload"), ("terminate", "POST", "/terminate"), ("delete", "DELETE", "?force=true")), 1
    ):
        topic = run.topic(end)
        with run.raw() as holder, run.raw() as waiting:
            run.step(f"holds, {end}", opened(holder, topic, number, "Exclusive"))
            run.step(f"waits, {end}", opened(waiting, topic, number, "WaitForExclusive"))
            run.rest_status(end, method, path(topic) + suffix)
            run.step(f"the holder, {end}", holder.replies())
            run.step(f"the one that waits, {end}", waiting.replies())


@scenario
def producers_fencing(run: Run) -> None:
    """ExclusiveWithFencing: who is there and who waits is driven out, and how they learn it."""
    topic = run.topic()
    with run.raw() as sharing, run.raw() as waiting, run.raw() as first, run.raw() as second:
        run.step("shares", opened(sharing, topic, 1, "Shared"))
        run.step("shares, too", opened(sharing, topic, 2, "Shared"))
        run.step("waits", opened(waiting, topic, 1, "WaitForExclusive"))
        run.step("fences", opened(first, topic, 1, "ExclusiveWithFencing"))
        run.step("those that share", sharing.replies())
        run.step("the one that waits", waiting.replies())
        run.step("stats", access(run, topic))
        run.step("one closes", sharing.request(Type.CLOSE_PRODUCER, producer_id=2))
        run.step("publishes", first.publish(1, 1))
        run.step("fences the first", opened(second, topic, 1, "ExclusiveWithFencing"))
        run.step("the first", first.replies())
        sharing.send_message(1, 0)
        run.step("one that is fenced publishes", sharing.replies())
        first.send_message(1, 1)
        run.step("another one, too", first.replies())
        run.step("stats in the end", access(run, topic))


@scenario
def producers_return(run: Run) -> None:
    """A producer that had exclusive access comes back: with the topic's epoch, with an older one, with one ahead of it."""
    topic = run.topic()
    with run.raw() as first:
        run.step("takes over", opened(first, topic, 1, "Exclusive", producer_name="p"))
    run.wait_until(lambda: not access(run, topic)["publishers"])
    with run.raw() as second:
        back = {"producer_name": "p", "epoch": 1, "topic_epoch": 0}
        run.step("comes back", opened(second, topic, 1, "Exclusive", **back))
        run.step("leaves", second.request(Type.CLOSE_PRODUCER, producer_id=1))
        run.step("another one", opened(second, topic, 2, "Exclusive"))
        run.step("leaves as well", second.request(Type.CLOSE_PRODUCER, producer_id=2))
        for number, mode in enumerate(("Exclusive", "WaitForExclusive", "ExclusiveWithFencing"), 3):
            run.step(f"comes back too late, {mode}", opened(second, topic, number, mode, **back))
        run.step("Shared does not mind", opened(second, topic, 6, "Shared", **back))
        run.step("the last leaves", second.request(Type.CLOSE_PRODUCER, producer_id=6))
        run.step("an epoch ahead", opened(second, topic, 7, "Exclusive", epoch=1, topic_epoch=9))
        run.step("stats", access(run, topic))
        run.rest("properties", "GET", path(topic) + "/properties")


@scenario
def producers_epoch_is_kept(run: Run) -> None:
    """The epoch is the topic's: an unload does not change it."""
    topic = run.topic()
    with run.raw() as raw:
        run.step("takes over", opened(raw, topic, 1, "Exclusive"))
        run.step("leaves", raw.request(Type.CLOSE_PRODUCER, producer_id=1))
        run.rest_status("unload", "PUT", path(topic) + "/unload")
        run.step("takes over again", opened(raw, topic, 2, "Exclusive"))


@scenario
def producers_limit(run: Run) -> None:
    """`maxProducers` counts who is there, not who waits; at the limit nobody may begin to wait either."""
    topic = run.topic()
    with run.raw() as holder, run.raw() as waiting:
        run.step("holds", opened(holder, topic, 1, "Exclusive"))
        run.rest_status("limit", "POST", path(topic) + "/maxProducers", 2)
        run.wait_until(lambda: run.http("GET", path(topic) + "/maxProducers", ..., "")[2] == b"2")
        for number in (1, 2, 3):
            run.step(f"waits, {number}", opened(waiting, topic, number, "WaitForExclusive"))
        run.step("leaves", holder.request(Type.CLOSE_PRODUCER, producer_id=1))
        run.step("has its turn", waiting.replies())
    other = run.topic("other")
    with run.raw() as sharing, run.raw() as refused:
        run.step("shares", opened(sharing, other, 1, "Shared"))
        run.rest_status("limit of one", "POST", path(other) + "/maxProducers", 1)
        run.wait_until(lambda: run.http("GET", path(other) + "/maxProducers", ..., "")[2] == b"1")
        for number, mode in enumerate(("Shared", "Exclusive", "WaitForExclusive"), 1):
            run.step(f"{mode} at the limit", opened(refused, other, number, mode))


@scenario
def producers_non_persistent(run: Run) -> None:
    """Access modes of a non-persistent topic."""
    topic = volatile(run)
    with run.raw() as holder, run.raw() as other:
        run.step("holds", opened(holder, topic, 1, "Exclusive"))
        run.step("waits", opened(other, topic, 1, "WaitForExclusive"))
        run.step("Shared", opened(other, topic, 2, "Shared"))
        run.step("leaves", holder.request(Type.CLOSE_PRODUCER, producer_id=1))
        run.step("has its turn", other.replies())
        run.step("fences", opened(holder, topic, 2, "ExclusiveWithFencing"))
        run.step("stats", access(run, topic))


@scenario
def producers_sequence_ids(run: Run) -> None:
    """Receipts name the sequence ids as they were sent: of single messages, of batches, and after a reconnect."""
    topic = run.topic()
    with run.raw() as raw:
        run.step("opened", raw.open_producer(topic, producer_name="p"))
        raw.send_message(1, 5)
        run.step("single", raw.reply())
        raw.send_message(1, 6, batch=[b"a", b"b", b"c"], highest_sequence_id=8)
        run.step("batch with its highest", raw.reply())
        raw.send_message(1, 9, batch=[b"a", b"b"])
        run.step("batch without", raw.reply())
        raw.send_message(1, 3)
        run.step("one that is smaller", raw.reply())
        raw.send_message(1, 12, highest_sequence_id=11)
        run.step("highest below the first", raw.reply())
    with run.raw() as raw:
        run.wait_until(lambda: not access(run, topic)["publishers"])
        run.step("opened again", raw.open_producer(topic, producer_name="p", epoch=1))

"""Deduplication: what counts as sent before, how it is answered, and that its switch acts on who is connected."""

from typing import Any

from tests.differential.harness import Run, scenario
from tests.differential.scenarios_limits import Place, outcome
from tests.support.raw_client import RawClient, Type

NOWHERE = str(2**64 - 1)
NAME = "fixed"


def answers(replies: list[dict[str, Any]]) -> list[str]:
    """What became of each message; errors of one moment come in either order with receipts."""
    found = []
    for reply in replies:
        text = outcome(reply)
        if reply["type"] == "SEND_RECEIPT":
            text = "duplicate" if reply["message_id"]["entryId"] == NOWHERE else "stored"
        found.append(f"{reply.get('sequence_id', '')} {text}")
    return sorted(found)


def enabled_place(run: Run) -> Place:
    place = Place(run)
    place.set_namespace("deduplication", True)
    assert run.wait_until(lambda: status(run, place) == "Enabled")
    return place


def open_named(run: Run, raw: RawClient, topic: str, label: str, producer_id: int = 1, name: str = NAME) -> None:
    reply = raw.open_producer(topic, producer_id, producer_name=name, user_provided_producer_name=True)
    run.step(f"{label}: last sequence id", reply.get("last_sequence_id", reply))


def send(raw: RawClient, sequence_id: int, producer_id: int = 1, name: str = NAME, **fields: Any) -> None:
    metadata = {"producer_name": name, **fields.pop("metadata", {})}
    raw.send_message(producer_id, sequence_id, b"x", metadata=metadata, **fields)


def send_batch(raw: RawClient, first: int, last: int) -> None:
    batch = [b"m%d" % each for each in range(first, last + 1)]
    send(raw, first, batch=batch, highest_sequence_id=last, metadata={"highest_sequence_id": last})


def send_chunks(raw: RawClient, sequence_id: int, chunk_ids: list[int], of: int) -> None:
    for chunk_id in chunk_ids:
        parts = {"uuid": f"{NAME}-{sequence_id}", "num_chunks_from_msg": of, "total_chunk_msg_size": of}
        send(raw, sequence_id, metadata={**parts, "chunk_id": chunk_id}, is_chunk=True)


def status(run: Run, place: Place) -> str:
    stats = run.http("GET", f"{place.path}/stats", ..., "application/json")[2]
    text: str = stats.decode().partition('"deduplicationStatus":')[2].lstrip().split('"')[1]
    return text


def record_status(run: Run, place: Place, label: str, wanted: str) -> None:
    run.wait_until(lambda: status(run, place) == wanted)
    run.step(label, status(run, place))


@scenario
def deduplication_of_messages(run: Run) -> None:
    """The same id again, lower ids, gaps, and what a producer of the same name is told on another connection."""
    place = enabled_place(run)
    with run.raw() as raw:
        open_named(run, raw, place.topic, "first")
        for label, ids in (("rising", [0, 1, 2, 7]), ("again", [7]), ("lower and higher", [3, 0, 8])):
            for each in ids:
                send(raw, each)
                run.step(f"{label}: {each}", answers([raw.reply()]))
    with run.raw() as raw:
        open_named(run, raw, place.topic, "second")
        send(raw, 8)
        send(raw, 9)
        run.step("on another connection", answers(raw.replies()))
        raw.request(Type.CLOSE_PRODUCER, producer_id=1)
        open_named(run, raw, place.topic, "reopened", 2)
        open_named(run, raw, place.topic, "another name", 3, "another")
        send(raw, 9, 3, "another")
        run.step("of another name", answers(raw.replies()))


@scenario
def deduplication_of_batches(run: Run) -> None:
    """A batch goes by its first id and counts up to its highest: whole, straddling, behind."""
    place = enabled_place(run)
    with run.raw() as raw:
        open_named(run, raw, place.topic, "first")
        for first, last in ((0, 9), (0, 9), (5, 14), (10, 19), (9, 12), (20, 20)):
            send_batch(raw, first, last)
            run.step(f"{first} to {last}", answers([raw.reply()]))
        send(raw, 20)
        send(raw, 21)
        run.step("single messages", answers(raw.replies()))
        raw.request(Type.CLOSE_PRODUCER, producer_id=1)
        open_named(run, raw, place.topic, "reopened", 2)


@scenario
def deduplication_of_chunks(run: Run) -> None:
    """The parts of a large message share an id, which counts with the last part; all of them again."""
    place = enabled_place(run)
    with run.raw() as raw:
        open_named(run, raw, place.topic, "first")
        send_chunks(raw, 3, [0, 1, 2], 3)
        run.step("whole", answers(raw.replies()))
        send_chunks(raw, 4, [0, 1], 3)
        run.step("broken off", answers(raw.replies()))
        send_chunks(raw, 4, [0, 1, 2], 3)
        run.step("from its beginning", answers(raw.replies()))
        send_chunks(raw, 4, [2], 3)
        run.step("the last part again", answers(raw.replies()))
        send_chunks(raw, 4, [0, 1, 2], 3)
        run.step("all parts again", answers(raw.replies()))
        send(raw, 5)
        run.step("behind it", answers(raw.replies()))


@scenario
def deduplication_of_pipelined_messages(run: Run) -> None:
    """The same id twice before the first one is answered: it is stored once."""
    place = enabled_place(run)
    with run.raw() as raw:
        open_named(run, raw, place.topic, "first")
        for each in (0, 0, 1):
            send(raw, each)
        # Of the second 0 a broker says that it cannot tell, or that it is a duplicate, as quick as it is.
        run.step("twice", [each for each in answers(raw.replies()) if "stored" in each])
        send(raw, 0)
        send(raw, 1)
        run.step("once it is stored", answers(raw.replies()))


@scenario
def deduplication_switched(run: Run) -> None:
    """On and off at both levels with a producer connected, which notices nothing else."""
    place = Place(run)
    record_status(run, place, "before", "Disabled")
    with run.raw() as raw:
        open_named(run, raw, place.topic, "first")
        send(raw, 5)
        run.step("off", answers(raw.replies()))
        place.set_namespace("deduplication", True)
        record_status(run, place, "by the namespace", "Enabled")
        send(raw, 5)
        run.step("what was stored before counts for nothing", answers(raw.replies()))
        send(raw, 5)
        run.step("on", answers(raw.replies()))
        place.set("deduplicationEnabled", False)
        record_status(run, place, "off by the topic", "Disabled")
        send(raw, 5)
        send(raw, 2)
        run.step("off again", answers(raw.replies()))
        raw.request(Type.CLOSE_PRODUCER, producer_id=1)
        open_named(run, raw, place.topic, "while it is off", 2)
        run.rest_status("no policy of the topic", "DELETE", f"{place.path}/deduplicationEnabled")
        record_status(run, place, "by the namespace again", "Enabled")


@scenario
def deduplication_unloaded(run: Run) -> None:
    """What was stored is known when the topic is loaded again, with terminated topics at the end."""
    place = enabled_place(run)
    with run.raw() as raw:
        open_named(run, raw, place.topic, "first")
        for each in range(5):
            send(raw, each)
        run.step("stored", answers(raw.replies()))
        run.rest_status("unload", "PUT", f"{place.path}/unload")
        run.step("told", [reply["type"] for reply in raw.replies()])
        open_named(run, raw, place.topic, "loaded again")
        for each in (4, 5):
            send(raw, each)
        run.step("again", answers(raw.replies()))
        record_status(run, place, "status", "Enabled")
        run.rest_status("terminate", "POST", f"{place.path}/terminate")
        run.step("told of the end", [reply["type"] for reply in raw.replies()])


@scenario
def deduplication_cursor(run: Run) -> None:
    """Its cursor is in the internal stats, is no subscription and holds no backlog."""
    place = enabled_place(run)
    with run.raw() as raw:
        open_named(run, raw, place.topic, "first")
        for each in range(3):
            send(raw, each)
        raw.replies()
    run.rest("subscriptions", "GET", f"{place.path}/subscriptions")
    stats = run.rest_status("stats", "GET", f"{place.path}/stats")
    assert isinstance(stats, dict)
    run.step("shown", {key: stats[key] for key in ("subscriptions", "backlogSize", "deduplicationStatus")})
    internal = run.rest_status("internal stats", "GET", f"{place.path}/internalStats")
    assert isinstance(internal, dict)
    run.step("cursors", {name: sorted(each) for name, each in internal["cursors"].items()})  # type: ignore[arg-type, union-attr]
    with run.raw() as raw:
        run.step("subscribe as that", outcome(raw.subscribe(place.topic, 1, subscription="pulsar.dedup")))


@scenario
def deduplication_by_the_official_client(run: Run) -> None:
    """Sequence ids of the application, a producer of the same name that goes on, and the ids of duplicates."""
    place = enabled_place(run)
    client = run.client()
    consumer = client.subscribe(place.topic, "s")
    producer = client.create_producer(place.topic, NAME, batching_enabled=False)
    for sequence_id in (1, 2, 2, 5, 3, 6):
        producer.send(b"m%d" % sequence_id, sequence_id=sequence_id)
    run.step("last of the first", producer.last_sequence_id())
    producer.close()
    producer = client.create_producer(place.topic, NAME, batching_enabled=False)
    run.step("last of the second", producer.last_sequence_id())
    producer.send(b"goes on")
    producer.close()
    producer = client.create_producer(place.topic, NAME, batching_enabled=False, initial_sequence_id=4)
    producer.send(b"begins below")
    run.record_messages("received", run.receive_rest(consumer))

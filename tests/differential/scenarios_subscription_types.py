"""Failover and Key_Shared: who gets what, who is told that it is active, what is refused, what another type finds."""

import contextlib
from typing import Any, Self

from tests.differential.harness import Run, scenario
from tests.support.raw_client import RawClient, Type

from pybroker.wire import pulsar_api_pb2 as pb

AFTER_TAKE_OVER_S = 1.8  # activeConsumerFailoverDelayTimeMillis is a second by default
KEYS = [f"key-{index}" for index in range(24)]
TYPES = ("Exclusive", "Failover", "Shared", "Key_Shared")


class Consumers:
    """Consumers of one subscription, each with a connection of its own and permits for all."""

    def __init__(self, run: Run, topic: str = "topic") -> None:
        self.topic = run.topic(topic)
        self.by_name: dict[str, RawClient] = {}
        self._run = run
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def attempt(self, label: str, name: str, sub_type: str, **fields: Any) -> bool:
        """Subscribe and record what is answered, without the text of an error; whether it worked."""
        raw = self._closing.enter_context(self._run.raw())
        answer = raw.subscribe(self.topic, sub_type=sub_type, consumer_name=name, **fields)
        told = []
        while answer["type"] == "ACTIVE_CONSUMER_CHANGE":  # before the answer, when it changes nothing
            told.append(shown(answer))
            answer = raw.reply()
        self._run.step(label, [*told, answer["type"], answer.get("error")])
        if answer["type"] != "SUCCESS":
            return False
        raw.send(Type.FLOW, consumer_id=1, messagePermits=1000)
        self.by_name[name] = raw
        return True

    def join(self, name: str, sub_type: str, **fields: Any) -> None:
        self.attempt(f"{name} joins", name, sub_type, **fields)

    def leave(self, name: str) -> None:
        self.by_name.pop(name).close()

    def publish(self, keys: list[str], first: int = 0) -> None:
        with self._run.raw() as raw:
            raw.open_producer(self.topic, producer_name=f"p{first}")
            for index, key in enumerate(keys, first):
                raw.send_message(1, index, b"%d" % index, metadata={"partition_key": key})
            for _ in keys:
                raw.reply()

    def collect(self, label: str, quiet_s: float = 0.7) -> dict[str, list[dict[str, Any]]]:
        """Record what each got: payloads with the count of a redelivered one, and notices; the messages themselves."""
        found = {name: raw.replies(quiet_s) for name, raw in self.by_name.items()}
        self._run.step(label, {name: [shown(each) for each in replies] for name, replies in found.items()})
        return {name: [each for each in replies if each["type"] == "MESSAGE"] for name, replies in found.items()}

    def acknowledge(self, name: str, messages: list[dict[str, Any]]) -> None:
        self.by_name[name].send(Type.ACK, consumer_id=1, ack_type=0, message_id=ids_of(messages))


def ids_of(messages: list[dict[str, Any]]) -> list[pb.MessageIdData]:
    ids = (message["message_id"] for message in messages)
    return [pb.MessageIdData(ledgerId=int(each["ledgerId"]), entryId=int(each["entryId"])) for each in ids]


def shown(reply: dict[str, Any]) -> str:
    if reply["type"] == "MESSAGE":
        count = reply.get("redelivery_count", 0)
        return f"{reply['payload']}, redelivered {count}" if count else str(reply["payload"])
    if reply["type"] == "ACTIVE_CONSUMER_CHANGE":
        return "active" if reply.get("is_active") else "inactive"
    return str(reply["type"])


def options(mode: str, *ranges: tuple[int, int], out_of_order: bool = False) -> dict[str, Any]:
    meta = pb.KeySharedMeta(keySharedMode=pb.KeySharedMode.Value(mode), allowOutOfOrderDelivery=out_of_order)  # type: ignore[arg-type]
    for start, end in ranges:
        meta.hashRanges.add(start=start, end=end)
    return {"keySharedMeta": meta}


@scenario
def failover_takes_over(run: Run) -> None:
    """Better priority levels take over, and what is not acknowledged comes again; who is told what."""
    with Consumers(run) as consumers:
        consumers.join("a", "Failover", priority_level=2)
        consumers.collect("alone", AFTER_TAKE_OVER_S)
        consumers.publish(["k"] * 4)
        messages = consumers.collect("a serves")
        consumers.acknowledge("a", messages["a"][:2])
        consumers.join("c", "Failover", priority_level=3)
        consumers.collect("c stands by", AFTER_TAKE_OVER_S)
        consumers.join("b", "Failover", priority_level=1)
        consumers.collect("b takes over", AFTER_TAKE_OVER_S)
        consumers.publish(["k"] * 2, first=4)
        consumers.collect("b serves")
        consumers.leave("b")
        consumers.collect("a goes on", AFTER_TAKE_OVER_S)
        consumers.leave("c")
        consumers.collect("one that stood by left", AFTER_TAKE_OVER_S)


@scenario
def key_shared_ring(run: Run) -> None:
    """Which consumer of three gets which key, by the default ring."""
    with Consumers(run) as consumers:
        for name in ("c1", "c2", "c3"):
            consumers.join(name, "Key_Shared")
        consumers.publish(KEYS * 2)
        consumers.collect("three")
        with run.raw() as raw:
            raw.open_producer(consumers.topic, producer_name="keyless")
            for index in range(100, 112):
                raw.send_message(1, index, b"%d" % index, metadata={"producer_name": "keyless"})
            for index in range(112, 120):
                keys = {"producer_name": "keyless", "ordering_key": b"o%d" % (index % 4), "partition_key": "k"}
                raw.send_message(1, index, b"%d" % index, metadata=keys)
            for _ in range(20):
                raw.reply()
        consumers.collect("without key, and by ordering key")


@scenario
def key_shared_newcomer(run: Run) -> None:
    """A newcomer gets a key that was its neighbour's once all of it is acknowledged."""
    with Consumers(run) as consumers:
        consumers.join("c1", "Key_Shared")
        consumers.publish(KEYS)
        before = consumers.collect("c1 alone")["c1"]
        consumers.join("c2", "Key_Shared")
        consumers.publish(KEYS, first=100)
        consumers.collect("c2 waits")
        consumers.acknowledge("c1", before[:12])
        consumers.collect("half is acknowledged")
        consumers.acknowledge("c1", before[12:])
        consumers.collect("all is acknowledged")


@scenario
def key_shared_gives_back(run: Run) -> None:
    """What a consumer asks for again comes to it again, in the order of its keys."""
    with Consumers(run) as consumers:
        consumers.join("c1", "Key_Shared")
        consumers.join("c2", "Key_Shared")
        consumers.publish(KEYS)
        messages = consumers.collect("first")
        again = ids_of(messages["c1"][:3])
        consumers.by_name["c1"].send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1, message_ids=again)
        consumers.collect("some again")
        consumers.by_name["c2"].send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1)
        consumers.collect("all again")


@scenario
def key_shared_consumer_leaves(run: Run) -> None:
    """What the one that leaves has not acknowledged goes to the others."""
    with Consumers(run) as consumers:
        for name in ("c1", "c2", "c3"):
            consumers.join(name, "Key_Shared")
        consumers.publish(KEYS)
        consumers.collect("three")
        consumers.leave("c2")
        consumers.collect("two")


@scenario
def key_shared_sticky(run: Run) -> None:
    """Ranges with both ends, a gap that waits, and ranges that are refused."""
    with Consumers(run) as consumers:
        consumers.join("low", "Key_Shared", **options("STICKY", (0, 6066)))
        consumers.publish([*KEYS, "Order-3459134"])
        consumers.collect("the lower ones")
        wrong: dict[str, list[tuple[int, int]]] = {
            "none": [],
            "end before start": [(20_000, 10_000)],
            "overlap with itself": [(10_000, 20_000), (20_000, 30_000)],
            "overlap by one": [(6066, 7000)],
            "the same": [(0, 6066)],
            "around": [(0, 65_535)],
        }
        for label, ranges in wrong.items():
            consumers.attempt(label, "wrong", "Key_Shared", **options("STICKY", *ranges))
        consumers.join("one", "Key_Shared", **options("STICKY", (6067, 6067)))
        consumers.collect("6067")
        consumers.join("high", "Key_Shared", **options("STICKY", (6068, 30_000), (30_001, 65_535)))
        consumers.collect("the rest")


@scenario
def subscription_type_mismatch(run: Run) -> None:
    """Another type, mode or flag than those of the connected consumers."""
    for connected in TYPES:
        with Consumers(run, connected) as consumers:
            consumers.join("first", connected)
            for kind in TYPES:
                consumers.attempt(f"{kind} beside {connected}", f"second {kind}", kind, priority_level=1)
    with Consumers(run, "mode") as consumers:
        consumers.join("first", "Key_Shared", **options("AUTO_SPLIT"))
        consumers.attempt("sticky", "sticky", "Key_Shared", **options("STICKY", (0, 10)))
        consumers.attempt("out of order", "loose", "Key_Shared", **options("AUTO_SPLIT", out_of_order=True))
        consumers.attempt("nothing said", "silent", "Key_Shared")


@scenario
def subscription_type_changes(run: Run) -> None:
    """Each type finds the holes that the one before left."""
    with Consumers(run) as consumers:
        consumers.join("shared", "Shared")
        consumers.publish(KEYS[:8])
        messages = consumers.collect("as Shared")["shared"]
        consumers.acknowledge("shared", [*messages[:1], *messages[3:5]])
        consumers.collect("acknowledged")
        consumers.leave("shared")
        for kind in ("Failover", "Exclusive"):
            consumers.join(kind, kind)
            consumers.collect(f"as {kind}", AFTER_TAKE_OVER_S)
            consumers.leave(kind)
        consumers.join("key", "Key_Shared")
        payloads = [message["payload"] for message in consumers.by_name["key"].replies()]
        run.step("as Key_Shared", payloads)


@scenario
def shared_chunks(run: Run) -> None:
    """The chunks of a message go to one of two consumers, those of another to the other."""
    with Consumers(run) as consumers:
        consumers.join("a", "Shared")
        consumers.join("b", "Shared")
        with run.raw() as raw:
            raw.open_producer(consumers.topic)
            for index, (uuid, chunk_id) in enumerate([("u", 0), ("u", 1), ("v", 0), ("u", 2), ("v", 1), ("v", 2)]):
                chunk = {"uuid": uuid, "num_chunks_from_msg": 3, "total_chunk_msg_size": 9, "chunk_id": chunk_id}
                raw.send_message(1, index, b"%s%d" % (uuid.encode(), chunk_id), metadata=chunk, is_chunk=True)
                raw.reply()
        found = {name: [each["payload"] for each in each_raw.replies()] for name, each_raw in consumers.by_name.items()}
        holders = {uuid: [name for name, got in found.items() if f"{uuid}0" in got] for uuid in "uv"}
        run.step("every message whole", {u: [each for each in found[holders[u][0]] if each[0] == u] for u in "uv"})

"""Transactions: coordinators and their answers, who sees messages when, acknowledgements that wait, what an abort undoes."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from tests.differential.harness import Run, transaction_scenario
from tests.differential.scenarios_operations import path_of
from tests.support.raw_client import QUIET_S, RawClient, Type

from pybroker.wire import pulsar_api_pb2 as pb

ASSIGN = "persistent://pulsar/system/transaction_coordinator_assign"
COMMIT, ABORT = pb.COMMIT, pb.ABORT
TYPES = ("Exclusive", "Failover", "Shared", "Key_Shared")
FOUR = [b"m0", b"m1", b"m2", b"m3"]
AFTER_TAKE_OVER_S = 1.8  # activeConsumerFailoverDelayTimeMillis is a second by default
Ids = dict[str, int]


class Coordinator:
    """A connection to one coordinator; answers are recorded as type and error."""

    def __init__(self, run: Run, raw: RawClient, number: int = 0) -> None:
        self._run = run
        self._raw = raw
        self._number = number
        raw.request(Type.LOOKUP, topic=f"{ASSIGN}-partition-{number}")
        raw.request(Type.TC_CLIENT_CONNECT_REQUEST, tc_id=number)

    def begin(self, timeout_ms: int = 60_000) -> Ids:
        answer = self._raw.request(Type.NEW_TXN, tc_id=self._number, txn_ttl_seconds=timeout_ms)
        return {key: int(answer[key]) for key in ("txnid_most_bits", "txnid_least_bits")}

    def ask(self, label: str, kind: "pb.BaseCommand.Type", **fields: Any) -> None:
        self._run.step(label, outcome(self._raw.request(kind, **fields)))

    def add(self, txn: Ids, topic: str, label: str = "add a partition") -> None:
        self.ask(label, Type.ADD_PARTITION_TO_TXN, **txn, partitions=[topic])

    def add_subscription(self, txn: Ids, topic: str, name: str = "sub", label: str = "add a subscription") -> None:
        pair = pb.Subscription(topic=topic, subscription=name)
        self.ask(label, Type.ADD_SUBSCRIPTION_TO_TXN, **txn, subscription=[pair])

    def end(self, txn: Ids, action: int, label: str = "end") -> None:
        self.ask(label, Type.END_TXN, **txn, txn_action=action)


def outcome(answer: dict[str, Any]) -> list[Any]:
    return [answer["type"], answer.get("error")]


@contextlib.contextmanager
def coordinator(run: Run, number: int = 0) -> Iterator[Coordinator]:
    with run.raw() as raw:
        yield Coordinator(run, raw, number)


def send_in(raw: RawClient, txn: Ids | None, payloads: list[bytes], first: int = 0, key: str = "") -> list[Any]:
    """Sends by producer 1; the outcomes."""
    own: dict[str, Any] = dict(txn or {})
    metadata = {**own, **({"partition_key": key} if key else {})}
    for index, payload in enumerate(payloads, first):
        raw.send_message(1, index, payload, metadata=metadata, **own)
    return [outcome(raw.reply()) for _ in payloads]


def shown(replies: list[dict[str, Any]]) -> list[Any]:
    """Payloads, with the count of redelivered ones and what is left of batches."""
    found: list[Any] = []
    for each in replies:
        if each["type"] != "MESSAGE":
            found.append(each["type"])
            continue
        row = [each["payload"], each.get("redelivery_count", 0)]
        found.append([*row, each["ack_set"]] if "ack_set" in each else row)
    return found


class Taker:
    """A consumer with permits for all, on a connection of its own."""

    def __init__(self, run: Run, raw: RawClient, topic: str, sub_type: str = "Exclusive", **fields: Any) -> None:
        self.raw = raw
        self._run = run
        self._topic = topic
        raw.subscribe(topic, sub_type=sub_type, **fields)
        if sub_type == "Failover":
            raw.replies(AFTER_TAKE_OVER_S)
        raw.send(Type.FLOW, consumer_id=1, messagePermits=1000)
        self.messages: list[dict[str, Any]] = []

    def collect(self, label: str, quiet_s: float = QUIET_S) -> None:
        """What comes until it has been quiet for a while."""
        replies = [each for each in self.raw.replies(quiet_s) if each["type"] != "ACTIVE_CONSUMER_CHANGE"]
        self.messages += [each for each in replies if each["type"] == "MESSAGE"]
        self._run.step(label, shown(replies))

    def id_of(self, index: int, left: list[int] | None = None, batch_size: int = 0) -> pb.MessageIdData:
        """`left`: of a batch, everything but these messages is meant."""
        said = self.messages[index]["message_id"]
        found = pb.MessageIdData(ledgerId=int(said["ledgerId"]), entryId=int(said["entryId"]))
        if left is not None:
            found.ack_set.append(sum(1 << each for each in left))
            found.batch_size = batch_size
        return found

    def acknowledge(
        self, label: str, txn: Ids | None, ids: list[pb.MessageIdData], *, is_cumulative: bool = False
    ) -> None:
        kind = pb.CommandAck.Cumulative if is_cumulative else pb.CommandAck.Individual
        self._run.step(
            label,
            outcome(self.raw.request(Type.ACK, consumer_id=1, ack_type=kind, message_id=ids, **(txn or {}))),
        )


@contextlib.contextmanager
def taker(run: Run, topic: str, sub_type: str = "Exclusive", **fields: Any) -> Iterator[Taker]:
    with run.raw() as raw:
        yield Taker(run, raw, topic, sub_type, **fields)


def record_stats(run: Run, label: str, topic: str, subscription: str = "sub") -> None:
    """Numbers that tell what a transaction hides."""
    found = json.loads(run.http("GET", f"{path_of(topic)}/stats", ..., "application/json")[2])
    of = found["subscriptions"].get(subscription, {})
    run.step(
        label,
        {
            **{
                key: found.get(key)
                for key in ("msgInCounter", "ongoingTxnCount", "abortedTxnCount", "committedTxnCount")
            },
            **{key: of.get(key) for key in ("msgBacklog", "msgBacklogNoDelayed", "unackedMessages")},
        },
    )


def last_id(run: Run, raw: RawClient, label: str) -> None:
    answer = raw.request(Type.GET_LAST_MESSAGE_ID, consumer_id=1)
    run.step(label, {key: answer.get(key) for key in ("type", "last_message_id", "error")})


@transaction_scenario
def transactions_coordinators(run: Run) -> None:
    """How many there are, connecting, opening, ending twice, an ended one used again, ids that are made up."""
    with run.raw() as raw:
        run.step("there are some", raw.request(Type.PARTITIONED_METADATA, topic=ASSIGN).get("partitions", 0) > 0)
        answer = raw.request(Type.TC_CLIENT_CONNECT_REQUEST, tc_id=1000)
        run.step("connect to one that is not there", outcome(answer))
        run.step("open at one that is not there", outcome(raw.request(Type.NEW_TXN, tc_id=1000, txn_ttl_seconds=1000)))
    topic = run.topic()
    with coordinator(run) as of, run.raw() as producer:
        producer.open_producer(topic)
        first, second = of.begin(), of.begin()
        run.step("ids rise", second["txnid_least_bits"] - first["txnid_least_bits"])
        of.add(first, topic)
        of.add(first, topic, "once more")
        of.end(first, COMMIT, "commit")
        of.end(first, COMMIT, "commit again")
        of.end(first, ABORT, "abort then")
        of.add(first, topic, "add to an ended one")
        of.add_subscription(first, topic, label="add a subscription to an ended one")
        of.end(second, ABORT, "abort, nothing in it")
        of.end(second, ABORT, "abort again")
        for label, made_up in (
            ("never given", {**first, "txnid_least_bits": 1 << 40}),
            ("zero", {"txnid_most_bits": 0, "txnid_least_bits": 0}),
            ("of no coordinator", {"txnid_most_bits": 4242, "txnid_least_bits": 1}),
        ):
            of.add(made_up, topic, f"{label}: add")
            of.add_subscription(made_up, topic, label=f"{label}: add a subscription")
            of.end(made_up, COMMIT, f"{label}: commit")
            of.end(made_up, ABORT, f"{label}: abort")


@transaction_scenario
def transactions_time_out(run: Run) -> None:
    """One that is not ended in time is aborted: what it sent is never seen, and it is not found any more."""
    topic = run.topic()
    with coordinator(run) as of, run.raw() as producer, taker(run, topic) as consumer:
        producer.open_producer(topic)
        txn = of.begin(1000)
        of.add(txn, topic)
        run.step("sent", send_in(producer, txn, [b"in time"]))
        run.step("sent outside", send_in(producer, None, [b"outside"], 1))
        label = "the one behind it"
        run.wait_until(lambda: bool(consumer.messages) or _more(consumer), 15)
        run.step(label, shown(consumer.messages))
        of.end(txn, COMMIT, "commit too late")


def _more(consumer: Taker) -> bool:
    found = consumer.raw.replies(0.2)
    consumer.messages += [each for each in found if each["type"] == "MESSAGE"]
    return bool(consumer.messages)


@transaction_scenario
def transactions_visibility(run: Run) -> None:
    """Open, committed and aborted messages: delivery, the last message id, statistics, and messages of others behind them."""
    topic = run.topic()
    with coordinator(run) as of, run.raw() as producer, taker(run, topic) as consumer:
        producer.open_producer(topic)
        last_id(run, consumer.raw, "last of none")
        run.step("outside", send_in(producer, None, [b"outside"]))
        consumer.collect("one outside")
        last_id(run, consumer.raw, "last is outside")
        for name, action in (("committed", COMMIT), ("aborted", ABORT)):
            txn = of.begin()
            of.add(txn, topic, f"{name}: add")
            base = 10 if action == COMMIT else 20
            run.step(
                f"{name}: sent", send_in(producer, txn, [b"%s %d" % (name.encode(), each) for each in (0, 1)], base)
            )
            consumer.collect(f"{name}: open")
            last_id(run, consumer.raw, f"{name}: last while it is open")
            run.step(f"{name}: behind", send_in(producer, None, [b"behind"], base + 5))
            consumer.collect(f"{name}: open, and another behind")
            last_id(run, consumer.raw, f"{name}: last with another behind")
            record_stats(run, f"{name}: stats while it is open", topic)
            of.end(txn, action, f"{name}: end")
            consumer.collect(f"{name}: ended")
            last_id(run, consumer.raw, f"{name}: last")
            record_stats(run, f"{name}: stats", topic)
        consumer.acknowledge("all", None, [consumer.id_of(-1)], is_cumulative=True)
        record_stats(run, "all acknowledged", topic)


@transaction_scenario
def transactions_last_is_aborted(run: Run) -> None:
    """A reader that goes to the end: the last message id behind aborted messages and markers, and what is peeked at by REST."""
    topic = run.topic()
    path = path_of(topic)
    with coordinator(run) as of, run.raw() as producer, taker(run, topic) as consumer:
        producer.open_producer(topic)
        run.step("outside", send_in(producer, None, [b"outside"]))
        for action in (ABORT, COMMIT):
            txn = of.begin()
            of.add(txn, topic)
            run.step("sent", send_in(producer, txn, [b"inside"] * 2, 10 * (action + 1)))
            of.end(txn, action)
            consumer.collect("delivered")
            last_id(run, consumer.raw, "last")
        for position in range(1, 4):
            status, _, body = run.http("GET", f"{path}/subscription/sub/position/{position}", ..., "application/json")
            run.step(f"peek {position}", [status, body.decode(errors="replace") if status == 200 else None])


@transaction_scenario
def transactions_conflicts(run: Run) -> None:
    """Acknowledgements that collide: with another transaction's, with plain ones before, with its own, in batches."""
    topic = run.topic()
    with coordinator(run) as of, run.raw() as producer, taker(run, topic, "Shared") as consumer:
        producer.open_producer(topic)
        producer.publish(1, 6)
        producer.publish_batches(1, 2, 4)
        consumer.collect("delivered")
        one, two = of.begin(), of.begin()
        for txn in (one, two):
            of.add_subscription(txn, topic)
        at = consumer.id_of
        consumer.acknowledge("plain, the first: mark-delete", None, [at(0)])
        consumer.acknowledge("plain, the third", None, [at(2)])
        consumer.acknowledge("one: second", one, [at(1)])
        consumer.acknowledge("one: the same again", one, [at(1)])
        consumer.acknowledge("two: what one holds", two, [at(1)])
        consumer.acknowledge("two: what is mark-deleted", two, [at(0)])
        consumer.acknowledge("two: what is deleted alone", two, [at(2)])
        consumer.acknowledge("two: one of its own and one of the other", two, [at(4), at(1)])
        consumer.acknowledge("one: what two may hold then", one, [at(4)])
        consumer.acknowledge("one: part of a batch", one, [at(6, [2, 3], 4)])
        consumer.acknowledge("two: another part", two, [at(6, [0, 1, 3], 4)])
        consumer.acknowledge("two: that of one", two, [at(6, [1, 2, 3], 4)])
        consumer.acknowledge("two: the whole batch", two, [at(6)])
        consumer.acknowledge("plain: part of a batch", None, [at(7, [1, 2, 3], 4)])
        consumer.acknowledge("two: that part", two, [at(7, [1, 2, 3], 4)])
        consumer.acknowledge("two: other parts of it", two, [at(7, [0, 3], 4)])
        of.end(one, COMMIT, "one commits")
        consumer.acknowledge("two: what one has committed", two, [at(1)])
        of.end(two, ABORT, "two aborts")
        consumer.collect("again")


@transaction_scenario
def transactions_aborted_acknowledgements(run: Run) -> None:
    """What was held comes again after an abort, with its count, and not before; after a commit it does not."""
    for sub_type in TYPES:
        topic = run.topic(sub_type)
        with coordinator(run) as of, run.raw() as producer, taker(run, topic, sub_type) as consumer:
            producer.open_producer(topic)
            send_in(producer, None, FOUR, key="k")
            consumer.collect(f"{sub_type}: delivered")
            for name, action in (("aborted", ABORT), ("committed", COMMIT)):
                txn = of.begin()
                of.add_subscription(txn, topic, label=f"{sub_type}, {name}: add")
                consumer.acknowledge(f"{sub_type}, {name}: held", txn, [consumer.id_of(1), consumer.id_of(2)])
                consumer.raw.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1)
                consumer.collect(f"{sub_type}, {name}: asked for again while it is open")
                record_stats(run, f"{sub_type}, {name}: stats", topic)
                of.end(txn, action, f"{sub_type}, {name}: end")
                consumer.collect(f"{sub_type}, {name}: ended")
                consumer.raw.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1)
                consumer.collect(f"{sub_type}, {name}: asked for again")
            record_stats(run, f"{sub_type}: stats", topic)


@transaction_scenario
def transactions_cumulative(run: Run) -> None:
    """Cumulative acknowledgements in transactions, beside each other and beside single ones."""
    topic = run.topic()
    with coordinator(run) as of, run.raw() as producer, taker(run, topic) as consumer:
        producer.open_producer(topic)
        producer.publish(1, 8)
        consumer.collect("delivered")
        one, two = of.begin(), of.begin()
        for txn in (one, two):
            of.add_subscription(txn, topic)
        at = consumer.id_of
        consumer.acknowledge("one: up to the third", one, [at(2)], is_cumulative=True)
        consumer.acknowledge("one: further", one, [at(3)], is_cumulative=True)
        consumer.acknowledge("two: further than that", two, [at(5)], is_cumulative=True)
        consumer.acknowledge("two: below", two, [at(1)], is_cumulative=True)
        consumer.acknowledge("two: a single one above", two, [at(6)])
        of.end(one, COMMIT, "one commits")
        record_stats(run, "after the commit", topic)
        consumer.acknowledge("two: below what is mark-deleted", two, [at(1)], is_cumulative=True)
        of.end(two, ABORT, "two aborts")
        consumer.collect("again")
        record_stats(run, "after the abort", topic)


@transaction_scenario
def transactions_cumulative_over_others(run: Run) -> None:
    """A cumulative acknowledgement over what another transaction holds alone."""
    topic = run.topic()
    with coordinator(run) as of, run.raw() as producer, taker(run, topic) as consumer:
        producer.open_producer(topic)
        producer.publish(1, 4)
        consumer.collect("delivered")
        one, two = of.begin(), of.begin()
        for txn in (one, two):
            of.add_subscription(txn, topic)
        consumer.acknowledge("two: a single one", two, [consumer.id_of(1)])
        consumer.acknowledge("one: up to the third", one, [consumer.id_of(2)], is_cumulative=True)
        of.end(two, ABORT, "two aborts")
        of.end(one, COMMIT, "one commits")
        record_stats(run, "stats", topic)


@transaction_scenario
def transactions_deduplication(run: Run) -> None:
    """Sequence ids that came in an aborted transaction are known, and duplicates in a transaction are dropped."""
    topic = run.topic()
    path = path_of(topic)
    with coordinator(run) as of, run.raw() as producer, taker(run, topic) as consumer:
        producer.open_producer(topic, producer_name="named")
        run.rest_status("deduplicate", "POST", f"{path}/deduplicationEnabled", True)
        shown_path = f"{path}/deduplicationEnabled"
        run.wait_until(lambda: run.http("GET", shown_path, ..., "application/json")[2] == b"true")
    with coordinator(run) as of, run.raw() as producer, taker(run, topic) as consumer:
        producer.open_producer(topic, producer_name="named")
        for name, action in (("aborted", ABORT), ("committed", COMMIT)):
            txn = of.begin()
            of.add(txn, topic, f"{name}: add")
            run.step(f"{name}: sent", send_in(producer, txn, [name.encode()] * 2, 10))
            run.step(f"{name}: sent again", send_in(producer, txn, [name.encode()], 10))
            of.end(txn, action, f"{name}: end")
            run.step(f"{name}: further", send_in(producer, None, [b"further"], 20 + action))
            consumer.collect(f"{name}: delivered")


@transaction_scenario
def transactions_seek(run: Run) -> None:
    """A seek while a transaction holds acknowledgements, and its end after that."""
    for name, action in (("commit", COMMIT), ("abort", ABORT)):
        topic = run.topic(name)
        with coordinator(run) as of, run.raw() as producer, taker(run, topic) as consumer:
            producer.open_producer(topic)
            producer.publish(1, 4)
            consumer.collect(f"{name}: delivered")
            txn = of.begin()
            of.add_subscription(txn, topic, label=f"{name}: add")
            consumer.acknowledge(f"{name}: held", txn, [consumer.id_of(1)])
            run.step(
                f"{name}: seek", outcome(consumer.raw.request(Type.SEEK, consumer_id=1, message_id=consumer.id_of(0)))
            )
        with taker(run, topic) as again:
            again.collect(f"{name}: from the first on")
            with coordinator(run) as of:
                of.end(txn, action, f"{name}: end")
            again.collect(f"{name}: after the end")
            record_stats(run, f"{name}: stats", topic)


@transaction_scenario
def transactions_failover(run: Run) -> None:
    """The active consumer of Failover leaves with a transaction open: what the next one gets, then and after the end."""
    for name, action in (("commit", COMMIT), ("abort", ABORT)):
        topic = run.topic(name)
        with (
            coordinator(run) as of,
            run.raw() as producer,
            taker(run, topic, "Failover", consumer_name="a", priority_level=0) as active,
            taker(run, topic, "Failover", consumer_name="b", priority_level=1) as standing_by,
        ):
            producer.open_producer(topic)
            producer.publish(1, 4)
            active.collect(f"{name}: a gets")
            standing_by.collect(f"{name}: b gets")
            txn = of.begin()
            of.add_subscription(txn, topic, label=f"{name}: add")
            active.acknowledge(f"{name}: held", txn, [active.id_of(1)])
            active.raw.request(Type.CLOSE_CONSUMER, consumer_id=1)
            standing_by.collect(f"{name}: the next one gets", AFTER_TAKE_OVER_S)
            of.end(txn, action, f"{name}: end")
            standing_by.collect(f"{name}: after the end")
            record_stats(run, f"{name}: stats", topic)


@transaction_scenario
def transactions_of_ended_ones(run: Run) -> None:
    """Messages and acknowledgements in the name of ended transactions, made-up ones, and of metadata that says something else."""
    topic = run.topic()
    with coordinator(run) as of, run.raw() as producer, taker(run, topic) as consumer:
        producer.open_producer(topic)
        run.step("outside", send_in(producer, None, [b"outside"]))
        consumer.collect("delivered")
        txn = of.begin()
        of.add(txn, topic)
        of.add_subscription(txn, topic)
        run.step("inside", send_in(producer, txn, [b"inside"], 1))
        of.end(txn, COMMIT)
        consumer.collect("committed")
        run.step("send in an ended one", send_in(producer, txn, [b"late"], 2)[0][0])
        consumer.acknowledge("acknowledge in an ended one", txn, [consumer.id_of(0)])


@transaction_scenario
def transactions_short_names(run: Run) -> None:
    """Participants whose topics the client does not name in full, as REST shows them."""
    full = run.topic("full")
    names = [run.topic("short").removeprefix("persistent://public/default/"), run.topic("m").partition("//")[2], full]
    with coordinator(run) as of, run.raw() as raw:
        txn = of.begin()
        for consumer_id, topic in enumerate(names):
            raw.request(Type.LOOKUP, topic=topic)
            raw.subscribe(topic, consumer_id, subscription="sub")
            of.add(txn, topic, f"add {consumer_id}")
            of.add_subscription(txn, topic, label=f"add subscription {consumer_id}")
        path = f"/admin/v3/transactions/transactionMetadata/{txn['txnid_most_bits']}/{txn['txnid_least_bits']}"
        found = json.loads(run.http("GET", path, ..., "application/json")[2])
        run.step("participants", [found["status"], found["producedPartitions"], found["ackedPartitions"]])
        of.end(txn, ABORT)

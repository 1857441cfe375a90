"""Transactions while topics and subscriptions come and go: unload, deletion, readers, batches, and who never took part."""

from tests.differential.harness import Run, transaction_scenario
from tests.differential.scenarios_operations import path_of
from tests.differential.scenarios_transactions import (
    ABORT,
    COMMIT,
    coordinator,
    last_id,
    outcome,
    record_stats,
    send_in,
    shown,
    taker,
)
from tests.support.raw_client import Type

from pybroker.wire import pulsar_api_pb2 as pb


@transaction_scenario
def transactions_unloaded(run: Run) -> None:
    """A topic that is loaded again with a transaction open: its messages, its acknowledgements, and those of ended ones."""
    for name, action in (("commit", COMMIT), ("abort", ABORT)):
        topic = run.topic(name)
        with coordinator(run) as of:
            with run.raw() as producer, taker(run, topic, "Shared") as consumer:
                producer.open_producer(topic)
                producer.publish(1, 3)
                consumer.collect(f"{name}: delivered")
                ended, txn = of.begin(), of.begin()
                for each in (ended, txn):
                    of.add(each, topic, f"{name}: add")
                    of.add_subscription(each, topic, label=f"{name}: add a subscription")
                run.step(f"{name}: sent", send_in(producer, ended, [b"ended"], 10))
                run.step(f"{name}: sent in the open one", send_in(producer, txn, [b"open"], 11))
                consumer.acknowledge(f"{name}: held by the open one", txn, [consumer.id_of(1)])
                of.end(ended, ABORT, f"{name}: one is aborted")
            run.rest_status(f"{name}: unload", "PUT", f"{path_of(topic)}/unload")
            with run.raw() as producer, taker(run, topic, "Shared") as consumer:
                consumer.collect(f"{name}: loaded again")
                producer.open_producer(topic)
                run.step(f"{name}: behind", send_in(producer, None, [b"behind"], 12))
                consumer.collect(f"{name}: held back")
                of.end(txn, action, f"{name}: end")
                consumer.collect(f"{name}: after the end")
                record_stats(run, f"{name}: stats", topic)


@transaction_scenario
def transactions_of_what_is_gone(run: Run) -> None:
    """Topics and subscriptions that take part and are deleted, or never were there: the end is answered all the same."""
    topic = run.topic()
    with coordinator(run) as of, run.raw() as producer:
        for name, action in (("commit", COMMIT), ("abort", ABORT)):
            txn = of.begin()
            of.add(txn, run.topic(f"none-{name}"), f"{name}: a topic that is not there")
            of.end(txn, action, f"{name}: end without it")
            status = run.http("GET", f"{path_of(run.topic(f'none-{name}'))}/stats", ..., "application/json")[0]
            run.step(f"{name}: it was not made", status)
        producer.open_producer(topic)
        producer.publish(1, 2)
        txn = of.begin()
        of.add_subscription(txn, topic, "never", "a subscription that is not there")
        of.end(txn, COMMIT, "commit without it")
        with taker(run, topic) as consumer:
            consumer.collect("delivered")
            txn = of.begin()
            of.add_subscription(txn, topic)
            consumer.acknowledge("held", txn, [consumer.id_of(0)])
        run.rest_status("delete the subscription", "DELETE", f"{path_of(topic)}/subscription/sub?force=true")
        of.end(txn, COMMIT, "commit without the subscription")
        txn = of.begin()
        of.add(txn, topic)
        run.step("sent", send_in(producer, txn, [b"inside"], 10))
        run.rest_status("delete the topic", "DELETE", f"{path_of(topic)}?force=true")
        of.end(txn, COMMIT, "commit without the topic")


@transaction_scenario
def transactions_without_taking_part(run: Run) -> None:
    """Messages and acknowledgements in a transaction that was never told of the topic: its end does not reach them."""
    topic = run.topic()
    with coordinator(run) as of, run.raw() as producer, taker(run, topic, "Shared") as consumer:
        producer.open_producer(topic)
        producer.publish(1, 2)
        consumer.collect("delivered")
        txn = of.begin()
        run.step("sent", send_in(producer, txn, [b"inside"], 10))
        consumer.acknowledge("held", txn, [consumer.id_of(0)])
        of.end(txn, COMMIT)
        consumer.collect("held back")
        record_stats(run, "stats", topic)


@transaction_scenario
def transactions_reader(run: Run) -> None:
    """A reader gets what is committed and nothing of what is open or aborted, from the beginning, too."""
    topic = run.topic()
    fields = {"durable": False, "start_message_id": pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)}
    with coordinator(run) as of, run.raw() as producer, taker(run, topic, subscription="reader", **fields) as reader:  # type: ignore[arg-type]
        producer.open_producer(topic)
        for base, action in ((10, ABORT), (20, COMMIT)):
            txn = of.begin()
            of.add(txn, topic)
            run.step("sent", send_in(producer, txn, [b"%d" % base, b"%d" % (base + 1)], base))
            reader.collect("open")
            last_id(run, reader.raw, "last while it is open")
            of.end(txn, action)
            reader.collect("ended")
            last_id(run, reader.raw, "last")
        txn = of.begin()
        of.add(txn, topic)
        reader.acknowledge("acknowledged in a transaction", txn, [reader.id_of(0)])
        with taker(run, topic, subscription="another", **fields) as again:  # type: ignore[arg-type]
            again.collect("from the beginning")
        of.end(txn, ABORT)


@transaction_scenario
def transactions_of_batches(run: Run) -> None:
    """Batches in transactions, and parts of batches that are held, committed and aborted."""
    topic = run.topic()
    with coordinator(run) as of, run.raw() as producer, taker(run, topic, "Shared") as consumer:
        producer.open_producer(topic)
        txn = of.begin()
        of.add(txn, topic)
        batch = [b"one", b"two", b"three"]
        producer.send_message(1, 0, batch=batch, metadata=dict(txn), **txn)  # type: ignore[arg-type]
        run.step("sent", outcome(producer.reply()))
        of.end(txn, COMMIT)
        consumer.collect("delivered")
        for name, action in (("abort", ABORT), ("commit", COMMIT)):
            txn = of.begin()
            of.add_subscription(txn, topic, label=f"{name}: add")
            consumer.acknowledge(f"{name}: the first message", txn, [consumer.id_of(0, [1, 2], 3)])
            record_stats(run, f"{name}: stats while it is open", topic)
            of.end(txn, action, f"{name}: end")
            run.step(f"{name}: after the end", shown(consumer.raw.replies()))
            record_stats(run, f"{name}: stats", topic)
        consumer.raw.request(Type.CLOSE_CONSUMER, consumer_id=1)
        with taker(run, topic, "Shared") as again:
            again.collect("what is left")


@transaction_scenario
def transactions_opened_oddly(run: Run) -> None:
    """Opening without connecting to the coordinator first, with no time at all; an end that does not say which."""
    with coordinator(run) as of:
        txn = of.begin()
        of.ask("add nothing", Type.ADD_PARTITION_TO_TXN, **txn)
        of.ask("add no subscription", Type.ADD_SUBSCRIPTION_TO_TXN, **txn)
        of.end(txn, COMMIT)
        first = of.begin()
        of.add(first, run.topic())
        of.end(first, ABORT, "abort")
        of.end(first, ABORT, "abort again")

"""The load cases. Each returns named figures in print order.

Every case uses a new topic, warms up before it measures, and waits for outstanding responses before it ends.
"""

import multiprocessing
import statistics
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

from benchmarks import frames, load, stuck_key
from benchmarks.brokers import Broker
from pybroker.wire import pulsar_api_pb2 as pb

Figures = dict[str, float | None]

WINDOW_MESSAGES = 1000
BLOCK_FRAMES = 128
LEAD_IN_S = 1.0
DRAIN_TIMEOUT_S = 60.0
PACED_WINDOW_MESSAGES = 100_000  # larger than the backlog of any stall, because the rate must not depend on receipts
SUBSCRIPTION = "load"
STUCK_KEY_ROUNDS = 3


@dataclass(frozen=True)
class Settings:
    measure_s: float = 8.0
    backlog_messages: int = 200_000
    paced_messages_per_s: int = 1000


class Meter:
    """The CPU time and memory that broker and client use from its creation to `figures`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._broker_cpu_s = broker.cpu_s()
        self._client_cpu_s = time.process_time()
        self._started_s = time.monotonic()

    def figures(self, messages: int, message_bytes: int) -> Figures:
        took_s = time.monotonic() - self._started_s
        cpu_s = self._broker.cpu_s()
        figures: Figures = {"msg_s": messages / took_s, "mb_s": messages * message_bytes / took_s / 1e6}
        if cpu_s is not None and self._broker_cpu_s is not None and messages:
            figures["broker_cpu_us"] = (cpu_s - self._broker_cpu_s) / messages * 1e6
        figures["rss_mb"] = self._broker.rss_mb()
        figures["client_cpu_us"] = (time.process_time() - self._client_cpu_s) / max(messages, 1) * 1e6
        return figures


def new_topic() -> str:
    return f"persistent://public/default/load-{uuid.uuid4().hex[:12]}"


def payload_of(size_bytes: int) -> bytes:
    """Return bytes that hardly compress and are equal in all runs."""
    return bytes((i * 167 + i // 251) & 0xFF for i in range(size_bytes))


def open_publisher(broker: Broker, topic: str, size_bytes: int, window: int, batch: int = 1) -> load.Publisher:
    link = load.Link(broker.service_url)
    name = link.open_producer(topic, producer_id=1)
    payload = payload_of(size_bytes)
    if batch == 1:
        block = frames.SendBlock(1, frames.message_tail(name, payload), min(BLOCK_FRAMES, window))
    else:
        block = frames.SendBlock(1, frames.batch_tail(name, payload, batch), 1, batch)
    return load.Publisher(link, block, max(1, window // batch))


def open_subscriber(
    broker: Broker, topic: str, sub_type: "pb.CommandSubscribe.SubType", consumers: int = 1, batch: int = 1
) -> load.Subscriber:
    link = load.Link(broker.service_url)
    for consumer_id in range(1, consumers + 1):
        link.subscribe(topic, SUBSCRIPTION, sub_type, consumer_id)
    return load.Subscriber(link, range(1, consumers + 1), batch)


def after(seconds: float) -> Callable[[], bool]:
    due_s = time.monotonic() + seconds
    return lambda: time.monotonic() >= due_s


def publish(broker: Broker, settings: Settings, size_bytes: int, batch: int = 1) -> Figures:
    """Measure one producer that publishes as fast as its window allows, without consumers."""
    publisher = open_publisher(broker, new_topic(), size_bytes, WINDOW_MESSAGES, batch)
    load.run([publisher], after(LEAD_IN_S), DRAIN_TIMEOUT_S)
    meter, before = Meter(broker), publisher.receipted_entries
    load.run([publisher], after(settings.measure_s), settings.measure_s + DRAIN_TIMEOUT_S)
    figures = meter.figures((publisher.receipted_entries - before) * batch, size_bytes)
    stop(publisher)
    publisher.link.close()
    return figures


def stop(publisher: load.Publisher) -> None:
    publisher.stopped = True
    load.run([publisher], publisher.finished, DRAIN_TIMEOUT_S)


def pubsub(broker: Broker, settings: Settings, sub_type: "pb.CommandSubscribe.SubType", consumers: int) -> Figures:
    """Measure one producer with consumers. A message counts when it arrives."""
    topic, size_bytes = new_topic(), 1024
    subscriber = open_subscriber(broker, topic, sub_type, consumers)
    publisher = open_publisher(broker, topic, size_bytes, WINDOW_MESSAGES)
    drivers: list[load.Driver] = [publisher, subscriber]
    load.run(drivers, after(LEAD_IN_S), DRAIN_TIMEOUT_S)
    meter, received, receipted = Meter(broker), subscriber.received, publisher.receipted_entries
    load.run(drivers, after(settings.measure_s), settings.measure_s + DRAIN_TIMEOUT_S)
    figures = meter.figures(subscriber.received - received, size_bytes)
    figures["published_s"] = (publisher.receipted_entries - receipted) / settings.measure_s
    stop(publisher)
    load.run(drivers, lambda: subscriber.received >= publisher.receipted_entries, DRAIN_TIMEOUT_S)
    subscriber.acknowledge_rest()
    publisher.link.close()
    subscriber.link.close()
    return figures


def sync_latency(broker: Broker, settings: Settings) -> Figures:
    """Measure the latency of single messages, each sent after the receipt of the previous one."""
    size_bytes = 1024
    publisher = open_publisher(broker, new_topic(), size_bytes, window=1)
    one_at_a_time(publisher, LEAD_IN_S)
    meter = Meter(broker)
    latencies_ms = one_at_a_time(publisher, settings.measure_s)
    figures = meter.figures(len(latencies_ms), size_bytes)
    publisher.link.close()
    return figures | percentiles(latencies_ms)


def one_at_a_time(publisher: load.Publisher, seconds: float) -> list[float]:
    latencies_ms: list[float] = []
    ended = after(seconds)
    while not ended():
        sent_s = time.perf_counter()
        publisher.limit_to(publisher.receipted_entries + 1)
        publisher.write()
        while not publisher.finished():
            publisher.wait_and_read(DRAIN_TIMEOUT_S)
        latencies_ms.append((time.perf_counter() - sent_s) * 1000)
    return latencies_ms


def paced(publisher: load.Publisher, seconds: float, interval_s: float) -> list[float]:
    """Send a message every `interval_s` seconds, independently of receipts. Return the milliseconds from each due time
    to the receipt, so that a stall counts in every message that it delays.
    """
    latencies_ms: list[float] = []
    count, base = int(seconds / interval_s), publisher.receipted_entries
    started_s = time.perf_counter()
    while len(latencies_ms) < count:
        elapsed_s = time.perf_counter() - started_s
        due = min(int(elapsed_s / interval_s) + 1, count)  # message i is due i intervals after the start
        publisher.limit_to(base + due)
        publisher.write()
        publisher.wait_and_read(max(due * interval_s - elapsed_s, 0.0) if due < count else DRAIN_TIMEOUT_S)
        received_s = time.perf_counter() - started_s
        while len(latencies_ms) < publisher.receipted_entries - base:
            latencies_ms.append((received_s - len(latencies_ms) * interval_s) * 1000)
    return latencies_ms


def percentiles(latencies_ms: list[float]) -> Figures:
    ordered = sorted(latencies_ms)
    return {
        "p50_ms": statistics.median(ordered),
        "p99_ms": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
        "max_ms": ordered[-1],
    }


def fill(broker: Broker, topic: str, messages: int, size_bytes: int = 1024, batch: int = 1) -> None:
    subscriber = open_subscriber_without_permits(broker, topic)
    subscriber.close()
    publisher = open_publisher(broker, topic, size_bytes, WINDOW_MESSAGES, batch)
    publisher.limit_to(messages // batch)
    load.run([publisher], publisher.finished, DRAIN_TIMEOUT_S + messages / 1000)
    publisher.link.close()


def open_subscriber_without_permits(broker: Broker, topic: str) -> load.Link:
    link = load.Link(broker.service_url)
    link.subscribe(topic, SUBSCRIPTION, pb.CommandSubscribe.Exclusive, consumer_id=1)
    return link


def catch_up(broker: Broker, settings: Settings, batch: int = 1) -> Figures:
    topic, messages = new_topic(), settings.backlog_messages // batch * batch
    fill(broker, topic, messages, batch=batch)
    meter = Meter(broker)
    subscriber = open_subscriber(broker, topic, pb.CommandSubscribe.Exclusive, batch=batch)
    load.run([subscriber], lambda: subscriber.received >= messages, DRAIN_TIMEOUT_S + messages / 1000)
    figures = meter.figures(messages, 1024)
    subscriber.acknowledge_rest()
    subscriber.link.close()
    return figures


def latency_under_flood(broker: Broker, settings: Settings) -> Figures:
    """Measure a paced producer's latency while another process floods one topic and reads the backlog of another."""
    topic = new_topic()
    fill(broker, topic, settings.backlog_messages)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    flood = context.Process(target=flood_and_catch_up, args=(broker, topic, settings, theirs), daemon=True)
    flood.start()
    publisher = open_publisher(broker, new_topic(), 1024, window=PACED_WINDOW_MESSAGES)
    if not ours.poll(DRAIN_TIMEOUT_S) or ours.recv() != "running":
        raise load.LoadError("the flood did not start")
    interval_s = 1 / settings.paced_messages_per_s
    paced(publisher, LEAD_IN_S, interval_s)
    meter = Meter(broker)
    latencies_ms = paced(publisher, settings.measure_s, interval_s)
    figures = meter.figures(len(latencies_ms), 1024)
    ours.send("stop")
    flood_rate, catch_up_rate = ours.recv() if ours.poll(DRAIN_TIMEOUT_S) else (None, None)
    flood.join(DRAIN_TIMEOUT_S)
    publisher.link.close()
    for meaningless in ("broker_cpu_us", "mb_s", "client_cpu_us"):  # these would include the flood
        figures.pop(meaningless, None)
    return figures | percentiles(latencies_ms) | {"flood_s": flood_rate, "catch_up_s": catch_up_rate}


def flood_and_catch_up(broker: Broker, backlog_topic: str, settings: Settings, pipe: Connection) -> None:
    publisher = open_publisher(broker, new_topic(), 1024, WINDOW_MESSAGES)
    subscriber = open_subscriber(broker, backlog_topic, pb.CommandSubscribe.Exclusive)
    started_s, backlog_done_s = time.monotonic(), 0.0
    pipe.send("running")

    def told_to_stop() -> bool:
        nonlocal backlog_done_s
        if not backlog_done_s and subscriber.received >= settings.backlog_messages:
            backlog_done_s = time.monotonic()
        return pipe.poll()

    load.run([publisher, subscriber], told_to_stop, settings.measure_s + 2 * DRAIN_TIMEOUT_S)
    ended_s = time.monotonic()
    catch_up_s = (backlog_done_s or ended_s) - started_s
    pipe.send((publisher.receipted_entries / (ended_s - started_s), subscriber.received / catch_up_s))
    stop(publisher)
    publisher.link.close()
    subscriber.link.close()


def one_stuck_key(broker: Broker, settings: Settings) -> Figures:
    latencies_ms: dict[bool, list[float]] = {False: [], True: []}
    for is_stuck in (False, True) * STUCK_KEY_ROUNDS:  # alternating, so that other load on the machine affects both
        watcher = stuck_key.run(broker, new_topic(), settings.measure_s / STUCK_KEY_ROUNDS, is_stuck)
        latencies_ms[is_stuck] += watcher.latencies_ms
    return stuck_key.figures(undisturbed=latencies_ms[False], disturbed=latencies_ms[True])


CASES: dict[str, Callable[[Broker, Settings], Figures]] = {
    "publish_1k": lambda broker, settings: publish(broker, settings, 1024),
    "publish_100": lambda broker, settings: publish(broker, settings, 100),
    "publish_1k_batched": lambda broker, settings: publish(broker, settings, 1024, batch=100),
    "pubsub_1k": lambda broker, settings: pubsub(broker, settings, pb.CommandSubscribe.Exclusive, 1),
    "pubsub_shared_1k": lambda broker, settings: pubsub(broker, settings, pb.CommandSubscribe.Shared, 4),
    "sync_latency": sync_latency,
    "latency_under_flood": latency_under_flood,
    "stuck_key": one_stuck_key,
    "catch_up": catch_up,
    "catch_up_batched": lambda broker, settings: catch_up(broker, settings, batch=100),
}

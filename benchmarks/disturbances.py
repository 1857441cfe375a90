"""Loads (disturbances) that one client puts on a shared broker, each in its own process; used by `fairness`.

A disturbance is prepared once for each broker. It then runs in windows, until its pipe receives a message or its work
is done, and returns its throughput: megabytes or connections per second, or the size of a page.
"""

import gzip
import itertools
import json
import os
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from benchmarks import load
from benchmarks.brokers import Broker
from benchmarks.cases import open_publisher, payload_of
from benchmarks.stuck_key import KeyedPublisher
from pybroker.wire import pulsar_api_pb2 as pb

FLOOD_WINDOW_MESSAGES = 1000
LARGE_BYTES = 64 * 1024
BACKLOG_BATCH = 50
COMPACTED_KEYS = 20_000
COMPACTED_MESSAGES = 200_000
TOPICS_OF_A_CONNECTION = 1000
CONNECTIONS = 1000
CONNECTED_TOPICS = 100
PRODUCERS = 100
PRODUCER_WINDOW_MESSAGES = 10
TIMEOUT_S = 240.0
LESS_URGENT = 5
"""Niceness, so that the load takes no processor time from the broker and the measured clients, as on another machine.
"""


@dataclass(frozen=True)
class Sizes:
    backlog_mb: int
    topics: int


@dataclass(frozen=True)
class Preparation:
    """Setup for a number of windows. `held` are connections to keep open."""

    broker: Broker
    sizes: Sizes
    windows: int
    held: list[load.Link] = field(default_factory=list)


@dataclass(frozen=True)
class Window:
    broker: Broker
    sizes: Sizes
    number: int
    pipe: Connection


@dataclass(frozen=True)
class Disturbance:
    """A kind of load. `run` is called in a separate process and returns its throughput."""

    unit: str
    prepare: Callable[[Preparation], None] | None
    run: Callable[[Window], float]
    ends_by_itself: bool = False


def flood(window: Window, size_bytes: int, batch: int) -> float:
    """Run one producer as fast as its window allows. Return megabytes per second."""
    topic = f"persistent://public/default/flood-{os.getpid()}"
    publisher = open_publisher(window.broker, topic, size_bytes, FLOOD_WINDOW_MESSAGES, batch)
    started_s = time.monotonic()
    load.run([publisher], window.pipe.poll, TIMEOUT_S)
    took_s = time.monotonic() - started_s
    publisher.link.close()
    return publisher.receipted_entries * batch * size_bytes / took_s / 1e6


def fill_backlog(prepared: Preparation) -> None:
    link = load.Link(prepared.broker.service_url)
    link.subscribe(_backlog_topic(), "keeps", pb.CommandSubscribe.Exclusive, 1)
    link.close()
    publisher = open_publisher(prepared.broker, _backlog_topic(), 1024, FLOOD_WINDOW_MESSAGES, BACKLOG_BATCH)
    publisher.limit_to(prepared.sizes.backlog_mb * 1024 // BACKLOG_BATCH)
    load.run([publisher], publisher.finished, TIMEOUT_S)
    publisher.link.close()


def catch_up(window: Window) -> float:
    """Read the backlog by one subscription after the other. Return megabytes per second."""
    messages = window.sizes.backlog_mb * 1024 // BACKLOG_BATCH * BACKLOG_BATCH
    started_s, received = time.monotonic(), 0
    while not window.pipe.poll():
        link = load.Link(window.broker.service_url)
        link.subscribe(_backlog_topic(), f"s-{window.number}-{received}", pb.CommandSubscribe.Exclusive, 1)
        subscriber = load.Subscriber(link, [1], BACKLOG_BATCH)

        def is_over(subscriber: load.Subscriber = subscriber) -> bool:
            return subscriber.received >= messages or window.pipe.poll()

        load.run([subscriber], is_over, TIMEOUT_S)
        link.close()
        received += subscriber.received
    return received * 1024 / (time.monotonic() - started_s) / 1e6


def load_topics(prepared: Preparation) -> None:
    for first in range(0, prepared.sizes.topics, TOPICS_OF_A_CONNECTION):
        link = load.Link(prepared.broker.service_url)
        prepared.held.append(link)
        for number in range(first, min(first + TOPICS_OF_A_CONNECTION, prepared.sizes.topics)):
            link.open_producer(f"persistent://public/default/loaded-{number}", number + 1)


def scrape(window: Window) -> float:
    """Request the metrics page every second. Return its size in megabytes."""
    started_s, size = time.monotonic(), 0
    for number in itertools.count(1):
        request = urllib.request.Request(f"{window.broker.http_url}/metrics", headers={"Accept-Encoding": "gzip"})
        with urllib.request.urlopen(request) as answer:
            page = answer.read()
        size = len(gzip.decompress(page) if answer.headers.get("Content-Encoding") == "gzip" else page)
        if window.pipe.poll(max(0.0, started_s + number - time.monotonic())):
            break
    return size / 1e6


def fill_compacted(prepared: Preparation) -> None:
    """Create a topic for each window, with ten messages for each key."""
    for number in range(prepared.windows):
        link = load.Link(prepared.broker.service_url)
        publisher = KeyedPublisher(link, _compacted_topic(number), payload_of(1024))
        for index in range(COMPACTED_MESSAGES):
            publisher.send(index % COMPACTED_KEYS, 0.0)
            if index % 100 == 0:
                publisher.write()
                publisher.wait_and_read(0.0)
        load.run([publisher], lambda: publisher.receipted == COMPACTED_MESSAGES, TIMEOUT_S)  # noqa: B023  it ends here
        prepared.held.append(link)  # otherwise the inactive topic would be deleted


def compact(window: Window) -> float:
    """Run one compaction. Return megabytes of messages per second."""
    url = f"{window.broker.http_url}/admin/v2/{_compacted_topic(window.number).replace('://', '/')}/compaction"
    started_s = time.monotonic()
    urllib.request.urlopen(urllib.request.Request(url, method="PUT")).close()
    while True:
        with urllib.request.urlopen(url) as answer:
            status = json.loads(answer.read())["status"]
        if status != "RUNNING":
            break
        time.sleep(0.05)
    if status != "SUCCESS":
        raise load.LoadError(f"the compaction ended with {status}")
    return COMPACTED_MESSAGES * 1024 / (time.monotonic() - started_s) / 1e6


def connect(window: Window) -> float:
    """Open 1,000 connections at once with a producer each, and close them, again and again. Return connections per
    second.
    """
    topics = [f"persistent://public/default/connected-{number}" for number in range(CONNECTED_TOPICS)]
    setup = load.Link(window.broker.service_url)
    for topic in topics:
        setup.look_up(topic)
    started_s, opened = time.monotonic(), 0
    while not window.pipe.poll():
        links = [load.Link(window.broker.service_url, connects=False) for _ in range(CONNECTIONS)]
        for number, link in enumerate(links):
            link.send_producer(topics[number % CONNECTED_TOPICS], 1)
        for link in links:
            link.await_producer()
        for link in links:
            link.close()
        opened += len(links)
    setup.close()
    return opened / (time.monotonic() - started_s)


def produce_many(window: Window) -> float:
    """Run 100 producers on a connection and a topic each, as fast as their windows allow. Return megabytes per second."""
    publishers = [
        open_publisher(window.broker, f"persistent://public/default/many-{number}", 1024, PRODUCER_WINDOW_MESSAGES)
        for number in range(PRODUCERS)
    ]
    started_s = time.monotonic()
    load.run(list(publishers), window.pipe.poll, TIMEOUT_S)
    took_s = time.monotonic() - started_s
    for publisher in publishers:
        publisher.link.close()
    return sum(publisher.receipted_entries for publisher in publishers) * 1024 / took_s / 1e6


def _backlog_topic() -> str:
    return "persistent://public/default/backlog"


def _compacted_topic(window: int) -> str:
    return f"persistent://public/default/compacted-{window}"


DISTURBANCES = {
    "flood_1k_batched": Disturbance("MB/s", None, lambda window: flood(window, 1024, 50)),
    "flood_64k": Disturbance("MB/s", None, lambda window: flood(window, LARGE_BYTES, 1)),
    "catch_up": Disturbance("MB/s", fill_backlog, catch_up),
    "scrape": Disturbance("MB a page", load_topics, scrape),
    "compaction": Disturbance("MB/s", fill_compacted, compact, ends_by_itself=True),
    "connections": Disturbance("a second", None, connect),
    "producers": Disturbance("MB/s", None, produce_many),
}


def in_process(name: str, window: Window) -> None:
    os.nice(LESS_URGENT)
    window.pipe.send("running")
    window.pipe.send(DISTURBANCES[name].run(window))

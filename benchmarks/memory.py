"""Maximum memory of a broker when many subscriptions read their backlogs at once, and their throughput. Linux only.

`python -m benchmarks.memory --topics 8 --subscriptions 6 --backlog-mb 2048`. A backlog is published, and the broker is
restarted. Then every subscription starts to read at the same moment on its own connection. Optional load in parallel:
readers of the same backlog, producers, consumers that do not read from their sockets, and unread scrapes of `/metrics`.
Prints maximum resident memory (VmHWM), resident memory before reading, seconds, and megabytes per second.
"""

import argparse
import contextlib
import json
import pathlib
import re
import resource
import socket
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from benchmarks import frames, load
from benchmarks.brokers import Broker, own_pybroker
from benchmarks.cases import WINDOW_MESSAGES, open_publisher
from pybroker.wire import pulsar_api_pb2 as pb

STALLED_PERMITS = 100_000
TIMEOUT_S = 900.0


class Stalled:
    """A consumer with many permits that never reads from its socket."""

    def __init__(self, broker: Broker, topic: str, subscription: str) -> None:
        self.link = load.Link(broker.service_url)
        self.link.subscribe(topic, subscription, pb.CommandSubscribe.Shared, 1)
        self.link.socket.sendall(frames.encode_flow(1, STALLED_PERMITS))


def topic_name(number: int) -> str:
    return f"persistent://public/default/memory-{number}"


def highest_mb(pid: int) -> int:
    """Return the maximum resident memory of a process (VmHWM) in MB."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+)", status)
    assert found is not None
    return int(found.group(1)) // 1024


def fill(broker: Broker, asked: argparse.Namespace) -> int:
    """Publish the backlog of all subscriptions. Return the number of messages of each topic."""
    messages: int = asked.backlog_mb * (1 << 20) // asked.topics // asked.message_bytes // asked.batch * asked.batch
    stalled = [f"stalled-{number}" for number in range(asked.stalled)]
    for topic in map(topic_name, range(asked.topics)):
        link = load.Link(broker.service_url)
        names = [f"s{number}" for number in range(asked.subscriptions)] + stalled
        for consumer_id, name in enumerate(names, 1):
            link.subscribe(topic, name, pb.CommandSubscribe.Shared, consumer_id)
        link.close()
        publisher = open_publisher(broker, topic, asked.message_bytes, WINDOW_MESSAGES, asked.batch)
        publisher.limit_to(messages // asked.batch)
        load.run([publisher], publisher.finished, TIMEOUT_S)
        publisher.link.close()
    return messages


def scrape(broker: Broker) -> socket.socket:
    assert broker.http_url is not None
    url = urlsplit(broker.http_url)
    asking = socket.socket()
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    asking.connect((url.hostname, url.port))
    asking.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return asking


def catch_up(broker: Broker, asked: argparse.Namespace, messages: int) -> dict[str, float]:
    """Let all subscriptions read their backlogs. Return the figures."""
    before_mb = broker.rss_mb() or 0
    subscribers = []
    for topic in map(topic_name, range(asked.topics)):
        for number in range(asked.subscriptions):
            link = load.Link(broker.service_url)
            link.subscribe(topic, f"s{number}", pb.CommandSubscribe.Shared, 1)
            subscribers.append(load.Subscriber(link, [1], asked.batch))
    for number in range(asked.readers):
        link = load.Link(broker.service_url)
        topic = topic_name(number % asked.topics)
        link.subscribe(topic, f"reader-{number}", pb.CommandSubscribe.Exclusive, 1, is_durable=False)
        subscribers.append(load.Subscriber(link, [1], asked.batch))
    stalled = [
        Stalled(broker, topic_name(number % asked.topics), f"stalled-{number}") for number in range(asked.stalled)
    ]
    publishers = [
        open_publisher(
            broker, f"persistent://public/default/beside-{number}", asked.message_bytes, WINDOW_MESSAGES, asked.batch
        )
        for number in range(asked.producers)
    ]
    scrapes = [scrape(broker) for _ in range(asked.unread_scrapes)]
    started_s, cpu_s = time.monotonic(), broker.cpu_s() or 0.0
    load.run(
        [*subscribers, *publishers],
        lambda: all(subscriber.received >= messages for subscriber in subscribers),
        TIMEOUT_S,
    )
    took_s = time.monotonic() - started_s
    delivered_mb = len(subscribers) * messages * asked.message_bytes / (1 << 20)
    links = [each.link for each in (*subscribers, *publishers)] + [each.link for each in stalled]
    for link in links:
        link.close()
    for each in scrapes:
        each.close()
    return {
        "highest_mb": highest_mb(broker.pid or 0),
        "before_mb": before_mb,
        "seconds": round(took_s, 1),
        "mb_s": round(delivered_mb / took_s),
        "broker_cpu_s": round((broker.cpu_s() or 0.0) - cpu_s, 1),
        "published_beside_mb": sum(p.receipted_entries for p in publishers) * asked.batch * asked.message_bytes >> 20,
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=8)
    parser.add_argument("--subscriptions", type=int, default=6, help="of each topic")
    parser.add_argument("--backlog-mb", type=int, default=2048, help="of all topics together")
    parser.add_argument("--message-bytes", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=50, help="messages of an entry")
    parser.add_argument("--readers", type=int, default=0, help="of everything, beside the subscriptions")
    parser.add_argument("--producers", type=int, default=0, help="that publish meanwhile, as fast as they may")
    parser.add_argument("--stalled", type=int, default=0, help="consumers that take nothing of what they are sent")
    parser.add_argument("--unread-scrapes", type=int, default=0)
    parser.add_argument("--pybroker", metavar="PATH", help="the command of another installation")
    parser.add_argument("--set-while-filling", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    asked = parse(arguments)
    settings = dict(each.split("=", 1) for each in asked.set)
    with contextlib.suppress(ValueError):  # as high as allowed
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
    filling = dict(each.split("=", 1) for each in asked.set_while_filling)
    with own_pybroker(
        journal_sync_data=False, settings=filling, command=[asked.pybroker] if asked.pybroker else None
    ) as process:
        broker = process.start()
        started_s = time.monotonic()
        messages = fill(broker, asked)
        filled_mb_s = asked.backlog_mb / (time.monotonic() - started_s)
        filled_mb = highest_mb(process.pid)
        process.stop()
        process.settings.update(settings)
        figures = catch_up(process.start(), asked, messages)
        print(
            json.dumps(
                {**figures, "highest_while_filling_mb": filled_mb, "filled_mb_s": round(filled_mb_s), **settings}
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()

"""Restart cases: fill a pybroker, kill it with SIGKILL, start it again, and measure the duration.

They run only if named, because each writes a gigabyte or millions of acknowledgements. A case fails if data is missing.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from benchmarks import brokers, cases, holes, load
from benchmarks.brokers import Broker, PybrokerProcess
from benchmarks.cases import Figures
from pybroker.wire import pulsar_api_pb2 as pb

# Delays checkpoints until the journal is full: the maximum that a kill during a checkpoint can leave.
FULL_JOURNAL = {"checkpointMaxBytes": str(1 << 30), "checkpointMaxEntries": str(1 << 30)}
FULL_JOURNAL_ENTRIES = 235_000


@dataclass(frozen=True)
class Settings:
    backlog_entries: int = 1_000_000
    is_synced: bool = True
    pybroker: Mapping[str, str] | None = None


def own(settings: Settings, more: Mapping[str, str]) -> AbstractContextManager[PybrokerProcess]:
    return brokers.own_pybroker(settings.is_synced, {**(settings.pybroker or {}), **more})


def recovery(settings: Settings, entries: int, more: Mapping[str, str]) -> Figures:
    """Restart a broker with a backlog of 1 KiB entries. Measure the time from the start until the broker is ready, and
    until the first entry arrives.
    """
    with own(settings, more) as process:
        topic = cases.new_topic()
        broker = process.start()
        cases.fill(broker, topic, entries)
        figures: Figures = {"entries": entries, "rss_before_mb": broker.rss_mb()}
        process.kill()
        started_s = time.monotonic()
        broker = process.start()
        figures["healthy_s"] = process.starting_s
        witness = load.Witness(open_backlog(broker, topic))
        load.run([witness], lambda: witness.received > 0, holes.LOAD_TIMEOUT_S)
        figures["first_entry_s"] = time.monotonic() - started_s
        figures["rss_mb"] = broker.rss_mb()
        load.run([witness], lambda: witness.received >= entries, holes.LOAD_TIMEOUT_S)
        witness.note_rest()
        witness.link.close()
        if witness.positions != sorted(set(witness.positions)) or len(witness.positions) != entries:
            raise load.LoadError(
                f"{entries} entries in order were expected, and {len(witness.positions)} were received"
            )
    return figures


def open_backlog(broker: Broker, topic: str) -> load.Link:
    link = load.Link(broker.service_url)
    link.subscribe(topic, cases.SUBSCRIPTION, pb.CommandSubscribe.Exclusive, consumer_id=1)
    return link


def many_holes(settings: Settings, subscriptions: int, hole_count: int) -> Figures:
    """Restart a broker whose subscriptions have acknowledged every other entry. Measure memory, the restart, and the
    time until the last subscription receives its first entry.
    """
    with own(settings, {}) as process:
        topic = cases.new_topic()
        broker = process.start()
        figures: Figures = {"cursors": subscriptions, "holes": hole_count, "rss_idle_mb": broker.rss_mb()}
        started_s = time.monotonic()
        holes.make(broker, topic, subscriptions, hole_count)
        figures["made_s"] = time.monotonic() - started_s
        figures["rss_before_mb"] = broker.rss_mb()
        process.kill()
        started_s = time.monotonic()
        broker = process.start()
        figures["healthy_s"] = process.starting_s
        holes.first_entry(broker, topic, subscriptions - 1)
        figures["first_entry_s"] = time.monotonic() - started_s
        figures["rss_mb"] = broker.rss_mb()
        for number in range(subscriptions):
            holes.check(broker, topic, number, hole_count)
    return figures


CASES: dict[str, Callable[[Settings], Figures]] = {
    "recovery": lambda settings: recovery(settings, settings.backlog_entries, {}),
    "recovery_full_journal": lambda settings: recovery(settings, FULL_JOURNAL_ENTRIES, FULL_JOURNAL),
    "holes_100_cursors": lambda settings: many_holes(settings, 100, 10_000),
    "holes_1_cursor": lambda settings: many_holes(settings, 1, 1_000_000),
}

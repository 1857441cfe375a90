"""What many modules here begin with. A module that wants another broker has a fixture of its own under the same name."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.async_client import AsyncClient, binary_port
from tests.support.bookkeeper_cluster import BookKeeperCluster, bookkeeper_cluster
from tests.support.broker_process import BrokerProcess
from tests.support.broker_stores import InMemory, OnModelBookies, OnRealBookies, StoreChoice, choice_of_stores
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.raw_client import RawClient, connected
from tests.unit.admin.fake_broker import Served, served

from pybroker.broker.topic.topic import Topic

LEDGERS = os.environ.get("TEST_LEDGERS", "")
"""Stores of all brokers in the test's process: memory, model or bookies. Empty: memory, and the model too for some modules."""
TOUCH_LEDGERS = {
    "test_ack_holes",
    "test_acknowledgements",
    "test_compacted_reading",
    "test_deduplication",
    "test_delayed_delivery",
    "test_dispatcher_life",
    "test_http_messages",
    "test_http_subscriptions",
    "test_http_topic_operations",
    "test_inactive_topics",
    "test_internal_producer",
    "test_maintenance",
    "test_message_actions",
    "test_pending_acks",
    "test_rest_produce",
    "test_snapshots",
    "test_subscription_life",
    "test_subscriptions_at_once",
    "test_transaction_buffer",
    "test_transactions",
    "test_unacked_routes",
}
"""Modules that run on both stores. `make test-cluster` runs all modules on real bookies."""
ONLY_IN_MEMORY = {
    # The test fills the disk.
    "test_reconnections_on_full_disk_log_each_event_a_bounded_number_of_times",
    "test_debug_level_logs_each_reconnection",
    # The test holds the completions of the memory store.
    "test_what_a_failed_write_lost_is_stored_when_it_is_sent_again",
    # With ledgers on BookKeeper, the topic __change_events is loaded beside the topics of the test.
    "test_an_unloaded_topic_tells_its_clients_and_comes_back_as_it_was",
    "test_a_topic_that_is_not_loaded_is_not_loaded_to_unload_it",
    "test_partitions_are_unloaded_trimmed_truncated_and_terminated_together",
    "test_the_age_of_the_oldest_message_is_in_stats_and_metrics_and_costs_no_read_while_it_stays_the_oldest",
    # Transaction ids begin at 2^62 on BookKeeper.
    "test_ids_of_a_coordinator_rise",
    "test_the_low_water_mark_is_below_the_oldest_open_transaction",
    "test_over_the_limit_new_ones_wait_in_the_order_in_which_they_came",
    # Two topics are loaded at once, so the order in which they are ready is that of the bookies' answers.
    "test_topics_above_the_limit_are_loaded_in_order_of_arrival",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    is_chosen = metafunc.module.__name__.rpartition(".")[2] in TOUCH_LEDGERS
    if not LEDGERS and is_chosen and metafunc.function.__name__ not in ONLY_IN_MEMORY:
        metafunc.parametrize("ledger_stores", ["memory", "model"], indirect=True)


@pytest.fixture(scope="session")
def cluster() -> Iterator[BookKeeperCluster]:
    with bookkeeper_cluster(3) as started:
        yield started


@pytest.fixture(autouse=True)
def ledger_stores(request: pytest.FixtureRequest) -> Iterator[StoreChoice]:
    """The stores of brokers in the test's process."""
    kind = "memory" if request.function.__name__ in ONLY_IN_MEMORY else getattr(request, "param", LEDGERS)
    choice: StoreChoice
    if kind == "bookies":
        choice = OnRealBookies(request.getfixturevalue("cluster").zookeeper.address)
    else:
        choice = OnModelBookies() if kind == "model" else InMemory()
    with choice_of_stores(choice):
        yield choice


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    """A broker in the test's process."""
    async with memory_broker() as running:
        yield running


@pytest.fixture
async def topic(broker: MemoryBroker) -> Topic:
    """A topic of it."""
    return await broker.topic("persistent://public/default/t")


@pytest.fixture
async def clients(broker: MemoryBroker) -> AsyncIterator[list[AsyncClient]]:
    """Connections to it."""
    async with binary_port(broker) as port:
        yield [await port.connect() for _ in range(5)]


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    """A connection to a module's own broker, which is a process."""
    with connected(broker) as found:
        yield found


@pytest.fixture
async def http() -> AsyncIterator[Served]:
    """Only the HTTP server, on stores in memory."""
    async with served() as running:
        yield running


@contextmanager
def running(directory: Path, **settings: Any) -> Iterator[BrokerProcess]:
    """A broker in a process with these settings, in which nothing may go wrong."""
    with BrokerProcess(directory, {key: str(value) for key, value in settings.items()}).running_well() as process:
        yield process

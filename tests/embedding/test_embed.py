"""A broker inside of a process: on its loop or on a thread, several at once, and nothing of it left afterwards."""

import asyncio
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import prometheus_client
import pulsar
import pytest
from tests.embedding.conftest import Connect

import pybroker
from pybroker.broker_process import StartError
from pybroker.config import ConfigError
from pybroker.embedding import BrokerThread, embed, embed_in_thread
from pybroker.embedding.embedded_broker import NotRunning

# As Windows has it, and where nothing was installed that only helps.
BLOCKED = """
import sys, signal, os
for name in ("fcntl", "resource", "uvloop"):
    sys.modules[name] = None
for name in [each for each in dir(signal) if each in ("SIGALRM", "setitimer", "siginterrupt", "ITIMER_REAL")]:
    delattr(signal, name)
for name in [each for each in dir(os) if each.startswith("eventfd") or each.startswith("EFD_")]:
    delattr(os, name)
"""
ROUND_TRIP = """
import pybroker, pulsar
with pybroker.embed_in_thread({directory}) as broker:
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe("t", "s")
    client.create_producer("t").send(b"here")
    print(consumer.receive(30_000).data().decode())
    client.close()
"""


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def round_trip(client: pulsar.Client, topic: str = "t") -> bytes:
    consumer = client.subscribe(topic, "round trip", initial_position=pulsar.InitialPosition.Latest)
    producer = client.create_producer(topic)
    producer.send(b"there and back")
    data: bytes = consumer.receive(30_000).data()
    producer.close()
    consumer.close()
    return data


def http_status(url: str) -> int:
    with urllib.request.urlopen(f"{url}/admin/v2/clusters", timeout=10) as answer:
        return int(answer.status)


async def test_a_broker_serves_clients_on_the_loop_of_who_embeds_it(connect: Connect) -> None:
    async with pybroker.embed() as broker:
        client = connect(broker.service_url)
        assert await asyncio.to_thread(round_trip, client) == b"there and back"
        assert await asyncio.to_thread(http_status, broker.admin_url) == 200
        await asyncio.to_thread(client.close)


def test_a_broker_on_a_thread_serves_code_without_a_loop(broker: BrokerThread, client: pulsar.Client) -> None:
    assert round_trip(client) == b"there and back"
    assert http_status(broker.admin_url) == 200


def test_two_brokers_in_one_process_know_nothing_of_each_other(broker: BrokerThread, connect: Connect) -> None:
    with embed_in_thread() as other:
        assert other.service_url != broker.service_url
        one, two = connect(broker.service_url), connect(other.service_url)
        consumer = one.subscribe("same", "s")
        two.create_producer("same").send(b"for the other one")
        with pytest.raises(pulsar.Timeout):
            consumer.receive(100)
        other.clock.advance(hours=1)
        assert other.clock.now_ms() - broker.clock.now_ms() > 3_500_000


def test_brokers_that_come_and_go_leave_process_and_interpreter_as_they_were(connect: Connect) -> None:
    def state() -> object:
        signals = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)]
        handlers = (logging.getLogger("pybroker").handlers[:], logging.getLogger().handlers[:], logging.raiseExceptions)
        collector = (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.callbacks[:])
        registry = sorted(prometheus_client.REGISTRY._names_to_collectors)
        return signals, handlers, collector, registry, sys.getswitchinterval()

    before, threads = state(), threading.active_count()
    for _ in range(2):
        with embed_in_thread() as broker:
            client = connect(broker.service_url)
            assert round_trip(client) == b"there and back"
            client.close()
            assert state() == before
    assert state() == before
    assert threading.active_count() == threads


def test_what_is_stored_in_a_directory_is_there_next_time(tmp_path: Path, connect: Connect) -> None:
    with embed_in_thread(tmp_path / "data") as broker:
        client = connect(broker.service_url)
        client.subscribe("kept", "s").close()
        client.create_producer("kept").send(b"kept")
        client.close()
    with embed_in_thread(tmp_path / "data") as broker:
        client = connect(broker.service_url)
        assert client.subscribe("kept", "s").receive(30_000).data() == b"kept"
        client.close()


@pytest.mark.parametrize("is_local", [False, True])
def test_what_was_receipted_outlives_a_crash(is_local: bool, tmp_path: Path, connect: Connect) -> None:
    with embed_in_thread(tmp_path / "data" if is_local else None) as broker:
        client = connect(broker.service_url)
        consumer = client.subscribe("t", "s")
        producer = client.create_producer("t")
        for index in range(10):
            producer.send(b"%d" % index)
        broker.crash()
        assert not broker.is_running
        broker.restart()
        producer.send(b"10")
        received = [consumer.receive(30_000).data() for _ in range(11)]
        while b"10" not in received:
            received.append(consumer.receive(30_000).data())
        assert set(received) == {b"%d" % index for index in range(11)}
        client.close()


def test_after_a_reset_nothing_is_left_and_clients_find_the_broker_where_it_was(
    broker: BrokerThread, client: pulsar.Client
) -> None:
    consumer = client.subscribe("t", "s")
    producer = client.create_producer("t")
    producer.send(b"before")
    broker.clock.advance(days=1)
    service_url = broker.service_url
    broker.reset()
    assert broker.service_url == service_url
    assert abs(broker.clock.now().timestamp() - time.time()) < 3600
    consumer.close()
    producer.close()
    with pytest.raises(pulsar.Timeout):
        client.create_reader("t", pulsar.MessageId.earliest).read_next(100)
    assert round_trip(client, "another") == b"there and back"


def test_a_reset_deletes_what_is_the_brokers_and_nothing_else_in_its_directory(
    tmp_path: Path, connect: Connect
) -> None:
    with embed_in_thread(tmp_path) as broker:
        (tmp_path / "thesis.txt").write_text("mine")
        client = connect(broker.service_url)
        client.subscribe("t", "s").close()
        client.create_producer("t").send(b"x")
        client.close()
        broker.reset()
        with pytest.raises(pulsar.Timeout):
            connect(broker.service_url).create_reader("t", pulsar.MessageId.earliest).read_next(100)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_time_goes_on_while_clients_publish_all_the_time(broker: BrokerThread, client: pulsar.Client) -> None:
    consumer = client.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer("t", block_if_queue_full=True)
    ends = threading.Event()

    def publish() -> None:
        while not ends.is_set():
            producer.send_async(b"x", lambda result, message_id: None)

    publishing = threading.Thread(target=publish)
    publishing.start()
    try:
        for _ in range(3):
            broker.clock.advance(hours=1)
            consumer.receive(30_000)
    finally:
        ends.set()
        publishing.join()


def test_an_exception_in_the_body_ends_the_broker_and_comes_through() -> None:
    with pytest.raises(LookupError, match="mine"), embed_in_thread() as broker:
        raise LookupError("mine")
    with pytest.raises(NotRunning):
        broker.clock.advance(seconds=1)
    broker.close()


async def test_an_embedded_broker_ends_while_clients_publish(connect: Connect) -> None:
    begun, ends = threading.Barrier(3), threading.Event()

    def publish(url: str) -> None:
        producer = connect(url).create_producer("t", send_timeout_millis=1000, block_if_queue_full=True)
        begun.wait(20)
        while not ends.is_set():
            producer.send_async(b"x" * 100, lambda result, message_id: None)

    async with embed() as broker:
        publishing = [asyncio.create_task(asyncio.to_thread(publish, broker.service_url)) for _ in range(2)]
        await asyncio.to_thread(begun.wait, 20)
    ends.set()
    await asyncio.gather(*publishing)
    assert not broker.is_running


def test_a_loop_that_its_user_closes_too_early_harms_no_other_broker(connect: Connect) -> None:
    loop = asyncio.new_event_loop()
    context = embed()
    abandoned = loop.run_until_complete(context.__aenter__())
    with embed_in_thread() as other:
        assert round_trip(connect(other.service_url)) == b"there and back"
    loop.run_until_complete(abandoned.crash())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


# In a process of its own: a fork copies no other threads, so it must not happen while threads of other tests hold locks.
FORKED = """
import os, urllib.request, warnings
from pybroker.embedding import embed_in_thread

warnings.simplefilter("ignore", DeprecationWarning)
with embed_in_thread() as broker:
    process_id = os.fork()
    if process_id == 0:
        code = 1
        try:
            broker.clock.advance(seconds=1)
        except RuntimeError:
            broker.close()
            with embed_in_thread() as own:
                with urllib.request.urlopen(own.admin_url + "/admin/v2/clusters") as answer:
                    code = 0 if answer.status == 200 else 2
        finally:
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(process_id, 0)[1]))
    broker.clock.advance(seconds=1)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_calls_in_forked_process_are_refused_and_new_broker_starts_there() -> None:
    assert run_python(FORKED) == "0\n"


@pytest.mark.parametrize("is_local", [False, True])
def test_it_runs_without_what_only_some_systems_have(is_local: bool, tmp_path: Path) -> None:
    directory = repr(str(tmp_path / "data")) if is_local else ""
    assert run_python(BLOCKED + ROUND_TRIP.format(directory=directory)).split() == ["here"]


def test_the_package_alone_loads_nothing() -> None:
    loaded = "import sys, pybroker; print([name for name in sys.modules if name.startswith(('pybroker.', 'asyncio'))])"
    assert run_python(loaded).strip() == "['pybroker.version']"


def test_settings_have_the_names_of_the_configuration(connect: Connect) -> None:
    with embed_in_thread(allow_auto_topic_creation=False, brokerDeduplicationEnabled=True) as broker:
        config = broker.embedded.broker.config
        assert (config.allow_auto_topic_creation, config.broker_deduplication_enabled) == (False, True)
        with pytest.raises(pulsar.PulsarException):
            connect(broker.service_url).create_producer("t")
    with pytest.raises(ConfigError, match="no key no_such_key"):
        embed_in_thread(no_such_key=1).__enter__()
    with pytest.raises(ConfigError, match="directory"):
        embed_in_thread(ledger_store="local", metadata_store="sqlite").__enter__()


@pytest.mark.parametrize("key", ["brokerServicePort", "webServicePort"])
async def test_a_broker_that_finds_one_of_its_ports_taken_leaves_the_other_free(key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with socket.create_server(("127.0.0.1", 0)) as found:
            free = found.getsockname()[1]
        ports = {"brokerServicePort": free, "webServicePort": free, key: taken.getsockname()[1]}
        with pytest.raises(StartError, match=key):
            async with pybroker.embed(**ports):
                pass
        socket.create_server(("127.0.0.1", free)).close()

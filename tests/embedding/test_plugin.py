"""The pytest plug-in: what it costs who does not use it, what ends with a test, and the same tests against a real broker."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess

from pybroker.embedding import BrokerThread
from pybroker.testing import EmbeddedTestBroker, open_broker, received, wait_for_backlog

HEAD = """
import pulsar, pytest

@pytest.fixture
def client(pulsar_broker):
    client = pulsar.Client(pulsar_broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()
"""


def run_suite(directory: Path, code: str, *arguments: str, ini: str = "", code_expected: int = 0) -> str:
    (directory / "pytest.ini").write_text(f"[pytest]\nasyncio_default_fixture_loop_scope = function\n{ini}\n")
    (directory / "test_suite.py").write_text(HEAD + code)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PULSAR"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code_expected, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_where_no_test_asks_for_a_broker_none_of_it_is_loaded(tmp_path: Path) -> None:
    run_suite(
        tmp_path,
        """
import sys

def test_nothing_of_a_broker_is_there():
    allowed = {"pybroker", "pybroker.version", "pybroker.testing", "pybroker.testing.plugin"}
    assert {name for name in sys.modules if name.split(".")[0] == "pybroker"} <= allowed
""",
    )


def test_faults_end_with_the_test_that_made_them_and_one_broker_serves_the_session(tmp_path: Path) -> None:
    run_suite(
        tmp_path,
        """
seen = []

def test_one_makes_trouble(pulsar_broker, client):
    seen.append(pulsar_broker)
    pulsar_broker.faults.full_disk()
    pulsar_broker.faults.refuse("SUBSCRIBE", "AuthorizationError", count=1000)
    client.create_producer
    with pytest.raises(pulsar.AuthorizationError):
        client.subscribe("t", "s")
    pulsar_broker.crash()
    pulsar_broker.restart()

def test_the_next_has_none(pulsar_broker, client):
    assert seen == [pulsar_broker]
    client.subscribe("t", "s")
    client.create_producer("t").send(b"x")
""",
    )


@pytest.mark.parametrize("ini", ["pulsar_broker_scope = function", "pulsar_reset = test"])
def test_an_unused_fault_and_a_missing_restart_are_reported_with_the_test_that_has_them(
    tmp_path: Path, ini: str
) -> None:
    told = run_suite(
        tmp_path,
        """
def test_a_fault_for_another_topic(pulsar_broker, client):
    pulsar_broker.faults.refuse("PRODUCER", "AuthorizationError", topic="ordres")
    client.create_producer("orders")

def test_a_fault_that_happens(pulsar_broker, client):
    pulsar_broker.faults.refuse("PRODUCER", "AuthorizationError", topic="orders")
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer("orders")

def test_the_broker_is_used_while_it_is_crashed(pulsar_broker):
    pulsar_broker.crash()
    with pytest.raises(Exception, match="call restart"):
        pulsar_broker.admin("GET", "clusters")
    pulsar_broker.restart()
    pulsar_broker.admin("GET", "clusters")

def test_restart_is_forgotten(pulsar_broker):
    pulsar_broker.crash()

def test_the_next_has_a_broker(pulsar_broker):
    pulsar_broker.admin("GET", "clusters")

def test_restart_is_forgotten_at_the_end(pulsar_broker):
    pulsar_broker.crash()
""",
        ini=ini,
        code_expected=1,
    )
    assert "6 passed, 1 warning, 2 errors" in told
    assert "test_suite.py:11: UnusedFault: The fault refuse(PRODUCER), topic persistent://public/default/ordres" in told
    assert "Topics that had a command: persistent://public/default/orders." in told
    for name in ("test_restart_is_forgotten", "test_restart_is_forgotten_at_the_end"):
        assert f"ERROR at teardown of {name} _" in told
    assert "call restart() after crash()" in told


@pytest.mark.parametrize(("reset", "is_left"), [("never", True), ("test", False)])
def test_a_broker_begins_anew_as_often_as_is_asked_for(tmp_path: Path, reset: str, is_left: bool) -> None:
    run_suite(
        tmp_path,
        f"""
def test_one_leaves_something(pulsar_broker, client):
    client.subscribe("t", "s").close()
    client.create_producer("t").send(b"x")

def test_the_next_looks(pulsar_broker):
    assert pulsar_broker.backlog("t", "s") == ({1 if is_left else -1})
""",
        ini=f"pulsar_reset = {reset}",
    )


def test_scope_and_settings_are_those_of_the_ini_file(tmp_path: Path) -> None:
    run_suite(
        tmp_path,
        """
urls = []

@pytest.mark.parametrize("number", [1, 2])
def test_each_has_its_own(pulsar_broker, number):
    urls.append(pulsar_broker.service_url)
    assert pulsar_broker._thread.embedded.broker.config.broker_deduplication_enabled
    assert len(set(urls)) == number
""",
        ini="pulsar_broker_scope = function\npulsar_settings =\n    brokerDeduplicationEnabled=true",
    )


@pytest.mark.parametrize(
    ("ini", "arguments", "told"),
    [
        ("pulsar_reset = sometimes", (), "pulsar_reset = sometimes is invalid: use one of never, module, test"),
        ("pulsar_broker_scope = week", (), "use one of session"),
        ("", ("--pulsar-admin-url", "http://localhost:1"), "--pulsar-admin-url needs --pulsar-url"),
    ],
)
def test_what_cannot_be_is_said_at_once(tmp_path: Path, ini: str, arguments: tuple[str, ...], told: str) -> None:
    assert told in run_suite(tmp_path, "def test_one(): pass", *arguments, ini=ini, code_expected=4)


REMOTE = """
def test_there_and_back(client, pulsar_broker, received, wait_for_backlog):
    assert not pulsar_broker.is_embedded
    topic = pulsar_broker.topic("orders")
    assert topic.startswith("persistent://public/")
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"x")
    assert received(consumer)[0].data() == b"x"

def test_backlog(client, pulsar_broker, wait_for_backlog):
    topic = pulsar_broker.topic()
    client.subscribe(topic, "s").close()
    client.create_producer(topic).send(b"x")
    wait_for_backlog(topic, "s", 1)

def test_reset(client, pulsar_broker):
    before = pulsar_broker.topic("same")
    pulsar_broker.reset()
    assert pulsar_broker.topic("same") != before

def test_time(pulsar_broker):
    assert pulsar_broker.clock.now_ms() > 0
    pulsar_broker.clock.advance(hours=1)

def test_fault(pulsar_broker):
    pulsar_broker.faults.full_disk()

def test_crash(pulsar_broker):
    pulsar_broker.crash()
"""


def test_the_same_tests_run_against_a_real_broker_and_what_cannot_is_skipped_with_a_reason(tmp_path: Path) -> None:
    suite = tmp_path / "suite"
    suite.mkdir()
    with BrokerProcess(tmp_path).running() as real:
        told = run_suite(suite, REMOTE, "--pulsar-url", real.url, "--pulsar-admin-url", real.http_url)
        assert "3 passed, 3 skipped" in told
        assert "the time of a real broker cannot be advanced" in told
        assert "faults.full_disk of a real broker" in told
        assert '"public/test-' not in real.get("/admin/v2/namespaces/public"), "namespaces are deleted again"
        told = run_suite(suite, REMOTE, "--pulsar-url", real.url)
        assert "2 passed, 4 skipped" in told
        assert "without --pulsar-admin-url" in told


def test_what_is_waited_for_in_vain_is_described() -> None:
    class Consumer:
        class Timeout(Exception):
            pass

        def __init__(self) -> None:
            self.left = [b"one"]

        def receive(self, timeout_millis: int) -> object:
            if not self.left:
                raise self.Timeout
            data = self.left.pop()
            return type("Message", (), {"data": staticmethod(lambda: data)})

    with pytest.raises(AssertionError, match=r"2 messages were expected within 0.1 s, but 1 arrived: \[b'one'\]"):
        received(Consumer(), 2, acknowledge=False, timeout_s=0.1)
    broker = EmbeddedTestBroker()
    try:
        with pytest.raises(AssertionError, match=r"is not 3 within 0\.05 s: the subscription does not exist"):
            wait_for_backlog(broker, broker.topic("t"), "s", 3, timeout_s=0.05)
    finally:
        broker.close()


def test_the_environment_names_a_real_broker_too(broker: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSAR_URL", broker.service_url)
    monkeypatch.setenv("PULSAR_ADMIN_URL", broker.admin_url)
    real = open_broker()
    assert (real.service_url, real.is_embedded) == (broker.service_url, False)
    assert real.namespace in real.admin("GET", "namespaces/public")
    namespace = real.namespace
    real.close()
    assert namespace not in real.admin("GET", "namespaces/public")

"""`pybroker serve` as an operator meets it: options, ready file, banner, signals, exit codes, what a fresh broker holds."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.credentials import CertificateAuthority
from tests.support.raw_client import CLOSED, RawClient, Type, connected
from tests.support.rest import call

from pybroker.wire import pulsar_api_pb2 as pb

IN_MEMORY = {"ledgerStore": "memory", "metadataStore": "memory"}
TOPIC = "persistent://public/default/t"


def serve(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a broker that is expected to end by itself; port 0 unless `arguments` say otherwise."""
    command = [sys.executable, "-m", "pybroker", "serve", "--data", str(directory / "data")]
    command += ["--port", "0", "--http-port", "0", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def complaints(ended: "subprocess.CompletedProcess[str]") -> list[str]:
    """What is on stderr but the log of what went well, and of keys that have no effect."""
    return [line for line in ended.stderr.splitlines() if not re.match(r"\S+Z (INFO|WARNING) ", line)]


def others_may(directory: Path) -> list[Path]:
    """What somebody else than its owner may read or write in `directory`, itself included."""
    return [path for path in (directory, *directory.rglob("*")) if path.stat().st_mode & 0o077]


# --- ready -------------------------------------------------------------------------------------------------------------


def test_the_ready_file_and_the_banner_say_where_the_broker_is(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path).running() as broker:
        ready = broker.ready
        assert broker.process is not None
        assert ready["pid"] == broker.process.pid
        assert 0 < ready["broker_port"] != ready["http_port"] > 0
        assert ready["broker_url"] == f"pulsar://127.0.0.1:{ready['broker_port']}"
        assert ready["http_url"] == f"http://127.0.0.1:{ready['http_port']}"
        assert ready["broker_port_tls"] is None
        assert ready["http_url_tls"] == ""
        lines = broker.log.read_text().splitlines()
        start = next(index for index, line in enumerate(lines) if line.startswith("pybroker "))
        assert lines[start].endswith("cluster standalone")
        assert lines[start + 1].split() == ["serving", ready["broker_url"], ready["http_url"]]
        assert lines[start + 2].split() == ["console", f"{ready['http_url']}/console/"]
        assert lines[start + 3].split() == ["data", str(broker.data)]
        assert lines[start + 4].split(maxsplit=1) == [
            "durability",
            "a receipt confirms that the message is on disk (journalSyncData=true)",
        ]


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"consoleEnabled": "false"}, None), ({"webServicePort": ""}, "https"), ({}, "http")],
)
def test_banner_names_the_console_where_it_is_served(
    tmp_path: Path, settings: dict[str, str], named: str | None
) -> None:
    ready_file = tmp_path / "ready.json"
    options = ["--ready-file", str(ready_file)]
    for key, value in {**IN_MEMORY, "brokerServicePort": "0", "webServicePort": "0", **settings}.items():
        options += ["--set", f"{key}={value}"]
    if named == "https":
        files = CertificateAuthority(tmp_path).server()
        paths = {"tlsCertificateFilePath": files.certificate, "tlsKeyFilePath": files.key}
        options += [f"--set={key}={path}" for key, path in paths.items()] + ["--set=webServicePortTls=0"]
    command = [sys.executable, "-m", "pybroker", "serve", "--data", str(tmp_path / "data"), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        banner = [process.stdout.readline()]
        while "durability" not in banner[-1]:
            banner.append(process.stdout.readline())
            assert banner[-1], "the broker ended"
        process.terminate()
    shown = [line.split()[1] for line in banner if line.startswith("  console ")]
    assert [url.partition(":")[0] for url in shown] == ([named] if named else [])
    assert all(url.endswith("/console/") for url in shown)


def test_a_fresh_broker_has_its_cluster_tenants_and_namespaces_when_it_says_it_is_ready(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path).running() as broker:
        assert json.loads(broker.get("/admin/v2/clusters")) == ["standalone"]
        assert json.loads(broker.get("/admin/v2/tenants")) == ["public", "pulsar"]
        assert json.loads(broker.get("/admin/v2/namespaces/public")) == ["public/default"]
        assert json.loads(broker.get("/admin/v2/namespaces/pulsar")) == ["pulsar/system"]
        cluster = json.loads(broker.get("/admin/v2/clusters/standalone"))
        assert (cluster["brokerServiceUrl"], cluster["serviceUrl"]) == (broker.url, broker.http_url)
        assert broker.get("/admin/v2/brokers/health") == "ok"
        with connected(broker) as client:
            client.open_producer("t")
            assert client.publish(1, 1)[0]["type"] == "SEND_RECEIPT"
        assert json.loads(broker.get("/admin/v2/namespaces/public/default/topics")) == [TOPIC]


# --- where settings come from ------------------------------------------------------------------------------------------


def test_file_environment_and_command_line_are_used_and_the_later_ones_win(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text(
        "# a comment\nclusterName = from-file\nmaxMessageSize=1000001\nkeepAliveIntervalSeconds=11\nlogLevel=warning\n"
    )
    broker = BrokerProcess(tmp_path, {**IN_MEMORY, "maxMessageSize": "1000003"})
    broker.arguments = ["--config", str(config), "--log-level", "error"]
    broker.environment = {
        "maxMessageSize": "1000002",
        "keepAliveIntervalSeconds": "12",
        "PULSAR_PREFIX_keepAliveIntervalSeconds": "13",
    }
    with broker.running():
        found = json.loads(broker.get("/admin/v2/brokers/configuration/runtime"))
        wanted = {
            "clusterName": "from-file",
            "keepAliveIntervalSeconds": "13",
            "maxMessageSize": "1000003",
            "logLevel": "error",
        }
        assert {key: found[key] for key in wanted} == wanted
        client = RawClient(broker.url)
        assert client.connect()["max_message_size"] == 1000003
        client.close()
    assert "INFO" not in broker.log.read_text()


def test_unknown_keys_and_keys_without_effect_are_named_once_at_start(tmp_path: Path) -> None:
    settings = {**IN_MEMORY, "noSuchKey": "1", "managedLedgerForceRecovery": "true"}
    with BrokerProcess(tmp_path, settings).running() as broker:
        noted = [line for line in broker.log.read_text().splitlines() if "config.warning" in line]
    assert len(noted) == 2
    assert "WARNING" in noted[0]
    assert "noSuchKey" in noted[0]
    assert "managedLedgerForceRecovery" in noted[1]


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("authenticationEnabled=true", "authenticationEnabled=true needs at least one provider"),
        ("internalListenerName=x", "internalListenerName is set, but advertisedListeners is empty"),
        ("advertisedListeners=nonsense", "advertisedListeners has 'nonsense'"),
        ("clusterName=a/b", "clusterName cannot be 'a/b'"),
    ],
)
def test_a_configuration_that_cannot_work_is_one_line_and_code_2(tmp_path: Path, setting: str, complaint: str) -> None:
    ended = serve(tmp_path, "--set", setting)
    assert ended.returncode == 2
    assert len(complaints(ended)) == 1
    assert complaints(ended)[0].startswith(f"pybroker: {complaint}")
    assert ended.stdout == ""


def test_a_data_directory_that_cannot_be_made_is_one_line_and_code_1(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file is in the way")
    ended = serve(tmp_path)
    assert ended.returncode == 1
    assert complaints(ended) == [f"pybroker: the data directory {tmp_path / 'data'} cannot be used: File exists"]


@pytest.fixture
def taken() -> Iterator[dict[str, int]]:
    """Ports that somebody else listens on, by key."""
    keys = ("brokerServicePort", "webServicePort", "brokerServicePortTls", "webServicePortTls")
    with ExitStack() as stack:
        sockets = {key: stack.enter_context(socket.create_server(("127.0.0.1", 0))) for key in keys}
        yield {key: bound.getsockname()[1] for key, bound in sockets.items()}


def test_the_port_that_is_taken_is_named(tmp_path: Path, taken: dict[str, int]) -> None:
    port = taken["webServicePort"]
    ended = serve(tmp_path, "--http-port", str(port))
    assert ended.returncode == 1
    cause, _, advice = complaints(ended)[0].partition(" (another broker? ")
    assert cause == f"pybroker: cannot listen on 127.0.0.1 port {port} (webServicePort): Address already in use"
    assert advice == "--port and --http-port choose other ports)"
    assert len(complaints(ended)) == 1


def test_all_ports_that_are_taken_are_named(tmp_path: Path, taken: dict[str, int]) -> None:
    files = CertificateAuthority(tmp_path).server()
    settings = {name: taken[name] for name in ("brokerServicePortTls", "webServicePortTls")} | {
        "tlsCertificateFilePath": files.certificate,
        "tlsKeyFilePath": files.key,
    }
    arguments = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    arguments += ["--port", str(taken["brokerServicePort"]), "--http-port", str(taken["webServicePort"])]
    ended = serve(tmp_path, *arguments)
    assert ended.returncode == 1
    found = [line.partition(" (")[0] for line in complaints(ended)]
    order = ("brokerServicePort", "brokerServicePortTls", "webServicePort", "webServicePortTls")
    assert found == [f"pybroker: cannot listen on 127.0.0.1 port {taken[name]}" for name in order]


def test_a_ready_file_that_cannot_be_written_is_one_line_and_code_1(tmp_path: Path) -> None:
    ended = serve(tmp_path, "--ready-file", str(tmp_path / "missing" / "ready.json"))
    assert ended.returncode == 1
    path = tmp_path / "missing" / "ready.json"
    assert complaints(ended) == [f"pybroker: the ready file {path} cannot be written: No such file or directory"]


# --- in memory ---------------------------------------------------------------------------------------------------------


def test_in_memory_everything_works_and_no_file_is_written(tmp_path: Path) -> None:
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    broker = BrokerProcess(directory, IN_MEMORY)
    with broker.running(), connected(broker) as client:
        client.open_producer(TOPIC)
        client.subscribe(TOPIC, 2)
        client.publish(1, 10)
        client.send(Type.FLOW, consumer_id=2, messagePermits=10)
        assert [client.reply()["payload"] for _ in range(10)] == [f"m{index}" for index in range(10)]
        lines = [line.split(maxsplit=1) for line in broker.log.read_text().splitlines()]
        assert ["data", "in memory only"] in lines
        assert ["durability", "none: all data is lost when the broker stops"] in lines
    # The two are the test's own.
    assert sorted(path.name for path in directory.rglob("*")) == ["broker.log", "ready.json"]


# --- the end -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_tells_the_clients_and_ends_with_code_0(tmp_path: Path, number: signal.Signals) -> None:
    broker = BrokerProcess(tmp_path)
    with broker.running(), connected(broker) as client, connected(broker) as idle:
        client.open_producer(TOPIC, 1)
        client.subscribe(TOPIC, 2)
        assert broker.stop(number) == 0
        told = sorted([client.reply(), client.reply()], key=lambda reply: reply["type"])
        assert [(each["type"], int(each["request_id"])) for each in told] == [
            ("CLOSE_CONSUMER", 2**64 - 1),
            ("CLOSE_PRODUCER", 2**64 - 1),
        ]
        assert client.reply() == CLOSED
        assert idle.reply() == CLOSED
    log = broker.log.read_text()
    assert "Traceback" not in log
    assert log.rstrip().endswith("broker.stopped")


def test_what_was_acknowledged_without_a_receipt_is_kept_by_a_stop(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, {"cursorFlushIntervalMs": "600000"})
    with broker.running(), connected(broker) as client:
        client.open_producer(TOPIC)
        client.subscribe(TOPIC, 2, "Shared")
        client.publish(1, 4)
        client.send(Type.FLOW, consumer_id=2, messagePermits=10)
        ids = [client.reply()["message_id"] for _ in range(4)]
        acked = [pb.MessageIdData(ledgerId=int(each["ledgerId"]), entryId=int(each["entryId"])) for each in ids[1:3]]
        client.send(Type.ACK, consumer_id=2, ack_type=pb.CommandAck.Individual, message_id=acked)
        client.send(Type.PING)
        assert client.reply()["type"] == "PONG"
    with broker.running(), connected(broker) as client:
        client.subscribe(TOPIC, 2, "Shared")
        client.send(Type.FLOW, consumer_id=2, messagePermits=10)
        assert [client.reply()["payload"] for _ in range(2)] == ["m0", "m3"]
        client.send(Type.PING)
        assert client.reply()["type"] == "PONG"


def test_serve_never_imports_what_only_clients_and_spark_need(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, IN_MEMORY)
    broker.environment = {"PYTHONPROFILEIMPORTTIME": "1"}
    with broker.running(), connected(broker) as client:
        client.open_producer(TOPIC)
        broker.get("/metrics")
        broker.get("/admin/v2/brokers/health")
    lines = broker.log.read_text().splitlines()
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines if line.startswith("import time:")}
    assert {"pybroker", "uvicorn", "starlette"} <= imported
    assert not imported & {
        "pulsar",
        "_pulsar",
        "pyspark",
        "pyarrow",
        "typer",
        "rich",
        "pytest",
        "hypothesis",
        "grpc_tools",
    }


# --- the data directory ------------------------------------------------------------------------------------------------


def test_the_data_directory_is_its_owners_only_and_stays_locked_without_its_lock_file(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path).running() as broker, connected(broker) as client:
        client.open_producer(TOPIC)
        client.publish(1, 1)
        assert {path.name for path in broker.data.iterdir()} >= {
            "metadata.db",
            "metadata.db-wal",
            "checkpoint.db",
            "LOCK",
        }
        assert others_may(broker.data) == []
        (broker.data / "LOCK").unlink()
        ended = serve(tmp_path)
        assert ended.returncode == 1
        assert "is in use by process" in ended.stderr


def test_metadata_that_are_gone_or_of_another_time_are_refused_beside_ledgers(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    with connected(broker) as client:
        client.open_producer(TOPIC)
        client.publish(1, 10)
    broker.kill()
    for name in ("metadata.db", "metadata.db-wal", "metadata.db-shm"):
        (broker.data / name).unlink()
    ended = serve(tmp_path)
    assert ended.returncode == 1
    assert "confirmed transactions" in ended.stderr
    assert str(broker.data / "metadata.end") in ended.stderr
    (broker.data / "metadata.end").unlink()
    ended = serve(tmp_path)
    assert ended.returncode == 1
    assert "contains ledgers with entries, but its metadata.db lists no topic" in ended.stderr


# --- service manager -------------------------------------------------------------------------------------------------


def test_hangup_applies_dynamic_keys_and_names_the_others(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("maxTopicsPerNamespace=5\nbacklogQuotaCheckEnabled=true\n")
    broker = BrokerProcess(tmp_path, IN_MEMORY)
    broker.arguments = ["--config", str(conf)]

    def limit() -> str:
        return str(json.loads(broker.get("/admin/v2/brokers/configuration/runtime"))["maxTopicsPerNamespace"])

    def hang_up(text: str, expected: str) -> None:
        seen = len(broker.log.read_text())
        conf.write_text(text)
        assert broker.process is not None
        broker.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 30
        while expected not in broker.log.read_text()[seen:]:
            assert time.monotonic() < deadline, broker.log.read_text()
            time.sleep(0.02)

    with broker.running_well():
        assert limit() == "5"
        hang_up(
            "maxTopicsPerNamespace=7\nbacklogQuotaCheckEnabled=false\n",
            "config.restart_needed keys=backlogQuotaCheckEnabled",
        )
        assert limit() == "7"
        hang_up("maxTopicsPerNamespace=soon\n", "config.reload_failed")
        assert limit() == "7"
        # An override by REST has precedence, also over a file that is read again, until it is removed.
        rest = f"{broker.http_url}/admin/v2/brokers/configuration/maxTopicsPerNamespace"
        assert call(f"{rest}/9", "POST").status < 300
        hang_up("maxTopicsPerNamespace=8\n", "config.reloaded")
        assert limit() == "9"
        assert call(rest, "DELETE").status < 300
        assert limit() == "8"


def test_service_manager_is_notified_of_each_state(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        broker = BrokerProcess(tmp_path, IN_MEMORY)
        broker.environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "300000"}

        def until(word: str) -> str:
            while word not in (message := manager.recv(4096).decode()):
                assert message == "WATCHDOG=1"
            return message

        with broker.running():
            assert broker.process is not None
            ready = until("READY=1")
            assert f"MAINPID={broker.process.pid}" in ready
            assert f"STATUS=Serving {broker.url}" in ready
            for _ in range(3):
                until("WATCHDOG=1")
            broker.process.send_signal(signal.SIGHUP)
            assert "MONOTONIC_USEC=" in until("RELOADING=1")
            until("READY=1")
        until("STOPPING=1")

"""Commands say why official clients wait, and mend it: what is held, by whom, and the calls for single messages and clients."""

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest
from tests.support.commands import Run, runner, without_a_broker

from pybroker.cli.command_table import COMMANDS
from pybroker.cli.program import command_parser
from pybroker.embedding import BrokerThread, embed_in_thread


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with embed_in_thread() as embedded:
        yield embedded


@pytest.fixture(scope="module")
def client(broker: BrokerThread) -> Iterator[pulsar.Client]:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    connected = pulsar.Client(broker.service_url, logger=logger, operation_timeout_seconds=20)
    yield connected
    connected.close()


@pytest.fixture
def run(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> Run:
    without_a_broker(monkeypatch, str(tmp_path))
    monkeypatch.setenv("PULSAR_ADMIN_URL", broker.admin_url)
    return runner(capsysbinary)


Consume = Callable[..., pulsar.Consumer]


def key_shared(client: pulsar.Client, topic: str, name: str) -> pulsar.Consumer:
    earliest = pulsar.InitialPosition.Earliest
    kind = pulsar.ConsumerType.KeyShared
    return client.subscribe(topic, "s", kind, consumer_name=name, initial_position=earliest)


def test_a_subscription_without_consumers_waits_and_explain_says_so_with_its_exit_code(run: Run) -> None:
    run("consume", "lonely", "-s", "s", "-n", "1", "--wait", "1ms")
    assert run("explain", "lonely", "s").code == 0
    run("produce", "lonely", "x")
    ran = run("explain", "lonely", "s")
    assert ran.code == 3
    assert "Subscription s is stuck for" in ran.out
    assert "[no-consumers] blocks messages for" in ran.out
    document = run("explain", "lonely", "s", "--json")
    assert (document.code, document.json["waiting"], document.json["findings"][0]["code"]) == (3, True, "no-consumers")
    topic = run("explain", "lonely")
    assert topic.code == 3
    assert "s             stuck" in topic.out


def test_what_a_consumer_holds_is_listed_and_acknowledged_one_by_one(run: Run, client: pulsar.Client) -> None:
    consumer = key_shared(client, "held", "holder")
    run("produce", "held", "a", "b", "--key", "k", "--no-batching", "--property", "p=q")
    ids = [consumer.receive(30_000).message_id() for _ in range(2)]
    listed = run("unacked", "held", "s", "--consumer", "holder", "--key", "k", "--properties", "--json").json
    assert listed["total"] == 2
    assert [each["messageId"] for each in listed["messages"]] == [
        f"{each.ledger_id()}:{each.entry_id()}" for each in ids
    ]
    assert listed["messages"][0]["properties"] == {"p": "q"}
    table = run("unacked", "held", "s", "--limit", "1")
    assert table.lines[0].split()[:4] == ["MESSAGE", "KEY", "HASH", "CONSUMER"]
    assert table.lines[-1] == "1 of 2: --limit shows more"
    assert run("unacked", "held", "s", "--consumer", "nobody").out == "No unacknowledged messages.\n"
    owner = run("hash", "held", "s", "k", "--json").json
    assert (owner["consumer"]["name"], owner["state"]) == ("holder", "owned")
    assert run("hash", "held", "s", "aw==", "--base64", "--json").json["hash"] == owner["hash"]
    assert f"hash      {owner['hash']}" in run("hash", "held", "s", "k").out
    first = listed["messages"][0]["messageId"]
    assert run("ack", "held", "s", first, "--yes").out == f"{first} acknowledged\n"
    left = run("unacked", "held", "s", "--json").json["messages"]
    assert [each["messageId"] for each in left] == [listed["messages"][1]["messageId"]]
    consumer.close()


def test_a_hash_that_drains_is_shown_and_an_acknowledgement_ends_it(run: Run, client: pulsar.Client) -> None:
    old = key_shared(client, "moved", "the old one's")
    for key in range(8):
        run("produce", "moved", "x", "--key", str(key), "--no-batching")
    for _ in range(8):
        old.receive(30_000)
    new = key_shared(client, "moved", "new")
    listed = run("draining", "moved", "s", "--json").json["hashes"]
    assert listed
    table = run("draining", "moved", "s")
    assert table.lines[0].split()[:3] == ["HASH", "KEYS", "FROM"]
    assert all("  the old one's  " in line for line in table.lines[1:])
    run("produce", "moved", "y", "--key", listed[0]["keys"][0], "--no-batching")
    findings = run("explain", "moved", "s", "--json").json["findings"]
    suggested = [action["command"] for finding in findings for action in finding["actions"] if action.get("command")]
    assert suggested
    for line in suggested:  # each is a command line that is taken, whatever its consumer is called
        _, command, *rest = shlex.split(line)
        options = command_parser(COMMANDS[command]).parse_args(rest)
        assert getattr(options, "consumer", None) in {None, "the old one's", "new"}
    ids = [message for each in listed for message in each["messageIds"]]
    assert run("ack", "moved", "s", *ids, "--yes").code == 0
    assert run("draining", "moved", "s").out == "No draining hashes.\n"
    assert new.receive(30_000).data() == b"y"  # keySharedUnblockingIntervalMs later
    assert run("waiting", "moved", "s").out == "No waiting hashes.\n"
    for each in (old, new):
        each.close()


def test_a_message_is_delivered_again_and_clients_are_disconnected(run: Run, client: pulsar.Client) -> None:
    consumer = client.subscribe("again", "s", pulsar.ConsumerType.Shared, consumer_name="c")
    producer = client.create_producer("again", producer_name="p")
    producer.send(b"x")
    at = consumer.receive(30_000).message_id()
    given = f"{at.ledger_id()}:{at.entry_id()}"
    assert run("redeliver", "again", "s", given).out == f"{given} will be delivered again\n"
    assert consumer.receive(30_000).redelivery_count() == 1
    assert run("disconnect", "again", "s", "--consumer", "c").code == 0
    assert consumer.receive(30_000).data() == b"x"  # its client came back
    assert (
        run("disconnect", "again", "--producer", "p").out
        == "producer p is disconnected from persistent://public/default/again\n"
    )
    producer.send(b"y")
    for what in (["ack", "again", "s", "99:99", "--yes"], ["disconnect", "again", "s", "--consumer", "nobody"]):
        ran = run(*what)
        assert ran.code == 1
        assert ran.err.count("\n") == 1
        assert "answered 4" in ran.err
    consumer.close()
    producer.close()


def test_what_is_not_there_for_a_subscription_is_told_in_a_line(run: Run, client: pulsar.Client) -> None:
    consumer = client.subscribe("plain", "s", pulsar.ConsumerType.Shared)
    for command in (["draining", "plain", "s"], ["waiting", "plain", "s"], ["hash", "plain", "s", "k"]):
        ran = run(*command)
        assert ran.code == 1
        assert "only Key_Shared subscriptions have" in ran.err
    for command in ("unacked", "draining", "holes", "delayed"):  # type: ignore[assignment]
        assert run(command, "plain", "nosuch").code == 1
    consumer.close()

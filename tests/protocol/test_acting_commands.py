"""`pybroker skip`, `seek`, `delete`, `policies`, `transactions` and `api` against a broker, and their confirmations."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.commands import Run, runner, without_a_broker

from pybroker.embedding import BrokerThread, embed_in_thread


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with embed_in_thread(transactionCoordinatorEnabled=True) as embedded:
        yield embedded


@pytest.fixture
def run(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> Run:
    without_a_broker(monkeypatch, str(tmp_path))
    monkeypatch.setenv("PULSAR_ADMIN_URL", broker.admin_url)
    return runner(capsysbinary)


def backlog(run: Run, topic: str, subscription: str = "s") -> int:
    rows = {each["subscription"]: each for each in run("subscriptions", topic, "--json").json}
    return int(rows[subscription]["msgBacklog"])


def with_messages(run: Run, topic: str, count: int = 5) -> list[str]:
    """A topic with a subscription `s` that has received nothing."""
    run("consume", topic, "-s", "s", "-n", "1", "--wait", "1ms")
    ran = run("produce", topic, *map(str, range(count)), "--no-batching", "--json")
    return [each["messageId"] for each in ran.records]


@pytest.mark.parametrize(
    "command",
    [
        ["skip", "asked", "s", "--all"],
        ["seek", "asked", "s", "latest"],
        ["delete", "asked", "s"],
        ["delete", "asked", "--force"],
        ["ack", "asked", "s", "0:0"],
        ["transactions", "abort", "0:0"],
        ["api", "POST", "/admin/v2/persistent/public/default/asked/subscription/s/skip_all"],
        ["policies", "set", "asked", "backlogQuota", '{"limitSize": 1, "policy": "consumer_backlog_eviction"}'],
        ["policies", "set", "asked", "messageTTL", "1"],
        ["policies", "remove", "asked", "retention"],
    ],
    ids=lambda command: "-".join(command[:2]),
)
def test_nothing_is_lost_without_a_confirmation(run: Run, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    run("consume", "asked", "-s", "s", "-n", "1", "--wait", "1ms")
    if not backlog(run, "asked"):
        run("produce", "asked", "m")
    before = backlog(run, "asked")
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
    ran = run(*command)
    assert (ran.code, "add --yes" in ran.err) == (2, True), ran
    for answer in ("no\n", "\n", "", "y\n"):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        ran = run(*command)
        assert (ran.code, "nothing was changed" in ran.err) == (1, True), ran
    assert backlog(run, "asked") == before


def test_messages_are_skipped_one_by_one_and_all(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with_messages(run, "skipped")
    assert run("skip", "skipped", "s", "-n", "2", "--yes").code == 0
    assert backlog(run, "skipped") == 3
    monkeypatch.setattr("sys.stdin", Terminal("yes\n"))
    assert run("skip", "skipped", "s", "--all").code == 0
    assert backlog(run, "skipped") == 0
    assert run("skip", "skipped", "nobody", "--all", "--yes").code == 1


def test_a_subscription_is_moved_to_an_id_a_time_and_both_ends(run: Run) -> None:
    ids = with_messages(run, "sought")
    for to, left in (("latest", 0), ("earliest", 5), (ids[3], 2), ("2020-01-01T00:00:00Z", 5)):
        assert run("seek", "sought", "s", to, "--yes").code == 0
        assert backlog(run, "sought") == left, to


def test_subscriptions_and_topics_are_deleted(run: Run, broker: BrokerThread) -> None:
    with_messages(run, "deleted")
    assert run("delete", "deleted", "s", "--yes").out == (
        "subscription s of persistent://public/default/deleted is deleted\n"
    )
    assert run("subscriptions", "deleted", "--json").json == []
    assert run("delete", "deleted", "--yes").code == 0
    assert run("api", "PUT", "/admin/v2/persistent/public/default/in-parts/partitions", "2", "--yes").code == 0
    assert run("delete", "in-parts", "--yes").code == 0
    assert [each["topic"] for each in run("topics", "--json").json if "in-parts" in each["topic"]] == []


def test_policies_are_set_shown_and_removed_on_topics_and_namespaces(run: Run) -> None:
    with_messages(run, "with-policies", 1)
    set_to = run("policies", "set", "with-policies", "maxUnackedMessagesOnConsumer", "7")
    assert set_to.out == "maxUnackedMessagesOnConsumer of persistent://public/default/with-policies is set to 7\n"
    assert run("policies", "get", "with-policies", "maxUnackedMessagesOnConsumer").json == 7
    assert run("policies", "remove", "with-policies", "maxUnackedMessagesOnConsumer").code == 0
    assert "is not set" in run("policies", "get", "with-policies", "maxUnackedMessagesOnConsumer").out
    quota = '{"limitSize": 100000, "limitTime": -1, "policy": "producer_exception"}'
    assert run("policies", "set", "with-policies", "backlogQuota", quota).code == 0  # which loses nothing
    shown = run("policies", "get", "with-policies", "backlogQuota").json
    assert shown["destination_storage"]["limitSize"] == 100000
    assert run("policies", "set", "public/default", "maxProducersPerTopic", "9").code == 0
    assert run("policies", "get", "public/default", "maxProducersPerTopic").json == 9
    assert run("policies", "set", "with-policies", "retention", "no json", "--yes").code == 2


def test_connection_options_stand_before_commands_that_have_commands(
    run: Run, broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PULSAR_ADMIN_URL")
    assert run("--url", broker.admin_url, "policies", "get", "public/default", "retention").code == 0
    assert run("--url", broker.admin_url, "transactions", "list").out == "No open transactions.\n"
    assert run("--url", broker.admin_url, "api", "get", "/admin/v2/clusters").code == 0


def test_any_call_is_made_and_its_answer_written(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "standalone" in run("api", "GET", "/admin/v2/clusters").json
    assert "pulsar_" in run("api", "GET", "/metrics").out
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"allowedClusters": ["standalone"]})))
    assert run("api", "PUT", "/admin/v2/tenants/by-api", "-", "--yes").code == 0
    assert "by-api" in run("api", "GET", "/admin/v2/tenants").json
    assert run("api", "GET", "/admin/v2/nothing/there").code == 1
    assert run("api", "GET", "no/slash").code == 2
    assert run("api", "PATCH", "/x").code == 2


def test_limits_of_a_partition_are_raised_for_its_partitioned_topic(run: Run, broker: BrokerThread) -> None:
    run("api", "PUT", "/admin/v2/persistent/public/default/parted/partitions", "2", "--yes")
    run("policies", "set", "parted", "backlogQuota", '{"limitSize": 10, "policy": "producer_exception"}')
    part = "parted-partition-0"
    with_messages(run, part, 3)
    ran = run("explain", part)
    (command,) = [line.strip() for line in ran.lines if "policies set" in line and "producer_exception" in line]
    assert "persistent://public/default/parted backlogQuota" in command
    shown = run("explain", part, "--json").json["findings"][0]
    (raised,) = [each for each in shown["actions"] if each["severity"] == "harmless"]
    assert raised["path"].startswith("/admin/v2/persistent/public/default/parted/backlogQuota")
    assert run("api", raised["method"], raised["path"], json.dumps(raised["body"]), "--yes").code == 0
    assert run("produce", part, "m").code == 0

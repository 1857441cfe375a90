"""An exactly-once sink on a real broker that does not deduplicate: whoever dies, and wherever, each row is there once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call
from tests.tables.stored import once, stored

from pybroker.client import transactional_sinks
from pybroker.client.access import Access
from pybroker.client.client_connection import Connection
from pybroker.client.rest import Unreachable
from pybroker.model.txn_id import TxnId
from pybroker.spark.writer.exact_writer import ExactWriter, abort_batch, commit_batch
from pybroker.spark.writer.sink_notes import Writer
from pybroker.spark.writer.sink_options import WriteOptions, parse_write_options
from pybroker.spark.writer.topic_writer import WriteFailed

MOST_OPEN = 6
SETTINGS = {
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
    "maxOpenTransactionsPerTopic": str(MOST_OPEN),
}
attempts = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), SETTINGS).running() as process:
        yield process


def options_for(broker: BrokerProcess, topic: str, **more: str) -> WriteOptions:
    given = {"service.url": broker.url, "admin.url": broker.http_url, "topic": topic, "delivery": "exactly-once"}
    own = {"sinkId": topic.rpartition("/")[2], "batchingMaxMessages": "10"}
    return parse_write_options({**given, **own, **more}, is_stream=True)


class Batch:
    """One attempt of a driver to write a batch: its tasks, and then its commit."""

    def __init__(self, options: WriteOptions, batch: int, query: str = "query") -> None:
        self.options = options
        self.who = Writer(query, "run", batch)
        self.attempt = str(next(attempts))

    def task(self, number: int, rows: range, *, fails: bool = False, dies: bool = False) -> TxnId | None:
        """What is named to the driver; a task that fails takes its rows back, one that dies leaves them."""
        writer = ExactWriter(self.options, number, self.who, self.attempt)
        try:
            take = writer.write if writer.start() else writer.skip
            for first in range(rows.start, rows.stop, 50):
                part = range(first, min(first + 50, rows.stop))
                take(pa.RecordBatch.from_pydict({"value": [b"%d" % row for row in part]}))
            writer.finish()
            if fails:
                writer.abort()
            return None if fails or dies else writer.txn
        finally:
            writer.close()

    def commit(self, *transactions: TxnId | None) -> bool:
        return commit_batch(self.options, self.who, [txn for txn in transactions if txn is not None])


def test_nothing_is_seen_before_the_batch_is_committed_and_then_all_of_it(broker: BrokerProcess, topic: str) -> None:
    batch = Batch(options_for(broker, topic), 0)
    written = [batch.task(number, range(number * 100, number * 100 + 100)) for number in range(3)]
    assert stored(broker, topic) == Counter()
    assert batch.commit(*written)
    assert stored(broker, topic) == once(range(300))


def test_a_task_that_fails_dies_or_comes_second_leaves_nothing(broker: BrokerProcess, topic: str) -> None:
    batch = Batch(options_for(broker, topic), 0)
    batch.task(0, range(100), fails=True)
    batch.task(0, range(100), dies=True)
    first = batch.task(0, range(100))
    batch.task(0, range(100))  # a speculative one, which Spark does not choose
    assert batch.commit(first, batch.task(1, range(100, 130)))
    assert stored(broker, topic) == once(range(130))


def test_a_batch_that_is_planned_again_with_other_tasks_is_there_once(broker: BrokerProcess, topic: str) -> None:
    options = options_for(broker, topic)
    died_before_the_commit = Batch(options, 4)
    died_before_the_commit.task(0, range(100))
    died_before_the_commit.task(1, range(100, 200))
    died_behind_it = Batch(options, 4)
    assert died_behind_it.commit(died_behind_it.task(0, range(150)), died_behind_it.task(1, range(150, 200)))
    third = Batch(options, 4)
    assert not third.commit(*(third.task(number, range(number * 50, number * 50 + 50)) for number in range(4)))
    following = Batch(options, 5)
    assert following.commit(following.task(0, range(200, 250)))
    assert stored(broker, topic) == once(range(250))


def test_of_two_drivers_that_commit_one_batch_one_has_an_effect(broker: BrokerProcess, topic: str) -> None:
    options = options_for(broker, topic)
    zombie, following = Batch(options, 0), Batch(options, 0)
    of_zombie = zombie.task(0, range(100))
    again = following.task(0, range(100))
    with pytest.raises(WriteFailed, match="transaction"):
        zombie.commit(of_zombie)  # the following one has aborted it
    assert following.commit(again)
    assert not zombie.commit(of_zombie), "now it is a repeat"
    assert stored(broker, topic) == once(range(100))


def test_a_batch_that_has_failed_is_taken_back(broker: BrokerProcess, topic: str) -> None:
    options = options_for(broker, topic)
    failed = Batch(options, 0)
    written = failed.task(0, range(100))
    assert abort_batch(options, 0) == 1
    assert abort_batch(options_for(broker, topic, sinkId="nobody"), 0) == 0
    with pytest.raises(WriteFailed):
        failed.commit(written)
    again = Batch(options, 0)
    assert again.commit(again.task(0, range(100)))
    assert stored(broker, topic) == once(range(100))


def test_another_query_is_refused_until_it_takes_over(broker: BrokerProcess, topic: str) -> None:
    options = options_for(broker, topic)
    first = Batch(options, 7)
    assert first.commit(first.task(0, range(10)))
    with pytest.raises(WriteFailed, match="belongs to the writer"):
        Batch(options, 0, "other").task(0, range(10))
    taking = Batch(options_for(broker, topic, takeOver="true"), 0, "other")
    assert taking.commit(taking.task(0, range(10, 20)))
    assert stored(broker, topic) == once(range(20))


def test_a_connection_that_is_lost_fails_its_task_and_doubles_nothing(
    broker: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = Batch(options_for(broker, topic), 0)
    write_parts, sent = Connection.write_parts, 0

    def lost_behind_the_fifth(self: Connection, parts: list[bytes]) -> None:
        nonlocal sent
        sent += 1
        write_parts(self, parts)
        if sent == 5:
            self.abort("the test wants it so")

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "write_parts", lost_behind_the_fifth)
        with pytest.raises(WriteFailed, match="not confirmed"):
            batch.task(0, range(200))
    assert batch.commit(batch.task(0, range(200)))
    assert stored(broker, topic) == once(range(200))


def test_an_entry_that_is_refused_alone_fails_its_task(broker: BrokerProcess, topic: str) -> None:
    batch = Batch(options_for(broker, topic), 0)
    written = [batch.task(number, range(number * 10, number * 10 + 10)) for number in range(MOST_OPEN)]
    with pytest.raises(WriteFailed, match="maxOpenTransactionsPerTopic"):
        batch.task(MOST_OPEN, range(1000))
    assert batch.commit(*written)
    assert stored(broker, topic) == once(range(MOST_OPEN * 10))


def test_rows_of_one_batch_for_several_topics_and_partitions_come_together(broker: BrokerProcess, topic: str) -> None:
    partitioned = topic + "-p"
    path = partitioned.replace("persistent://", "persistent/")
    assert call(f"{broker.http_url}/admin/v2/{path}/partitions", "PUT", body=3).status == 204
    batch = Batch(options_for(broker, partitioned, sinkId="many"), 0)
    written = [batch.task(number, range(number * 100, number * 100 + 100)) for number in range(2)]
    assert batch.commit(*written)
    assert stored(broker, partitioned) == once(range(200))


@pytest.mark.long
@pytest.mark.parametrize("step", ["task", "between", "commit", "answered"])
def test_a_broker_that_is_killed_at_any_step_costs_and_doubles_nothing(
    tmp_path: Path, topic: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BrokerProcess(tmp_path, SETTINGS).running() as own:
        options = options_for(own, topic)

        def killed() -> None:
            own.kill()
            own.start()

        if step == "commit":
            call = transactional_sinks._call

            def call_and_kill(access: Access, method: str, path: str, body: object) -> object:
                answer = call(access, method, path, body)
                if path.endswith("/commit"):
                    monkeypatch.setattr(transactional_sinks, "_call", call)
                    killed()
                    raise Unreachable("the answer is lost")
                return answer

            monkeypatch.setattr(transactional_sinks, "_call", call_and_kill)
        batch = Batch(options, 0)
        first = batch.task(0, range(100), dies=step == "task")
        if step in ("task", "between"):
            killed()
        if step == "task":
            first = batch.task(0, range(100))
        second = batch.task(1, range(100, 200))
        # Asked again after a lost answer, the broker says that the batch has been committed before.
        assert batch.commit(first, second) is (step != "commit")
        if step == "answered":
            killed()
        again = Batch(options, 0)
        assert not again.commit(again.task(0, range(200)))
        assert stored(own, topic) == once(range(200))

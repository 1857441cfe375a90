"""`/admin/v3/transactions/sinks`: transactions of a batch that are committed together, once; whose sinks are; limits."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.protocol.test_http_transactions import rest
from tests.protocol.test_transactions import TOPIC, Told, ask, ids
from tests.support.async_client import AsyncClient, binary_port
from tests.support.memory_broker import START_MS, MemoryBroker, memory_broker
from tests.support.rest import Answer, call

from pybroker.errors import PersistenceError
from pybroker.model.txn_id import TxnAction, TxnId
from pybroker.transactions.participant_notification import Participant
from pybroker.transactions.sinks import home_of
from pybroker.wire import pulsar_api_pb2 as pb

B = pb.BaseCommand


@pytest.fixture
def told(broker: MemoryBroker) -> Told:
    return Told(broker)


@pytest.fixture
async def client(broker: MemoryBroker, told: Told) -> AsyncIterator[AsyncClient]:
    async with binary_port(broker) as port:
        yield await port.connect()


async def post(broker: MemoryBroker, path: str, **body: Any) -> Answer:
    return await rest(broker, f"sinks/{path}", "POST", body)


async def opened(broker: MemoryBroker, client: AsyncClient, sink: str, batch: int, topic: str, **more: Any) -> TxnId:
    answer = await post(broker, f"{sink}/open", batch=batch, **more)
    assert answer.status == 200, answer
    txn = TxnId(answer.json["most"], answer.json["least"])
    assert "error" not in await ask(client, B.ADD_PARTITION_TO_TXN, **ids(txn), partitions=[topic])
    return txn


async def test_transactions_of_a_batch_are_committed_together_and_once(
    broker: MemoryBroker, client: AsyncClient, told: Told
) -> None:
    first = await opened(broker, client, "s", 7, TOPIC, writer="q")
    second = await opened(broker, client, "s", 7, TOPIC, writer="q")
    lost = await opened(broker, client, "s", 7, TOPIC, writer="q")
    shown = (await rest(broker, "sinks/s")).json
    assert (shown["coordinator"], shown["openTransactionCount"]) == (home_of("s"), 3)
    assert "lastBatch" not in shown
    broker.clock.now_ms += 5
    group = [first, second]
    answer = await post(broker, "s/commit", batch=7, transactions=group, writer="q")
    assert (answer.status, answer.json) == (200, {"isRepeat": False, "batch": 7})
    for txn in group:
        assert told.of(txn) == [(Participant(TOPIC), TxnAction.COMMIT)]
    await broker.until(lambda: told.of(lost) == [(Participant(TOPIC), TxnAction.ABORT)])
    again = await post(broker, "s/commit", batch=7, transactions=group, writer="q")
    assert (again.status, again.json) == (200, {"isRepeat": True, "batch": 7})
    earlier = await post(broker, "s/commit", batch=3, transactions=[(home_of("s"), 99)], writer="q")
    assert earlier.json["isRepeat"], "a batch that is older than the last is a repeat as well"
    assert (await post(broker, "s/open", batch=7, writer="q")).json == {"isCommitted": True}
    shown = (await rest(broker, "sinks/s")).json
    assert (shown["lastBatch"], shown["committedTimestamp"], shown["writer"]) == (7, START_MS + 5, "q")
    assert (await rest(broker, "sinks")).json == {"s": shown}
    assert (await rest(broker, "sinks?after=s")).json == {}


async def test_metrics_count_batches_and_those_that_came_again(broker: MemoryBroker) -> None:
    for batch in (0, 1, 1, 0):
        await post(broker, "s/commit", batch=batch)
    page = (await asyncio.to_thread(call, f"http://127.0.0.1:{broker.port}/metrics/")).text
    label = f'{{cluster="standalone",coordinator_id="{home_of("s")}"}}'
    for name, value in (("sinks", 1), ("sink_batches_total", 2), ("sink_batches_repeated_total", 2)):
        assert f"pybroker_txn_{name}{label} {value}\n" in page


async def test_a_batch_of_which_one_transaction_is_over_is_refused_as_a_whole(
    broker: MemoryBroker, client: AsyncClient, told: Told
) -> None:
    good = await opened(broker, client, "s", 1, TOPIC)
    over = await opened(broker, client, "s", 1, TOPIC)
    assert "error" not in await ask(client, B.END_TXN, **ids(over), txn_action=pb.ABORT)
    refused = await post(broker, "s/commit", batch=1, transactions=[good, over])
    assert refused.status == 404
    foreign = await opened(broker, client, "t", 1, TOPIC)
    assert home_of("t") != home_of("s")
    refused = await post(broker, "s/commit", batch=1, transactions=[good, foreign])
    assert refused.status == 404
    assert "Nothing was committed" in refused.json["reason"]
    assert told.of(good) == []
    assert (await rest(broker, "sinks/s")).json["openTransactionCount"] == 1
    assert (await post(broker, "s/commit", batch=1, transactions=[good])).status == 200


async def test_an_empty_batch_moves_the_mark(broker: MemoryBroker) -> None:
    assert (await rest(broker, "sinks/s")).status == 404
    assert (await post(broker, "s/commit", batch=0)).json == {"isRepeat": False, "batch": 0}
    assert (await rest(broker, "sinks/s")).json["lastBatch"] == 0


async def test_a_later_run_leaves_nothing_open_of_the_one_before(
    broker: MemoryBroker, client: AsyncClient, told: Told
) -> None:
    old = await opened(broker, client, "s", 4, TOPIC, run="one")
    same = await opened(broker, client, "s", 4, TOPIC, run="two")
    await broker.until(lambda: told.of(old) == [(Participant(TOPIC), TxnAction.ABORT)])
    speculative = await opened(broker, client, "s", 4, TOPIC, run="two")
    assert told.of(same) == [], "another attempt of the same run"
    assert (await post(broker, "s/abort", batch=3)).json == {"aborted": 0}
    assert (await post(broker, "s/abort")).json == {"aborted": 2}
    assert told.of(same) == told.of(speculative) == [(Participant(TOPIC), TxnAction.ABORT)]


async def test_another_writer_is_refused_before_it_loses_rows_until_it_takes_over(
    broker: MemoryBroker, client: AsyncClient
) -> None:
    assert (await post(broker, "s/commit", batch=9, writer="a")).status == 200
    for path in ("s/open", "s/commit"):
        refused = await post(broker, path, batch=0, writer="b")
        assert refused.status == 409
        assert "take over the sink" in refused.json["reason"]
    txn = await opened(broker, client, "s", 0, TOPIC, writer="b", takeOver=True)
    assert (await post(broker, "s/commit", batch=0, writer="b", transactions=[txn], takeOver=True)).status == 200
    assert (await rest(broker, "sinks/s")).json["writer"] == "b"


async def test_a_sink_is_forgotten_by_delete_but_not_while_it_has_open_transactions(
    broker: MemoryBroker, client: AsyncClient
) -> None:
    assert (await rest(broker, "sinks/s", "DELETE")).status == 404
    await post(broker, "s/commit", batch=9)
    txn = await opened(broker, client, "s", 10, TOPIC)
    assert (await rest(broker, "sinks/s", "DELETE")).status == 409
    assert "error" not in await ask(client, B.END_TXN, **ids(txn), txn_action=pb.ABORT)
    assert (await rest(broker, "sinks/s", "DELETE")).status == 204
    assert (await rest(broker, "sinks/s")).status == 404
    assert not (await post(broker, "s/commit", batch=0)).json["isRepeat"]


async def test_what_cannot_be_told_yet_is_committed_all_the_same(
    broker: MemoryBroker, client: AsyncClient, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pybroker.admin.transactions.sink_routes.END_WAIT_S", 0.05)
    txn = await opened(broker, client, "s", 1, TOPIC)
    told.refuse[TOPIC] = PersistenceError("no disk")
    for is_repeat in (False, True):
        answer = await post(broker, "s/commit", batch=1, transactions=[txn])
        assert (answer.status, answer.json["isRepeat"]) == (202, is_repeat)
    waiting = asyncio.ensure_future(post(broker, "s/commit", batch=1, transactions=[txn]))
    del told.refuse[TOPIC]
    await broker.until(lambda: told.of(txn) == [(Participant(TOPIC), TxnAction.COMMIT)])
    assert (await waiting).json["isRepeat"]


async def test_limits_of_sinks_are_answered_with_their_keys() -> None:
    limits = {"max_transactions_committed_together": 1, "max_transaction_sinks_per_coordinator": 1}
    async with memory_broker(**limits) as broker:  # type: ignore[arg-type]
        refused = await post(broker, "s/commit", batch=1, transactions=[(home_of("s"), 1)] * 2)
        assert refused.status == 405
        assert "maxTransactionsCommittedTogether" in refused.json["reason"]
        assert (await post(broker, "s/commit", batch=1)).status == 200
        other = next(name for name in map(str, range(1000)) if home_of(name) == home_of("s"))
        refused = await post(broker, f"{other}/commit", batch=1)
        assert refused.status == 429
        assert "maxTransactionSinksPerCoordinator" in refused.json["reason"]
        assert (await post(broker, "s/commit", batch=2)).status == 200, "one that is known goes on"
        broker.clock.now_ms += broker.service.runtime.config.transaction_sink_retention_in_minutes * 60_000
        assert (await post(broker, f"{other}/commit", batch=1)).status == 200
        assert (await rest(broker, "sinks/s")).status == 404


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("s/open", {"batch": -1}, 412),
        ("s/commit", {"batch": 1 << 63}, 412),
        ("s/open", {"batch": 1, "writer": "w" * 257}, 412),
        ("s" * 257 + "/open", {"batch": 1}, 412),
        ("%0a/open", {"batch": 1}, 412),
        ("s/open", {}, 400),
        ("s/commit", {"batch": 1, "transactions": [[1]]}, 400),
        ("s/commit", {"batch": 1, "transactions": [["x", 1]]}, 400),
        ("s/abort", {"batch": -1}, 412),
    ],
)
async def test_what_is_no_batch_is_refused(
    broker: MemoryBroker, path: str, body: dict[str, object], status: int
) -> None:
    answer = await post(broker, path, **body)
    assert answer.status == status, answer
    assert not broker.service.transactions.running(), "nothing was begun for it"

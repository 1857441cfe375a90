"""`kill -9` while transactions are opened and ended: what was answered as committed is there, once, and nothing hangs."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import CLOSED, NOTHING, RawClient

from pybroker.wire import pulsar_api_pb2 as pb

pytestmark = pytest.mark.long

B = pb.BaseCommand
TOPICS = ["persistent://public/default/a", "persistent://public/default/b"]
KILLS = 6
SETTINGS = {"managedLedgerMaxEntriesPerLedger": "200", "managedLedgerMinLedgerRolloverTimeMinutes": "0"}


class Worker:
    """Publishes one message to each topic in each transaction, and remembers how it was answered to have ended."""

    def __init__(self, outcomes: dict[str, str], seed: int) -> None:
        self.outcomes = outcomes
        self.ids: list[tuple[str, str]] = []
        self._random = Random(seed)
        self._name = f"w{seed}"
        self._next = 0

    def run(self, url: str) -> None:
        """Until the broker is killed."""
        try:
            client = RawClient(url)
        except OSError:
            return
        try:
            client.connect()
            self._prepare(client)
            while not client.closed:
                self._transaction(client)
        except (EOFError, OSError):
            pass
        finally:
            client.close()

    def _ask(self, client: RawClient, kind: Any, **fields: Any) -> dict[str, Any]:
        answer = client.request(kind, **fields)
        if answer in (CLOSED, NOTHING):
            assert answer == CLOSED, f"{kind} was never answered"
            raise EOFError
        return answer

    def _prepare(self, client: RawClient) -> None:
        assert "error" not in self._ask(client, B.TC_CLIENT_CONNECT_REQUEST, tc_id=0)
        for index, topic in enumerate(TOPICS):
            name = f"{self._name}-{index}"
            opened = self._ask(client, B.PRODUCER, topic=topic, producer_id=index, producer_name=name, txn_enabled=True)
            while opened.get("error") == "ProducerBusy":
                opened = self._ask(client, B.PRODUCER, topic=topic, producer_id=index, producer_name=name)
            assert opened["type"] == "PRODUCER_SUCCESS", opened

    def _transaction(self, client: RawClient) -> None:
        answer = self._ask(client, B.NEW_TXN, tc_id=0, txn_ttl_seconds=600_000)
        assert "error" not in answer, answer
        most, least = answer["txnid_most_bits"], answer["txnid_least_bits"]
        self.ids.append((most, least))
        ids = {"txnid_most_bits": int(most), "txnid_least_bits": int(least)}
        assert "error" not in self._ask(client, B.ADD_PARTITION_TO_TXN, **ids, partitions=TOPICS)
        text = f"{self._name}-{self._next}"
        self._next += 1
        commits = self._random.random() < 0.7
        for index in range(len(TOPICS)):
            client.send_message(index, self._next, text.encode(), metadata=ids, **ids)
            receipt = client.reply()
            if receipt == CLOSED:
                raise EOFError
            assert receipt["type"] == "SEND_RECEIPT", receipt
        self.outcomes[text] = "asked to commit" if commits else "aborted"
        answer = self._ask(client, B.END_TXN, **ids, txn_action=pb.COMMIT if commits else pb.ABORT)
        assert "error" not in answer, answer
        if commits:
            self.outcomes[text] = "committed"


def delivered(client: RawClient, topic: str) -> list[str]:
    """What the subscription gets, until nothing comes any more."""
    assert client.subscribe(topic, consumer_id=TOPICS.index(topic))["type"] == "SUCCESS"
    client.send(B.FLOW, consumer_id=TOPICS.index(topic), messagePermits=100_000)
    found: list[str] = []
    while (message := client.reply(3.0))["type"] == "MESSAGE":
        found.append(message["payload"])
    return found


def test_what_was_committed_is_everywhere_once_and_what_was_not_is_nowhere(tmp_path: Path) -> None:
    outcomes: dict[str, str] = {}
    workers = [Worker(outcomes, seed) for seed in range(3)]
    broker = BrokerProcess(tmp_path, SETTINGS)
    random = Random(1)
    with broker.running() as first:
        client = RawClient(first.url)
        client.connect()
        for index, topic in enumerate(TOPICS):  # keeps all messages: ledgers that nobody needs are deleted
            assert client.subscribe(topic, consumer_id=index)["type"] == "SUCCESS"
        client.close()
    for _ in range(KILLS):
        broker.start()
        threads = [threading.Thread(target=worker.run, args=(broker.url,)) for worker in workers]
        for thread in threads:
            thread.start()
        threading.Event().wait(random.uniform(0.5, 1.5))
        broker.kill()
        for thread in threads:
            thread.join()
    given = [each for worker in workers for each in worker.ids]
    assert len(given) == len(set(given)), "an id was given twice"
    with broker.running() as last:
        client = RawClient(last.url)
        client.connect()
        client.request(B.TC_CLIENT_CONNECT_REQUEST, tc_id=0)
        for most, least in given:  # what was open when the broker died holds readers back until its time-out
            client.request(B.END_TXN, txnid_most_bits=int(most), txnid_least_bits=int(least), txn_action=pb.ABORT)
        seen = [delivered(client, topic) for topic in TOPICS]
        client.close()
    assert sorted(seen[0]) == sorted(seen[1]), "a transaction is there in part"
    assert len(seen[0]) == len(set(seen[0])), "a message came twice"
    committed = {text for text, outcome in outcomes.items() if outcome == "committed"}
    aborted = {text for text, outcome in outcomes.items() if outcome == "aborted"}
    assert committed, "nothing was committed"
    assert committed <= set(seen[0])
    assert not aborted & set(seen[0])

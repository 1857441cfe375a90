"""Data directories that were written before version 2 of the store open, are converted, and lose nothing.

`tests/data/store-version-1` holds two, of version 1: after an orderly stop, and after `kill -9` with a live journal. Both have
the topics `orders` and `logs`; of the messages `<topic>-<number>` the subscription `readers` has acknowledged all but every third.
"""

import tarfile
from pathlib import Path

import pulsar
import pytest
from tests.clients.conftest import assert_nothing_arrives, close_after_kill, new_client, receive_all
from tests.support.broker_process import BrokerProcess

from pybroker.cli import main

SAMPLES = Path(__file__).resolve().parents[1] / "data" / "store-version-1"
TOPICS = ("orders", "logs")
SETTINGS = {"journalFileSizeMB": "1", "storageReserveMB": "1"}


@pytest.mark.parametrize(("sample", "count"), [("stopped", 150), ("killed", 190)])
def test_a_directory_of_the_first_version_opens_with_everything(sample: str, count: int, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, SETTINGS)
    with tarfile.open(SAMPLES / f"{sample}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / sample).rename(broker.data)
    assert main(["ledger", "verify", str(broker.data)]) == 0
    numbers = list(range(count))
    for is_killed in (True, False):
        broker.start()
        client = new_client(broker.url)
        for topic in TOPICS:
            reader = client.create_reader(topic, pulsar.MessageId.earliest)
            wanted = [f"{topic}-{number}".encode() for number in numbers]
            assert [reader.read_next(5000).data() for _ in wanted] == wanted
            consumer = client.subscribe(topic, "readers", pulsar.ConsumerType.Shared)
            unacknowledged = [f"{topic}-{number}".encode() for number in numbers if number % 3 == 0]
            assert sorted(message.data() for message in receive_all(consumer, len(unacknowledged))) == sorted(
                unacknowledged
            )
            assert_nothing_arrives(consumer)
            producer = client.create_producer(topic)
            producer.send(f"{topic}-{len(numbers) * 3}".encode())  # a number that stays unacknowledged
        numbers.append(len(numbers) * 3)
        if is_killed:
            broker.kill()
            close_after_kill(client)
        else:
            client.close()
            assert broker.stop() == 0
    assert main(["ledger", "verify", str(broker.data)]) == 0
    assert "Traceback" not in broker.log.read_text()

"""Several readers in every mode while the topic is published to, unloaded, trimmed and left behind by its ledgers."""

import contextlib
import threading
from pathlib import Path
from typing import Self

import pytest
from tests.clients.conftest import new_client
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call
from tests.tables.stored import bodies_of, publish

from pybroker.client.access import Access
from pybroker.reading.entry_source import DataLoss
from pybroker.reading.positions import Place
from pybroker.reading.read_options import SourceOptions
from pybroker.reading.sources import open_source

TOPIC = "persistent://public/default/t"
ROUNDS = 12
BATCH = 60


def url(broker: BrokerProcess, what: str) -> str:
    return f"{broker.http_url}/admin/v2/persistent/public/default/t/{what}"


class Readers:
    """Threads that read the topic on from where they were, until `last` messages were seen."""

    def __init__(self, broker: BrokerProcess, modes: tuple[str, ...], last: int) -> None:
        self.seen: list[list[bytes]] = [[] for _ in modes]
        self.failures: list[Exception] = []
        self._broker = broker
        self._last = last
        self._threads = [
            threading.Thread(target=self._run, args=(mode, seen)) for mode, seen in zip(modes, self.seen, strict=True)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()

    def _run(self, mode: str, seen: list[bytes]) -> None:
        try:
            self._read(mode, seen)
        except Exception as error:  # noqa: BLE001 - told by the test
            self.failures.append(error)

    def _read(self, mode: str, seen: list[bytes]) -> None:
        options = SourceOptions(Access(self._broker.url, self._broker.http_url), mode, patience_s=30)
        with contextlib.closing(open_source(options)) as source:
            place: Place | None = None
            while len(seen) < self._last:
                plan = source.plan(TOPIC, place)
                if plan.lost:
                    raise DataLoss(plan.lost[0])
                seen += bodies_of(source, plan)
                place = plan.end


@pytest.mark.parametrize("is_trimmed", [False, True])
def test_readers_see_everything_once_and_in_order_or_are_told_what_is_gone(tmp_path: Path, is_trimmed: bool) -> None:
    keep = "0" if is_trimmed else "-1"
    settings = {"defaultRetentionTimeInMinutes": keep, "defaultRetentionSizeInMB": keep}
    with BrokerProcess(tmp_path, settings).running() as broker:
        client = new_client(broker.url)
        sent = publish(client, TOPIC, BATCH, size=3000)
        with Readers(broker, ("segment", "bulk", "segment", "bulk"), BATCH * ROUNDS) as readers:
            for number in range(1, ROUNDS):
                assert call(url(broker, "unload"), "PUT").status == 204
                sent += publish(client, TOPIC, BATCH, size=3000, serial=number * BATCH)
                if is_trimmed:
                    assert call(url(broker, "trim"), "POST").status in {200, 204}
        client.close()
    if is_trimmed:
        assert all(isinstance(each, DataLoss) for each in readers.failures)
    else:
        assert readers.failures == []
    assert "Traceback" not in broker.log.read_text()
    for seen in readers.seen:
        first = sent.index(seen[0]) if seen else 0  # who begins late begins with what is left
        assert seen == sent[first : first + len(seen)]
        assert is_trimmed or len(seen) == len(sent)

"""`kill -9`: a version that was answered is there after it, none is given twice, and a deletion stays one."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import RawClient, Type
from tests.support.rest import call
from tests.support.schemas import body, record, wire

SCHEMAS = "/admin/v2/schemas/public/default"
KILLS = 4
CLIENTS = 3


def shown(broker: BrokerProcess, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = call(f"{broker.http_url}{SCHEMAS}/{topic}/schemas").json["getSchemaResponses"]
    return found


def definition(client: int, serial: int) -> str:
    return record(("id", "string"), (f"f{client}_{serial}", "string", ""))


class Uploader:
    """Registers one schema after the other until the broker is gone, and remembers what was answered."""

    def __init__(self, broker: BrokerProcess, client: int, serial: int, answered: dict[str, bytes]) -> None:
        self._client = client
        self.serial = serial
        self._answered = answered
        self._raw = RawClient(broker.url)
        self._raw.connect()
        self.under_way = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        topic = "persistent://public/default/t"
        self._raw.open_producer(topic, self._client)
        while not self._raw.closed:
            text = definition(self._client, self.serial)
            self.serial += 1
            reply = self._raw.request(Type.GET_OR_CREATE_SCHEMA, topic=topic, schema=wire("Avro", text))
            if "schema_version" in reply:
                self._answered[text] = reply["schema_version"]
                self.under_way.set()
        self._raw.close()


def test_versions_that_were_answered_survive_kills_under_load(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path).start()
    answered: dict[str, bytes] = {}
    serials = [0] * CLIENTS
    try:
        for _ in range(KILLS):
            uploaders = [Uploader(broker, client, serials[client], answered) for client in range(CLIENTS)]
            for uploader in uploaders:
                assert uploader.under_way.wait(60)
            broker.kill()
            for uploader in uploaders:
                uploader.thread.join()
            serials = [uploader.serial for uploader in uploaders]
            broker.start()
            stored = shown(broker, "t")
            assert [each["version"] for each in stored] == list(range(len(stored)))
            assert len({each["data"] for each in stored}) == len(stored)
            raw = RawClient(broker.url)
            raw.connect()
            raw.open_producer("persistent://public/default/t")
            for text, version in answered.items():
                reply = raw.request(
                    Type.GET_OR_CREATE_SCHEMA, topic="persistent://public/default/t", schema=wire("Avro", text)
                )
                assert reply["schema_version"] == version
            raw.close()
    finally:
        broker.stop()


def test_deletions_survive_a_kill_and_versions_go_on(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path).start()
    try:
        for topic in ("deleted", "dropped", "again"):
            assert call(f"{broker.http_url}{SCHEMAS}/{topic}/schema", "POST", body=body("", "STRING")).status == 200
        assert call(f"{broker.http_url}{SCHEMAS}/deleted/schema", "DELETE").json == {"version": 1}
        assert call(f"{broker.http_url}{SCHEMAS}/dropped/schema?force=true", "DELETE").json == {"version": -1}
        assert call(f"{broker.http_url}{SCHEMAS}/again/schema", "DELETE").json == {"version": 1}
        assert call(f"{broker.http_url}{SCHEMAS}/again/schema", "POST", body=body("", "INT8")).status == 200
        before = [shown(broker, topic) for topic in ("deleted", "dropped", "again")]
        broker.kill()
        broker.start()
        assert [shown(broker, topic) for topic in ("deleted", "dropped", "again")] == before
        for topic, version in (("deleted", 2), ("dropped", 0)):
            answer = call(f"{broker.http_url}{SCHEMAS}/{topic}/schema", "POST", body=body("", "INT8"))
            assert answer.json == {"version": {"version": version}}
        assert call(f"{broker.http_url}{SCHEMAS}/again/schema").json["type"] == "INT8"
    finally:
        broker.stop()

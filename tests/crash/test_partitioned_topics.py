"""`kill -9` while partitioned topics are made, grown and deleted: what was answered holds, the rest can be put right."""

import threading
import urllib.error
from http.client import HTTPException

import pulsar
from tests.clients.conftest import new_client
from tests.support.broker_process import BrokerProcess
from tests.support.rest import Answer, call

NAMESPACE = "/persistent/public/default"
PARTITIONS = 20
ENOUGH = 4  # topics of one cycle that are answered before the kill


def rest(broker: BrokerProcess, method: str, path: str, body: object = None) -> Answer:
    return call(f"{broker.http_url}/admin/v2{NAMESPACE}{path}", method, body=body)


class Changes:
    """Makes, grows and deletes partitioned topics, one after the other, until the broker is gone."""

    def __init__(self, broker: BrokerProcess, cycle: int) -> None:
        self._broker = broker
        self._cycle = cycle
        self.partitions: dict[str, int] = {}  # of what was answered; 0 for what is deleted
        self.uncertain: set[str] = set()  # asked for and not answered
        self.are_enough = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            for number in range(1000):
                name = f"t-{self._cycle}-{number}"
                self._change(name, "PUT", PARTITIONS, PARTITIONS)
                if number % 3 == 1:
                    self._change(name, "POST", PARTITIONS + 5, PARTITIONS + 5)
                if number % 3 == 2:
                    self._change(name, "DELETE", None, 0)
                if number == ENOUGH:
                    self.are_enough.set()
        except (urllib.error.URLError, HTTPException, OSError):
            self.are_enough.set()

    def _change(self, name: str, method: str, body: int | None, partitions: int) -> None:
        self.uncertain.add(name)
        answer = rest(self._broker, method, f"/{name}/partitions", body)
        assert answer.status == 204, answer
        self.partitions[name] = partitions
        self.uncertain.discard(name)


def test_what_was_answered_is_there_after_a_kill_and_the_rest_can_be_put_right(broker: BrokerProcess) -> None:
    for cycle in range(3):
        changes = Changes(broker, cycle)
        assert changes.are_enough.wait(30)
        broker.kill()
        changes.join()
        broker.start()
        listed = set(rest(broker, "GET", "").json)
        for name, partitions in changes.partitions.items():
            if name in changes.uncertain:
                continue
            shown = rest(broker, "GET", f"/{name}/partitions")
            assert (shown.json["partitions"] if shown.status == 200 else 0) == partitions, name
            expected = {f"persistent://public/default/{name}-partition-{index}" for index in range(partitions)}
            assert expected == {each for each in listed if each.startswith(f"persistent://public/default/{name}-")}
        for name in changes.uncertain:
            put_right(broker, name)


def put_right(broker: BrokerProcess, name: str) -> None:
    """Half made, half grown or half deleted: it works once it is made, or made whole, again."""
    if rest(broker, "GET", f"/{name}/partitions").status == 404:
        assert rest(broker, "PUT", f"/{name}/partitions", PARTITIONS).status == 204
    assert rest(broker, "POST", f"/{name}/createMissedPartitions").status == 204
    assert rest(broker, "POST", f"/{name}/partitions", PARTITIONS + 5).status == 204
    client = new_client(broker.url)
    producer = client.create_producer(name, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution)
    used = {producer.send(b"x").partition() for _ in range(PARTITIONS + 5)}
    assert used == set(range(PARTITIONS + 5))
    client.close()
    assert rest(broker, "DELETE", f"/{name}/partitions?force=true").status == 204
    assert not [each for each in rest(broker, "GET", "").json if f"/{name}-partition-" in each]

"""Namespaces and topics made, grown, unloaded, used and deleted by several threads at once, with `kill -9` in between.

What must hold: nothing is answered with a fault; a topic that was answered as made serves its clients; after each kill the lists
of REST are what was answered, but for the one call of each thread that the kill has cut off. CHURN_SEED replays the choices
of a run (not when the kills hit), CHURN_CALLS sets how much is done in each life of the broker.
"""

import contextlib
import os
import random
import threading
import time
import urllib.error
from collections.abc import Callable
from http.client import HTTPException

import pulsar
import pytest
from tests.clients.conftest import new_client, until
from tests.support.broker_process import BrokerProcess
from tests.support.rest import Answer, call

THREADS = 4
LIVES = 3
LIFE_CALLS = int(os.environ.get("CHURN_CALLS", "200"))
NAMES = 6  # of topics in a namespace: few, so that they are made again after they were deleted
SETTINGS = {
    "allowAutoTopicCreation": "false",
    "forceDeleteNamespaceAllowed": "true",
    "forceDeleteTenantAllowed": "true",
    "brokerDeleteInactiveTopicsEnabled": "false",
    "logLevel": "warning",
}
GONE = (urllib.error.URLError, HTTPException, OSError)


class Churn:
    """One thread, the only one that changes its namespaces. `namespaces` is what the broker has answered: topics, with their
    number of partitions, 0 for none; `uncertain` what its last call was about."""

    def __init__(self, broker: BrokerProcess, number: int, seed: int) -> None:
        self._broker = broker
        self._random = random.Random(f"{seed}-{number}")
        self._names = [f"public/churn-{number}-{index}" for index in range(2)]
        self.namespaces: dict[str, dict[str, int]] = {}
        self.uncertain: tuple[str, str] | None = None  # namespace, and topic or nothing
        self.faults: list[str] = []
        self.calls = 0
        self.is_ending = False
        self._client: pulsar.Client | None = None
        self._thread = threading.Thread()

    def start(self) -> None:
        self.is_ending = False
        self._client = new_client(self._broker.url)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the step under way; what clients do in it goes on with the broker that was started again."""
        assert self._client is not None
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        try:
            while not self.is_ending:
                self._step()
                self.calls += 1
        except GONE:
            pass
        except Exception as error:  # noqa: BLE001  (the test reads it)
            self.faults.append(f"{type(error).__name__}: {error}")

    def _step(self) -> None:
        namespace = self._random.choice(self._names)
        topics = self.namespaces.get(namespace)
        if topics is None:
            self._make_namespace(namespace)
            return
        topic = f"t{self._random.randrange(NAMES)}"
        if topic not in topics:
            self._make(namespace, topic)
            return
        steps: list[tuple[int, Callable[[str, str], None]]] = [
            (4, self._use),
            (4, self._delete),
            (3, self._grow),
            (3, self._unload),
            (1, self._unload_namespace),
            (1, self._delete_namespace),
        ]
        (step,) = self._random.choices([step for _, step in steps], [weight for weight, _ in steps])
        step(namespace, topic)

    # --- steps -------------------------------------------------------------------------------------------------------

    def _rest(self, method: str, path: str, body: object = None) -> bool:
        """Whether it was done. A topic or namespace that is just being loaded or closed is asked for again."""
        for _ in range(200):
            answer: Answer = call(f"{self._broker.http_url}/admin/v2{path}", method, body=body)
            if answer.status not in {503, 429}:
                break
            time.sleep(0.05)
        if answer.status >= 500 or not 200 <= answer.status < 300:
            self.faults.append(f"{method} {path}: {answer.status} {answer.text}")
        return 200 <= answer.status < 300

    def _about(self, namespace: str, topic: str, method: str, path: str, body: object = None) -> bool:
        """A call that changes something: until it is answered nobody knows whether it did."""
        self.uncertain = (namespace, topic)
        done = self._rest(method, path, body)
        self.uncertain = None
        return done

    def _make_namespace(self, namespace: str) -> None:
        if self._about(namespace, "", "PUT", f"/namespaces/{namespace}", {"bundles": {"numBundles": 4}}):
            self.namespaces[namespace] = {}

    def _delete_namespace(self, namespace: str, _: str) -> None:
        if self._about(namespace, "", "DELETE", f"/namespaces/{namespace}?force=true"):
            del self.namespaces[namespace]

    def _make(self, namespace: str, topic: str) -> None:
        partitions = self._random.choice((0, 0, 1, 3, 8))
        path = f"/persistent/{namespace}/{topic}" + ("/partitions" if partitions else "")
        if self._about(namespace, topic, "PUT", path, partitions or None):
            self.namespaces[namespace][topic] = partitions

    def _delete(self, namespace: str, topic: str) -> None:
        path = f"/persistent/{namespace}/{topic}" + ("/partitions" if self.namespaces[namespace][topic] else "")
        if self._about(namespace, topic, "DELETE", f"{path}?force=true"):
            del self.namespaces[namespace][topic]

    def _grow(self, namespace: str, topic: str) -> None:
        partitions = self.namespaces[namespace][topic]
        if not partitions or partitions > 20:
            return
        more = partitions + self._random.randrange(1, 4)
        if self._about(namespace, topic, "POST", f"/persistent/{namespace}/{topic}/partitions", more):
            self.namespaces[namespace][topic] = more

    def _unload(self, namespace: str, topic: str) -> None:
        self._rest("PUT", f"/persistent/{namespace}/{topic}/unload")

    def _unload_namespace(self, namespace: str, _: str) -> None:
        self._rest("PUT", f"/namespaces/{namespace}/unload")

    def _use(self, namespace: str, topic: str) -> None:
        """Send and get a message, over a subscription that exists perhaps."""
        assert self._client is not None
        name = f"persistent://{namespace}/{topic}"
        consumer = self._client.subscribe(name, "s", pulsar.ConsumerType.Shared)
        producer = self._client.create_producer(name, send_timeout_millis=10_000)
        body = str(self.calls).encode()
        producer.send(body)
        self._unload(namespace, topic)
        while True:
            message = consumer.receive(30_000)
            consumer.acknowledge(message)
            if message.data() == body:
                break
        producer.close()
        consumer.close()


class SteadyClients:
    """A producer and a consumer on a topic that nobody changes; what was receipted must come, whatever goes on beside it."""

    TOPIC = "persistent://public/default/steady"

    def __init__(self, url: str, life: int) -> None:
        self._life = life
        self._client = new_client(url)
        self._consumer = self._client.subscribe(self.TOPIC, "s")
        self._producer = self._client.create_producer(self.TOPIC)
        self._is_over = threading.Event()
        self.sent: list[bytes] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            body = f"{self._life}-{len(self.sent)}".encode()
            try:
                self._producer.send(body)
            except pulsar.PulsarException:
                return
            self.sent.append(body)
            self._is_over.wait(0.005)  # Others are to get on, too.

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def received(self) -> list[bytes]:
        """All of it, each once, in order; without what a kill has cut off from its acknowledgement, which comes again."""
        bodies: list[bytes] = []
        while len(bodies) < len(self.sent):
            message = self._consumer.receive(30_000)
            self._consumer.acknowledge(message)
            if message.data().startswith(f"{self._life}-".encode()):
                bodies.append(message.data())
        return bodies

    def close(self) -> None:
        with contextlib.suppress(pulsar.PulsarException):
            self._client.close()


def listed(broker: BrokerProcess, path: str) -> set[str]:
    answer = call(f"{broker.http_url}/admin/v2{path}")
    assert answer.status == 200, (path, answer)
    return set(answer.json)


def check(broker: BrokerProcess, churn: Churn) -> None:
    """The lists are what was answered, but for what is uncertain, which is adopted as it is found."""
    present = {name for name in listed(broker, "/namespaces/public") if name in churn._names}
    cut = churn.uncertain
    unknown = {cut[0]} if cut is not None and not cut[1] else set()
    assert present - unknown == set(churn.namespaces) - unknown
    for namespace in unknown:
        churn.namespaces.pop(namespace, None)
        if namespace in present:  # Whatever is left of it.
            assert call(f"{broker.http_url}/admin/v2/namespaces/{namespace}?force=true", "DELETE").status in {204, 404}
    for namespace, topics in churn.namespaces.items():
        about = cut[1] if cut is not None and cut[0] == namespace else ""
        if about:
            put_away(broker, namespace, about)
            topics.pop(about, None)
        partitioned = {f"persistent://{namespace}/{name}" for name, count in topics.items() if count}
        assert listed(broker, f"/persistent/{namespace}/partitioned") == partitioned
        single = {f"persistent://{namespace}/{name}" for name, count in topics.items() if not count}
        partitions = {
            f"persistent://{namespace}/{name}-partition-{index}"
            for name, count in topics.items()
            for index in range(count)
        }
        assert listed(broker, f"/persistent/{namespace}") == single | partitions
    churn.uncertain = None


def put_away(broker: BrokerProcess, namespace: str, topic: str) -> None:
    """A topic that was being made, grown or deleted when the broker was killed can be deleted, and is gone then."""
    base = f"{broker.http_url}/admin/v2/persistent/{namespace}"
    for path in (f"{topic}/partitions", topic):
        assert call(f"{base}/{path}?force=true", "DELETE").status in {204, 404, 409, 412}
    assert not [each for each in listed(broker, f"/persistent/{namespace}") if f"/{topic}" in each.removesuffix(topic)]


def await_calls(churns: list[Churn], count: int) -> None:
    """Until so many steps were done in all, or one has gone wrong."""
    until(lambda: sum(churn.calls for churn in churns) >= count or any(churn.faults for churn in churns), timeout_s=600)


@pytest.mark.long
def test_what_was_answered_is_what_is_listed_after_kills(broker: BrokerProcess) -> None:
    seed = int(os.environ.get("CHURN_SEED", "1"))
    assert call(f"{broker.http_url}/admin/v2/persistent/public/default/steady", "PUT").status == 204
    churns = [Churn(broker, number, seed) for number in range(THREADS)]
    moment = random.Random(seed)
    for life in range(LIVES):
        steady = SteadyClients(broker.url, life)
        calls = sum(churn.calls for churn in churns)
        for churn in churns:
            churn.start()
        await_calls(churns, calls + round(LIFE_CALLS * moment.uniform(0.5, 1.5)))
        steady.stop()
        assert steady.received() == steady.sent
        assert 'pybroker_bugs_total{cluster="standalone"} 0' in broker.get("/metrics")
        for churn in churns:
            churn.is_ending = True
        broker.kill()
        broker.start()
        for churn in churns:
            churn.join()
        steady.close()
        assert not [fault for churn in churns for fault in churn.faults]
        for churn in churns:
            check(broker, churn)
        assert broker.get("/admin/v2/brokers/health") == "ok"

"""What a scenario of a storm is, and what its actors work with.

A scenario runs in several processes at once. Each has threads, the actors, which do things after small random delays and note
what came of it. What is drawn at random follows the seed; the timing is the machine's.

Invariant: a scenario touches only its own namespaces, whose names carry the run's token, so that nothing is left over from another.
"""

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.synchronize import Barrier
from random import Random
from typing import Any, ClassVar
from urllib.parse import quote

import pulsar
from tests.storm.brokers import StormBroker
from tests.storm.outcomes import OK, TIMEOUT, Outcome
from tests.support.rest import Answer, call

MEET_TIMEOUT_S = 120.0
DELAY_S = 0.02
TENANT = "storm"


@dataclass(frozen=True)
class Place:
    """Where a storm takes place: a broker, and the sizes and the names of one run."""

    url: str
    http_url: str
    token: str  # of the run
    seed: int
    processes: int
    threads: int
    rounds: int
    timeout_s: int = 15  # of an operation of a client

    @property
    def actors(self) -> int:
        return self.processes * self.threads


@dataclass
class Report:
    """What one process brings back from a scenario."""

    outcomes: list[Outcome] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    receipted: dict[str, list[bytes]] = field(default_factory=dict)  # by topic, in the order of receipts


class Scenario:
    """One storm. A subclass registers itself; its docstring says what it is about."""

    name: ClassVar[str]
    is_massive: ClassVar[bool] = False  # runs only when named
    is_ours: ClassVar[bool] = False  # of calls that the reference does not have
    ALL: ClassVar[dict[str, "Scenario"]] = {}

    def __init_subclass__(cls) -> None:
        assert cls.__doc__, f"{cls.__name__} needs a docstring"
        assert cls.name not in Scenario.ALL, f"two scenarios named {cls.name}"
        Scenario.ALL[cls.name] = cls()

    def prepare(self, scene: "Scene") -> None:
        """Before the processes begin; the namespace is there."""

    def act(self, share: "Share") -> None:
        """The part of one process."""
        raise NotImplementedError

    def meanwhile(self, scene: "Scene", broker: StormBroker, meeting: "Meeting") -> None:
        """What the main process does while the others act."""

    def judge(self, scene: "Scene") -> None:
        """After all clients of all processes have left."""


class Meeting:
    """Where the processes of a storm wait for one another; the main process may be among them."""

    def __init__(self, processes: Barrier, with_main: Barrier) -> None:
        self._processes = processes
        self._with_main = with_main

    def meet(self) -> None:
        """Wait until all processes have come here, without the main one."""
        self._processes.wait(MEET_TIMEOUT_S)

    def meet_main(self) -> None:
        """Wait until all processes have come here, the main one too."""
        self._with_main.wait(MEET_TIMEOUT_S)

    def abort(self) -> None:
        """Nobody waits any more: somebody does not come."""
        self._processes.abort()
        self._with_main.abort()

    def reset(self) -> None:
        self._processes.reset()
        self._with_main.reset()


class Names:
    """Names that belong to one scenario of one run, and REST calls about them."""

    def __init__(self, place: Place, scenario: str) -> None:
        self.place = place
        self.scenario = scenario
        self.namespace = f"{TENANT}/{place.token}-{scenario}"

    def topic(self, name: object = "t", namespace: str | None = None) -> str:
        return f"persistent://{namespace or self.namespace}/{name}"

    def rest(self, method: str, path: str, body: object = None) -> Answer:
        """A call below /admin/v2."""
        return call(f"{self.place.http_url}/admin/v2{path}", method, body=body)

    def about(self, method: str, topic: str, rest: str = "", body: object = None) -> Answer:
        """A call about a topic."""
        return self.rest(method, f"/{topic.replace('://', '/')}{rest}", body)

    def make_namespace(self, namespace: str | None = None) -> None:
        answer = self.rest("PUT", f"/namespaces/{namespace or self.namespace}", {"bundles": {"numBundles": 4}})
        assert answer.status in {204, 409}, answer

    def set(self, policy: str, value: object, method: str = "POST") -> None:
        """A policy of the scenario's namespace."""
        answer = self.rest(method, f"/namespaces/{self.namespace}/{policy}", value)
        assert answer.status < 300, (policy, answer)

    def keep_everything(self) -> None:
        """Nothing that is acknowledged goes, so that a reader sees all that was receipted."""
        self.set("retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})


class Share(Names):
    """One process's part of a scenario. Clients that it gives out are closed in the end."""

    def __init__(self, place: Place, scenario: str, index: int, meeting: Meeting) -> None:
        super().__init__(place, scenario)
        self.index = index
        self.report = Report()
        self.noting = threading.Lock()
        self.meet = meeting.meet
        self.meet_main = meeting.meet_main
        self._clients: list[pulsar.Client] = []

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def numbers(self) -> range:
        """Of its actors; no other process has them."""
        return range(self.index * self.place.threads, (self.index + 1) * self.place.threads)

    def client(self, **options: Any) -> pulsar.Client:
        """A new one, with a connection of its own."""
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
        options = {"operation_timeout_seconds": self.place.timeout_s, **options}
        client = pulsar.Client(self.place.url, logger=quiet, **options)
        with self.noting:
            self._clients.append(client)
        return client

    @cached_property
    def common_client(self) -> pulsar.Client:
        """One for all actors of this process."""
        return self.client()

    def together(self, act: Callable[["Actor"], None], threads: int | None = None) -> None:
        """All actors of all processes do it at the same time, each after a small delay; returns when those here are done."""
        _ = self.common_client
        numbers = self.numbers if threads is None else self.numbers[:threads]
        actors = [Actor(self, number) for number in numbers]
        running = [threading.Thread(target=actor.run, args=(act,), daemon=True) for actor in actors]
        self.meet()
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()

    def find(self, text: str) -> None:
        """Note what must not be."""
        with self.noting:
            self.report.findings.append(text)

    def count(self, what: str, count: int = 1) -> None:
        with self.noting:
            self.report.counts[what] += count

    def close(self) -> None:
        for client in self._clients:
            with contextlib.suppress(pulsar.PulsarException):
                client.close()


class Actor:
    """One thread of a scenario."""

    def __init__(self, share: Share, number: int) -> None:
        self.share = share
        self.number = number
        self.random = Random(f"{share.place.seed} {share.scenario} {number}")
        self._serial = 0

    def run(self, act: Callable[["Actor"], None]) -> None:
        try:
            self.pause()
            act(self)
        except Exception as error:  # noqa: BLE001 - the one who judges must hear of it
            self.share.find(f"an actor failed: {error!r}")

    @cached_property
    def client(self) -> pulsar.Client:
        """That of its process, or one of its own."""
        return self.share.common_client if self.number % 2 else self.share.client()

    def pause(self, most_s: float = DELAY_S) -> None:
        time.sleep(self.random.uniform(0, most_s))

    def attempt(self, action: str, act: Callable[[], Any], *allowed: str) -> Any:
        """Do it and note what came of it; its result, or None after an error. `allowed`: errors that a broker may answer."""
        started_s = time.monotonic()
        result, value = OK, None
        try:
            value = act()
        except pulsar.Timeout:
            result = TIMEOUT
        except pulsar.PulsarException as error:
            result = type(error).__name__
        took_s = time.monotonic() - started_s
        if result != OK and took_s > 0.9 * self.share.place.timeout_s:
            result = TIMEOUT
        self.note(action, result, took_s * 1000, is_expected=result == OK or result in allowed)
        return value

    def rest(self, action: str, method: str, path: str, allowed: tuple[int, ...] = (), body: object = None) -> Answer:
        """The same for a REST call below /admin/v2; any 2xx is fine."""
        started_s = time.monotonic()
        try:
            answer = self.share.rest(method, path, body)
        except OSError as error:
            answer = Answer(0, repr(error))
        result = OK if 200 <= answer.status < 300 else str(answer.status) if answer.status else TIMEOUT
        is_expected = result == OK or answer.status in allowed
        self.note(action, result, (time.monotonic() - started_s) * 1000, is_expected=is_expected)
        return answer

    def about(self, action: str, method: str, topic: str, rest: str = "", *allowed: int, body: object = None) -> Answer:
        return self.rest(action, method, f"/{quote(topic.replace('://', '/'))}{rest}", allowed, body)

    def note(self, action: str, result: str, took_ms: float, *, is_expected: bool) -> None:
        outcome = Outcome(self.share.scenario, action, result, round(took_ms, 1), is_expected)
        with self.share.noting:
            self.share.report.outcomes.append(outcome)

    def subscribe(self, topic: Any, name: str, kind: str = "Shared", *allowed: str, **options: Any) -> Any:
        options = {"initial_position": pulsar.InitialPosition.Earliest, **options}
        return self.attempt(
            f"subscribe {kind}",
            lambda: self.client.subscribe(topic, name, _consumer_type(kind), **options),
            *allowed,
        )

    def produce(self, topic: str, *allowed: str, **options: Any) -> Any:
        options = {"send_timeout_millis": self.share.place.timeout_s * 1000, **options}
        return self.attempt("create producer", lambda: self.client.create_producer(topic, **options), *allowed)

    def send(self, producer: Any, topic: str, *allowed: str, **options: Any) -> bool:
        """One message with a body of its own, noted when it is receipted."""
        body = f"{self.number}-{self._serial}".encode()
        self._serial += 1
        done = self.attempt("send", lambda: producer.send(body, **options), *allowed)
        if done is not None:
            with self.share.noting:
                self.share.report.receipted.setdefault(topic, []).append(body)
        return done is not None

    def close(self, *things: Any) -> None:
        for each in things:
            if each is not None:
                self.attempt("close", each.close, "AlreadyClosed")


class Scene(Names):
    """What the main process sees of a scenario before and after it."""

    def __init__(self, place: Place, scenario: str) -> None:
        super().__init__(place, scenario)
        self.reports: list[Report] = []
        self.findings: list[str] = []
        self.counts: Counter[str] = Counter()

    def find(self, text: str) -> None:
        self.findings.append(text)

    def receipted(self, topic: str) -> set[bytes]:
        return {body for report in self.reports for body in report.receipted.get(topic, [])}

    def check_kept(
        self,
        topic: str,
        subscription: str | None = None,
        quiet_ms: int = 3000,
        kind: str = "Shared",
        wanted: set[bytes] | None = None,
    ) -> list[bytes]:
        """What is on a topic, or still owed to a subscription; all that was receipted must be, or all that is `wanted`."""
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
        client = pulsar.Client(self.place.url, logger=quiet, operation_timeout_seconds=self.place.timeout_s)
        wanted, found = self.receipted(topic) if wanted is None else wanted, []
        missing = set(wanted)
        try:
            if subscription is None:
                source = client.create_reader(topic, pulsar.MessageId.earliest)
                receive = source.read_next
            else:
                source = client.subscribe(topic, subscription, _consumer_type(kind))
                receive = source.receive
            with contextlib.suppress(pulsar.Timeout):
                # Once everything is there, what comes beyond it needs no long wait.
                while True:
                    body = receive(quiet_ms if missing else 100).data()
                    found.append(body)
                    missing.discard(body)
        except pulsar.PulsarException as error:
            self.find(f"{topic} cannot be read: {error!r}")
        finally:
            client.close()
        if missing:
            self.find(f"LOST {len(missing)} of {len(wanted)} receipted messages of {topic}: {sorted(missing)[:3]}")
        return found


def _consumer_type(kind: str) -> pulsar.ConsumerType:
    """By Pulsar's name of it."""
    return getattr(pulsar.ConsumerType, kind.replace("_", ""))

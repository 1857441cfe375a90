"""A topic under churn: producers that go on, and consumer processes that join, leave, stall and are killed.

The chances are drawn from a seed; the timing is the machine's. What is judged afterwards is in `checker`.
"""

import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
from tests.churn.checker import Findings, check
from tests.churn.consumer import SUBSCRIPTION, TYPES
from tests.churn.trace import HARNESS, KILLED, Message, TraceWriter, read_traces
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call

# Batches by key leave in the order of their keys, which is no order of the producer's messages any more.
BATCHING = dict.fromkeys(TYPES, pulsar.BatchingType.Default) | {"Key_Shared": pulsar.BatchingType.KeyBased}
REPOSITORY = Path(__file__).resolve().parents[2]
TOPIC = "public/default/churn"
KEYS_OF_A_PRODUCER = 40
MOST_CONSUMERS = 4
STEP_S = 0.4
# One that was stopped must have had the time to send what it acknowledged before, or nothing can be said of that.
SETTLED_S = 3.0
DRAIN_TIMEOUT_S = 60.0
END_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Case:
    """A type of subscription with the broker's settings; `give_back`: the share of messages that consumers want again."""

    type: str
    settings: dict[str, str]
    give_back: float = 0.0
    out_of_order: bool = False


CASES = {
    "Exclusive": Case("Exclusive", {}),
    "Failover": Case("Failover", {"activeConsumerFailoverDelayTimeMillis": "100"}),
    "Shared": Case("Shared", {}, give_back=0.05),
    "Key_Shared": Case("Key_Shared", {}),
    "Key_Shared_ranges": Case("Key_Shared", {"subscriptionKeySharedUseConsistentHashing": "false"}),
    "Key_Shared_classic": Case("Key_Shared", {"subscriptionKeySharedUseClassicPersistentImplementation": "true"}),
    "Key_Shared_given_back": Case("Key_Shared", {}, give_back=0.05),
}


@dataclass
class Result:
    """What happened and what was found."""

    actions: dict[str, int]
    published: int
    findings: Findings

    def line(self, name: str) -> str:
        actions = " ".join(f"{name}={count}" for name, count in self.actions.items())
        findings = self.findings
        verdict = "ok" if not findings.violations else f"{len(findings.violations)} VIOLATIONS"
        received = f"received={findings.received} again={findings.received_again}"
        return f"{name:<22} published={self.published} {received} {actions}  {verdict}"


class Publisher:
    """One producer on a thread of its own; `receipted` is what the broker has promised to keep."""

    def __init__(self, client: pulsar.Client, name: str, messages_per_s: int, **options: Any) -> None:
        self.receipted: list[Message] = []
        self._name = name
        self._interval_s = 1 / messages_per_s
        self._producer = client.create_producer(TOPIC, producer_name=name, block_if_queue_full=True, **options)
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def _run(self) -> None:
        number, due_s = 0, time.monotonic()
        while not self._is_stopping.wait(max(0.0, due_s - time.monotonic())):
            key = f"{self._name}-{hash((self._name, number)) % KEYS_OF_A_PRODUCER}"
            self._send(Message(self._name, number, key))
            number += 1
            due_s += self._interval_s
        self._producer.flush()
        self._producer.close()

    def _send(self, message: Message) -> None:
        def receipt(result: Any, _id: Any) -> None:
            if result == pulsar.Result.Ok:
                self.receipted.append(message)

        self._producer.send_async(message.payload(), receipt, partition_key=message.key)

    def stop(self) -> None:
        self._is_stopping.set()
        self._thread.join()


class Consumers:
    """The consumer processes. Owned by a run; `end` must be called."""

    def __init__(self, case: Case, url: str, directory: Path, seed: int) -> None:
        self._case = case
        self._url = url
        self._directory = directory
        self._random = random.Random(seed)
        self._trace = TraceWriter(directory / f"{HARNESS}.trace")
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._leaving: dict[str, subprocess.Popen[bytes]] = {}
        self._stopped: dict[str, float] = {}  # name -> when it is to go on
        self._settled: dict[str, float] = {}  # name -> from when on it may be killed
        self._serial = 0
        self.actions = {"joins": 0, "leaves": 0, "stalls": 0, "kills": 0}
        self.failures: list[str] = []

    def step(self) -> None:
        """One thing that happens to consumers in production."""
        now_s = time.monotonic()
        for name in [name for name, until_s in self._stopped.items() if until_s <= now_s]:
            self._go_on(name)
        chances = [self.join] * (3 if len(self._running) < MOST_CONSUMERS else 0)
        if len(self._running) > 1:
            chances += [self._leave, self._kill, self._stall]  # type: ignore[list-item]
        self._random.choice(chances)()

    def join(self, *arguments: str) -> None:
        self._serial += 1
        name = f"c{self._serial}"
        command = [sys.executable, "-m", "tests.churn.consumer", "--url", self._url, "--topic", TOPIC]
        command += ["--type", self._case.type, "--name", name, "--traces", str(self._directory)]
        command += ["--give-back", str(self._case.give_back), *arguments]
        if self._case.out_of_order:
            command.append("--out-of-order")
        with (self._directory / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log)
        self._settled[name] = 0.0
        self.actions["joins"] += 1

    def _leave(self) -> None:
        name = self._random.choice(list(self._running))
        self._go_on(name)
        self._tell_to_leave(name)
        self.actions["leaves"] += 1

    def _tell_to_leave(self, name: str) -> None:
        process = self._leaving[name] = self._running.pop(name)
        process.terminate()

    def _kill(self) -> None:
        now_s = time.monotonic()
        names = [name for name in self._running if name not in self._stopped and self._settled[name] < now_s]
        if not names:
            return
        name = self._random.choice(names)
        self._trace.write(KILLED, name)
        process = self._running.pop(name)
        process.kill()
        process.wait()
        self.actions["kills"] += 1

    def _stall(self) -> None:
        name = self._random.choice(list(self._running))
        if name not in self._stopped:
            self._running[name].send_signal(signal.SIGSTOP)
            self._stopped[name] = time.monotonic() + self._random.uniform(0.2, 3.0)
            self.actions["stalls"] += 1

    def _go_on(self, name: str) -> None:
        if self._stopped.pop(name, None) is not None:
            self._running[name].send_signal(signal.SIGCONT)
            self._settled[name] = time.monotonic() + SETTLED_S

    def leave_all(self) -> None:
        """All go on and leave in order."""
        for name in list(self._running):
            self._go_on(name)
            self._tell_to_leave(name)
        for name, process in self._leaving.items():
            try:
                process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            # SIGTERM ends one that had not begun yet.
            if process.returncode not in (0, -signal.SIGTERM):
                said = (self._directory / f"{name}.log").read_text(errors="replace")[-1000:]
                self.failures.append(f"consumer {name} ended with {process.returncode}: {said}")
        self._leaving.clear()

    def end(self) -> None:
        """In any case."""
        self.leave_all()
        self._trace.close()


def run(case: Case, seconds: float, seed: int, directory: Path, messages_per_s: int = 400) -> Result:
    """Churn one case for so long on a broker of its own, and judge it."""
    traces = directory / "traces"
    traces.mkdir(parents=True)
    broker = BrokerProcess(directory, case.settings)
    with broker.running():
        client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        client.subscribe(TOPIC, SUBSCRIPTION, TYPES[case.type]).close()  # from the first message on
        consumers = Consumers(case, broker.url, traces, seed)
        publishers = [
            Publisher(client, "single", messages_per_s),
            Publisher(
                client,
                "batches",
                messages_per_s,
                batching_enabled=not case.give_back,  # the checker could not tell who has what of a batch
                batching_max_publish_delay_ms=20,
                batching_type=BATCHING[case.type],
            ),
        ]
        try:
            consumers.join()
            ends_s = time.monotonic() + seconds
            while time.monotonic() < ends_s:
                time.sleep(STEP_S)
                consumers.step()
        finally:
            for publisher in publishers:
                publisher.stop()
            consumers.leave_all()
        is_drained = _drain(broker, consumers)
        consumers.end()
        client.close()
        bugs = [line for line in broker.get("/metrics/").splitlines() if line.startswith("pybroker_bugs_total")]
    published = [message for publisher in publishers for message in publisher.receipted]
    findings = check(case.type, published, read_traces(traces), gives_back=case.give_back > 0)
    findings.violations += consumers.failures
    if not is_drained:
        findings.violations.append(f"stuck: the backlog was not read within {DRAIN_TIMEOUT_S:g} s")
    findings.violations += [f"the broker met a bug: {line}" for line in bugs if not line.endswith(" 0")]
    return Result(consumers.actions, len(published), findings)


def _drain(broker: BrokerProcess, consumers: Consumers) -> bool:
    """Read what is left with consumers that want nothing again; whether all of it was."""
    consumers.join("--gentle", "--give-back", "0")
    url = f"{broker.http_url}/admin/v2/persistent/{TOPIC}/stats"
    deadline_s = time.monotonic() + DRAIN_TIMEOUT_S
    while call(url).json["subscriptions"][SUBSCRIPTION]["msgBacklog"]:
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.1)
    return True

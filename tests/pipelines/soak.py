"""Producers, a query of Spark that copies their topic, a lake of the topic and one of the copy, and kills of everything.

    producers -> source (2 partitions) -> query, effectively once -> copy -> official consumer
                    |                                                  |
                    +-> lake, Iceberg                                  +-> lake, Delta

Ledgers are short and nothing is retained, so the source is trimmed behind its two readers all the while. What must hold at rest:
each message that was sent is once in the copy and in both tables, with its key, properties and event time, in the Iceberg table
with its message id too; no file is left that no version names; leases have ended; the broker's memory stayed within a bound.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pulsar
from tests.pipelines import judging
from tests.pipelines.parts import Lake, Query
from tests.pipelines.sending import Place, Sender, quiet_client
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call

SOURCE = "persistent://public/default/soak-source"
COPY = "persistent://public/default/soak-copy"
MAX_BROKER_BYTES = 400 << 20
NOTED_GROWTH_BYTES = 20 << 20
LEASE_S = 10
SETTINGS = {
    "brokerDeduplicationEnabled": "true",
    "managedLedgerMaxEntriesPerLedger": "100",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "readLeaseDurationSeconds": str(LEASE_S),
}
FIRST_BATCH_TIMEOUT_S = 240.0
HARMS = (
    "broker",
    "broker",
    "driver",
    "worker",
    "worker",
    "executor",
    "lake",
    "lake",
    "lake",
    "twin lake",
    "twin driver",
)


@dataclass
class Result:
    """What a soak has done and found."""

    violations: list[str] = field(default_factory=list)
    harms: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    batches: int = 0
    most_broker_bytes: int = 0
    trimmed_ledgers: int = 0
    seconds: float = 0.0

    def line(self) -> str:
        done = ", ".join(f"{count} x {what}" for what, count in sorted(self.harms.items()))
        return (
            f"{self.messages} messages in {self.seconds:.0f} s, {self.batches} batches, killed: {done}; {self.trimmed_ledgers} "
            f"ledgers trimmed; broker at most {self.most_broker_bytes >> 20} MiB; {len(self.violations)} violations"
        )


class Soak:
    """One run; all chance comes from the seed (what the machine does between two kills does not)."""

    def __init__(
        self, directory: Path, seed: int, seconds: float, messages_per_s: int, tell: Callable[[str], None]
    ) -> None:
        self._directory = directory
        self._seconds = seconds
        self._tell = tell
        self._dice = random.Random(seed)
        self._result = Result()
        self._broker = BrokerProcess(directory, SETTINGS)
        master = "local-cluster[2,1,1024]" if seed % 2 == 0 else "local[2,4]"
        places = {name: directory / name for name in ("query", "iceberg", "delta")}
        for place in places.values():
            place.mkdir(parents=True, exist_ok=True)
        self._query = Query("query", places["query"], self._broker, self._dice)
        self._query.source_topic, self._query.sink_topic, self._query.master = SOURCE, COPY, master
        self._lakes = [
            Lake("iceberg", places["iceberg"], self._broker, self._dice, topic=SOURCE, table="soak.source"),
            Lake("delta", places["delta"], self._broker, self._dice, topic=COPY, table="copy"),
        ]
        for lake in self._lakes:
            lake.table_format = lake.name
        self._messages_per_s = messages_per_s
        self._deck: list[str] = []
        self._batches_at_start = 0
        self._noted_bytes = 0

    def run(self) -> Result:
        begun_s = time.monotonic()
        self._broker.start()
        senders = self._senders()
        try:
            self._make_topics()
            for sender in senders:
                sender.start()
            self._tell("started")
            self._watch_until(lambda: self._query.batches > 0, FIRST_BATCH_TIMEOUT_S)
            self._kill_for_a_while()
            for sender in senders:
                sender.finish()
            self._tell("producers have ended")
            for part in (self._query, *self._lakes):
                part.end()
            self._tell("all is read")
            self._judge(senders)
        finally:
            for sender in senders:
                sender.finish()
            for part in (self._query, *self._lakes):
                part.kill_all()
                self._result.violations += part.violations
            self._broker.stop()
        self._result.seconds = time.monotonic() - begun_s
        return self._result

    def _senders(self) -> list[Sender]:
        types = (pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4, pulsar.CompressionType.ZSTD)
        return [
            Sender(
                self._broker.url, SOURCE, f"p{index}", self._dice.randrange(1 << 30), self._messages_per_s // 2, type_
            )
            for index, type_ in enumerate(self._dice.sample(types, 2))
        ]

    def _make_topics(self) -> None:
        """With the subscriptions that keep what is not read yet, since nothing else does."""
        path = SOURCE.replace("://", "/")
        assert call(f"{self._broker.http_url}/admin/v2/{path}/partitions", "PUT", body=2).status == 204
        client = quiet_client(self._broker.url)
        for topic, subscription in ((SOURCE, "query"), (SOURCE, "lake"), (COPY, "lake"), (COPY, "judge")):
            client.subscribe(topic, subscription, initial_position=pulsar.InitialPosition.Earliest)
        client.close()

    # While it runs.

    def _kill_for_a_while(self) -> None:
        end_s = time.monotonic() + self._seconds
        while time.monotonic() < end_s:
            pause_s = self._dice.uniform(0.5, 6.0)
            until_s = min(end_s, time.monotonic() + pause_s)
            self._watch_until(lambda until_s=until_s: time.monotonic() >= until_s, pause_s + 60)  # type: ignore[misc]
            if not self._deck:
                self._deck = self._dice.sample(HARMS, len(HARMS))
            harm = self._deck.pop()
            if self._does(harm):
                self._result.harms[harm] += 1
                self._tell(harm)

    def _does(self, harm: str) -> bool:
        query = self._query
        match harm:
            case "broker":
                self._broker.kill()
                time.sleep(self._dice.uniform(0, 1.5))
                self._broker.start()
                return True
            case "driver":
                # One that has done nothing since it started would show nothing.
                if query.batches == self._batches_at_start:
                    return False
                self._batches_at_start = query.batches
                return query.kill_one()
            case "worker":
                return query.harm_one("pyspark.daemon" if self._dice.random() < 0.7 else "pyspark.sql")
            case "executor":
                return query.harm_one("CoarseGrainedExecutorBackend")
            case "twin driver":
                return query.start_twin()
            case "twin lake":
                return self._dice.choice(self._lakes).start_twin()
            case _:
                return self._dice.choice(self._lakes).kill_one()

    def _watch_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while True:
            for part in (self._query, *self._lakes):
                part.look()
            self._weigh_broker()
            if condition():
                return
            if time.monotonic() > deadline_s:
                self._result.violations.append(f"nothing went on for {timeout_s:.0f} s")
                return
            time.sleep(0.2)

    def _weigh_broker(self) -> None:
        """What the broker has to say of itself when it is heavier than before stays in a file."""
        result, resident_bytes = self._result, self._broker.resident_bytes()
        if resident_bytes - self._noted_bytes > NOTED_GROWTH_BYTES:
            self._noted_bytes = resident_bytes
            with contextlib.suppress(OSError):
                (self._directory / f"broker-{resident_bytes >> 20}-mib.prom").write_text(self._broker.get("/metrics/"))
        result.most_broker_bytes = max(result.most_broker_bytes, resident_bytes)

    # At rest.

    def _judge(self, senders: list[Sender]) -> None:
        result = self._result
        sent = [content for sender in senders for content in sender.sent]
        places = {value: place for sender in senders for value, place in sender.places.items()}
        result.messages = len(sent)
        result.batches = self._query.batches
        result.violations += [failure for sender in senders for failure in sender.failures]
        result.violations += judging.compare("the copy", sent, judging.messages(self._broker, COPY, "judge"))
        for lake, at_rest in zip(self._lakes, (judging.IcebergAtRest, judging.DeltaAtRest), strict=True):
            rows = at_rest(lake.directory, lake.table).rows()  # type: ignore[attr-defined]
            result.violations += judging.compare(lake.name, sent, judging.contents(rows))
            if lake.topic == SOURCE:
                result.violations += judging.compare_places(lake.name, places, rows)
            lake.maintain()
            after = at_rest(lake.directory, lake.table)
            result.violations += judging.compare(f"{lake.name} after cleaning", sent, judging.contents(after.rows()))  # type: ignore[attr-defined]
            result.violations += [f"{lake.name}: {path} is nobody's" for path in sorted(after.files_of_nobody())]  # type: ignore[attr-defined]
        result.violations += judging.leases_that_stay(self._broker, 3 * LEASE_S)
        result.trimmed_ledgers = min(place.ledger_id for place in self._left()) - min(
            p.ledger_id for p in places.values()
        )
        if result.trimmed_ledgers <= 0:
            result.violations.append("nothing of the source was trimmed")
        if result.most_broker_bytes > MAX_BROKER_BYTES:
            result.violations.append(f"the broker had {result.most_broker_bytes >> 20} MiB")

    def _left(self) -> list[Place]:
        """The first places that are left of the source's partitions."""
        found = []
        for index in range(2):
            path = f"{self._broker.http_url}/admin/v2/{SOURCE.replace('://', '/')}-partition-{index}"
            assert call(f"{path}/trim", "POST").status < 300
            ledgers = call(f"{path}/internalStats").json["ledgers"]
            found.append(Place(ledgers[0]["ledgerId"], 0, index, -1))
        return found

"""The parts that a soak keeps running and kills: a query, and lakes, each sometimes twice at the same time."""

from __future__ import annotations

import json
import random
import signal
from dataclasses import dataclass, field
from pathlib import Path

from tests.pipelines.processes import Program
from tests.support.broker_process import BrokerProcess

READ_MODES = ("auto", "segment", "bulk", "broker")
REFUSED, TAKEN_OVER = 3, 4
END_TIMEOUT_S = 900.0


@dataclass
class Part:
    """Programs of one kind: at least one runs, and what each of them ends with is judged."""

    name: str
    directory: Path
    broker: BrokerProcess
    dice: random.Random
    running: list[Program] = field(default_factory=list)
    harmed: set[int] = field(default_factory=set)
    """Numbers of processes that may end as they like, as something of theirs was killed."""
    violations: list[str] = field(default_factory=list)
    starts: int = 0

    def start_one(self) -> None:
        self.starts += 1
        self.running.append(self.started())

    def started(self, *, is_last: bool = False) -> Program:
        raise NotImplementedError

    def is_fine(self, program: Program) -> bool:
        """Whether it may have ended so."""
        return program.process.pid in self.harmed

    def look(self) -> None:
        """Judge those that have ended, and start another one if none is left."""
        for program in [each for each in self.running if each.code is not None]:
            self.running.remove(program)
            program.kill()  # of what the first process has left behind
            self.judge(program)
        if not self.running:
            self.start_one()

    def judge(self, program: Program) -> None:
        if not self.is_fine(program):
            self.violations.append(f"{self.name} ended with {program.code}:\n{program.last_words()}")

    def kill_one(self) -> bool:
        """All processes of one program at once."""
        program = self.dice.choice(self.running)
        self.harmed.add(program.process.pid)
        program.kill()
        return True

    def start_twin(self) -> bool:
        if len(self.running) > 1:
            return False
        self.start_one()
        return True

    def end(self) -> None:
        """Stop what runs, in whatever way, and run once more to the end of everything."""
        self.stop()
        for program in self.running:
            program.wait(END_TIMEOUT_S)
            self.judge(program)
        self.running.clear()
        last = self.started(is_last=True)
        if last.wait(END_TIMEOUT_S):
            self.violations.append(f"the last run of {self.name} ended with {last.code}:\n{last.last_words()}")

    def stop(self) -> None:
        raise NotImplementedError

    def kill_all(self) -> None:
        for program in self.running:
            program.kill()


@dataclass
class Query(Part):
    """The streaming query: a session of Spark with workers, and executors where it is a cluster."""

    source_topic: str = ""
    sink_topic: str = ""
    master: str = ""
    is_twinned: bool = False

    def started(self, *, is_last: bool = False) -> Program:
        where = {"service.url": self.broker.url, "admin.url": self.broker.http_url}
        source = {
            **where,
            "topic": self.source_topic,
            "startingOffsets": "earliest",
            "predefinedSubscription": "query",
            "readMode": self.dice.choice(READ_MODES),
            "maxMessagesPerTrigger": "100000" if is_last else self.dice.choice(["300", "1500", "100000"]),
            "splitBytes": "1m",
        }
        settings = {
            "master": self.master,
            "source": source,
            "sink": {**where, "topic": self.sink_topic, "delivery": "effectively-once"},
            "checkpoint": str(self.directory / "checkpoint"),
            "stop": str(self.directory / "stop"),
            "once": is_last,
        }
        return Program("tests.pipelines.stream_job", [json.dumps(settings)], self.directory / f"{self.name}.log")

    @property
    def batches(self) -> int:
        """Committed so far."""
        return max((int(each.name) + 1 for each in self._commits()), default=0)

    def _commits(self) -> list[Path]:
        return list((self.directory / "checkpoint" / "commits").glob("[0-9]*"))

    def harm_one(self, word: str) -> bool:
        """Kill one of the processes of a driver that has `word` in its command."""
        program = self.dice.choice(self.running)
        if not program.kill_one(word, self.dice):
            return False
        self.harmed.add(program.process.pid)
        return True

    def start_twin(self) -> bool:
        if not super().start_twin():
            return False
        # Which of them Spark ends, and with what, is its own matter.
        self.harmed |= {each.process.pid for each in self.running}
        return True

    def stop(self) -> None:
        (self.directory / "stop").touch()


@dataclass
class Lake(Part):
    """`pybroker pipeline lake` of one topic into one table."""

    topic: str = ""
    table: str = ""
    table_format: str = ""

    def started(self, *, is_last: bool = False) -> Program:
        mode = self.dice.choice(READ_MODES)
        options = [
            *("pipeline", "lake", "--topic", self.topic, "--table", self.table, "--format", self.table_format),
            *("--target", str(self.directory), "--admin-url", self.broker.http_url, "--service-url", self.broker.url),
            *("--read-mode", "binary" if mode == "broker" else mode, "--progress-subscription", "lake"),
            *("--commit-bytes", "100m" if is_last else self.dice.choice(["50k", "1m", "100m"])),
            *("--keep-snapshots", "5", "--lease", "5"),
            *(
                "--interval",
                "0.3",
                "--columns",
                "*,__key,__eventTime,__messageProperties,__ledgerId,__entryId,__batchIndex",
            ),
            *("--partition-by", "event-hour", "--log-level", "warning", "--json"),
        ]
        if is_last or self.dice.random() < 0.7:
            options.append("--take-over")
        if is_last:
            options.append("--once")
        return Program("pybroker", options, self.directory / f"{self.name}.log")

    def is_fine(self, program: Program) -> bool:
        return program.code in (0, REFUSED, TAKEN_OVER) or super().is_fine(program)

    def stop(self) -> None:
        for program in self.running:
            if program.code is None:
                program.process.send_signal(signal.SIGTERM)

    def maintain(self) -> None:
        """Merge, expire, and remove each file of nobody, however young."""
        options = [
            "pipeline",
            "lake",
            "--topic",
            self.topic,
            "--table",
            self.table,
            "--format",
            self.table_format,
            "--target",
        ]
        options += [str(self.directory), "--maintain", "--orphan-age-hours", "0", "--keep-snapshots", "1"]
        options += ["--keep-hours", "0.0001"]  # of its own accord Delta keeps what a merge has replaced for an hour
        program = Program("pybroker", options, self.directory / f"{self.name}.log")
        if program.wait(END_TIMEOUT_S):
            self.violations.append(f"cleaning of {self.name} ended with {program.code}:\n{program.last_words()}")

"""Draws the script of a cluster from a seed: clients, administrators that move bundles and set policies, and faults."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count as count_from
from random import Random
from typing import Any

from tests.simulate.cluster.policy_writes import FIRST_VALUE, POLICIES
from tests.simulate.script import ADMIN, CLIENT, NATURE, ActorScript, Script, Step

KINDS = ("Exclusive", "Shared", "Failover", "Key_Shared")
FAULTS = (
    "kill", "freeze", "cut_zookeeper", "cut_clients", "cut_bookies", "zookeeper_restart", "kill_bookie", "freeze_bookie",
    "stop", "drop_zookeeper", "lose_answers",
)  # fmt: skip
COORDINATORS = 4
"""So many of the transaction coordinators are used."""
OWNER = "owner"
"""In place of a host: the one that owns the first topic when the fault begins."""
IMPATIENT_S = (1.5, 3.0)
"""So long an impatient client waits for a broker that does not answer its PING."""
WEIGHTS = (3, 3, 3, 1, 2, 1, 1, 1, 1, 1, 1)


def draw_cluster(seed: int, *, has_policies: bool = False) -> Script:
    """The script of `seed`. With `has_policies`, administrators set topic policies in any case."""
    return _Drawing(seed, has_policies=has_policies).script()


class _Drawing:
    def __init__(self, seed: int, *, has_policies: bool) -> None:
        self.seed = seed
        self.chance = chance = Random(f"cluster script {seed}")
        self.theme = chance.choice(("mixed", "faults", "moves", "owner", "calm"))
        self.hosts = [f"b{number}" for number in range(chance.choice((2, 2, 3, 3, 4)))]
        self.bookies = chance.choice((3, 3, 4))
        self.has_deduplication = chance.random() < 0.4
        count = 1 if self.theme == "owner" else chance.randint(1, 3)
        self.topics = {f"t{index}": self._topic() for index in range(count)}
        self.subscriptions = [f"s{index}" for index in range(chance.randint(1, 2))]
        self.kind_of = {name: chance.choice(KINDS) for name in self.subscriptions}
        # Of what was added later: the other scripts stay as they were.
        self.more = Random(f"more of cluster {seed}")
        self.has_transactions = self.more.random() < 0.4
        self.of_policies = Random(f"policies of cluster {seed}")
        self.has_policies = self.of_policies.random() < 0.3 or has_policies

    def script(self) -> Script:
        chance = self.chance
        actors = [ActorScript(f"producer{index}", CLIENT, self._producing()) for index in range(chance.randint(1, 3))]
        actors += [ActorScript(f"consumer{index}", CLIENT, self._consuming()) for index in range(chance.randint(1, 4))]
        if self.theme == "moves" or chance.random() < 0.4:
            actors.append(ActorScript("asker", CLIENT, self._asking()))
        if self.theme == "moves" or chance.random() < 0.4:
            count = 2 if self.theme == "moves" and chance.random() < 0.5 else 1
            actors += [ActorScript(f"admin{index}", ADMIN, self._moving()) for index in range(count)]
        if self.theme != "calm":
            count = 2 if self.theme == "faults" else 1
            actors += [ActorScript(f"nature{index}", NATURE, self._faults()) for index in range(count)]
        settings = self._settings()
        if self.has_transactions:
            settings["transaction_coordinator_enabled"] = True
            self.chance = self.more
            count = self.more.randint(1, 3)
            actors += [ActorScript(f"worker{index}", CLIENT, self._working()) for index in range(count)]
            if self.more.random() < 0.5:
                actors.append(ActorScript("mover", ADMIN, self._moving_coordinators()))
        if self.has_policies:
            settings |= {"system_topic_enabled": True, "topic_level_policies_enabled": True}
            self.chance = self.of_policies
            values = count_from(FIRST_VALUE)
            pauses_s = self.chance.choice(((0.001, 0.01, 0.1, 1, 3), (0, 0.0005, 0.002)))
            actors += [
                ActorScript(f"policies{index}", ADMIN, self._setting_policies(values, pauses_s))
                for index in range(self.chance.choice((1, 2, 3)))
            ]
        return Script(self.seed, settings, self.topics, tuple(actors))

    def _setting_policies(self, values: Iterator[int], pauses_s: tuple[float, ...]) -> tuple[Step, ...]:
        chance = self.chance
        steps: list[Step] = []
        for _ in range(chance.randint(4, 12)):
            steps.append(Step("wait", {"s": chance.choice(pauses_s)}))
            facts: dict[str, Any] = {"topic": self._some_topic(), "policy": chance.choice(list(POLICIES))}
            if chance.random() < 0.25:
                steps.append(Step("get_policy", facts))
            else:
                facts["value"] = None if chance.random() < 0.15 else next(values)
                steps.append(Step("set_policy", facts))
        return tuple(steps)

    def _settings(self) -> dict[str, Any]:
        chance = self.chance
        ensemble, write, ack = chance.choice(((2, 2, 2), (3, 2, 2), (3, 3, 2)))
        return {
            "brokers": len(self.hosts),
            "bookies": self.bookies,
            "keeps_ticket_share": chance.choice((0.0, 0.5, 1.0)),
            "default_number_of_namespace_bundles": chance.choice((1, 4)),
            "managed_ledger_default_ensemble_size": ensemble,
            "managed_ledger_default_write_quorum": write,
            "managed_ledger_default_ack_quorum": ack,
            "managed_ledger_max_entries_per_ledger": chance.choice((5, 20, 1000)),
            "managed_ledger_min_ledger_rollover_time_minutes": 0,
            "managed_ledger_cache_size_mb": chance.choice((0, 1)),
            "acknowledgment_at_batch_index_level_enabled": chance.random() < 0.7,
            "active_consumer_failover_delay_time_millis": chance.choice((0, 1000)),
            "broker_deduplication_enabled": self.has_deduplication,
            "load_balancer_shedding_interval_minutes": 1,
            "max_concurrent_topic_closes": 1 if self.seed % 2 else 64,
        }

    def _topic(self) -> dict[str, Any]:
        partitions = self.chance.choice((0, 0, 3))
        return {"partitions": partitions, "deduplication": self.has_deduplication, "keeper": self.chance.random() < 0.8}

    def _some_topic(self) -> str:
        return self.chance.choice(list(self.topics))

    def _pause(self) -> Step:
        return Step("wait", {"s": self.chance.choice((0.01, 0.1, 0.5, 1, 3))})

    def _producing(self) -> tuple[Step, ...]:
        chance = self.chance
        steps = [*self._patience(), self._open_producer()]
        for _ in range(chance.randint(10, 30)):
            do = chance.choices(("send", "batch", "wait", "cut", "close", "flush"), (12, 4, 9, 1, 1, 2))[0]
            if do == "send":
                facts = {"slot": "p", "count": chance.choice((1, 2, 5, 12)), "keys": chance.choice((0, 1, 3))}
                steps.append(Step("send", facts))
            elif do == "batch":
                steps.append(Step("send", {"slot": "p", "count": 1, "batch": chance.randint(2, 6), "keys": 0}))
            elif do == "wait":
                steps.append(self._pause())
            elif do == "cut":
                steps.append(Step("cut", {"silently": False}))
            elif do == "flush":
                steps.append(Step("flush", {"slot": "p"}))
            else:
                steps += [Step("close_producer", {"slot": "p"}), self._open_producer()]
        return tuple(steps)

    def _patience(self) -> list[Step]:
        chance = self.chance
        return [Step("keep_alive", {"s": chance.uniform(*IMPATIENT_S)})] if chance.random() < 0.5 else []

    def _open_producer(self) -> Step:
        return Step("open_producer", {"slot": "p", "topic": self._some_topic()})

    def _consuming(self) -> tuple[Step, ...]:
        chance = self.chance
        steps = [*self._patience(), self._subscribe("c")]
        for _ in range(chance.randint(12, 36)):
            do = chance.choices(("take", "ack", "nack", "wait", "cut", "again", "second"), (12, 10, 2, 4, 1, 1, 1))[0]
            if do == "take":
                steps.append(Step("take", {"slot": "c", "count": chance.choice((1, 3, 10, 50))}))
            elif do == "ack":
                how = chance.choice(("each", "each", "some", "cumulative", "parts"))
                steps.append(Step("ack", {"slot": "c", "how": how, "receipt": chance.random() < 0.7}))
            elif do == "nack":
                steps.append(Step("nack", {"slot": "c", "how": chance.choice(("some", "all"))}))
            elif do == "wait":
                steps.append(self._pause())
            elif do == "cut":
                steps.append(Step("cut", {"silently": False}))
            elif do == "again":
                steps += [Step("close_consumer", {"slot": "c"}), self._subscribe("c")]
            else:
                steps += [self._subscribe("d"), Step("take", {"slot": "d", "count": 5})]
        return tuple(steps)

    def _subscribe(self, slot: str) -> Step:
        subscription = self.chance.choice(self.subscriptions)
        facts = {"slot": slot, "topic": self._some_topic(), "subscription": subscription}
        return Step("subscribe", {**facts, "kind": self.kind_of[subscription], "earliest": True})

    def _working(self) -> tuple[Step, ...]:
        """Consumes, transforms and produces, in two transactions at a time."""
        chance = self.chance
        steps = [*self._patience(), self._subscribe("c"), self._open_producer()]
        if chance.random() < 0.6:
            steps.append(Step("send", {"slot": "p", "count": chance.randint(2, 10), "keys": chance.choice((0, 1, 3))}))
        for _ in range(chance.randint(3, 7)):
            txn = chance.choice(("x", "x", "y"))
            facts = {"txn": txn, "coordinator": chance.randrange(COORDINATORS), "timeout_s": chance.choice((2, 10, 10))}
            steps.append(Step("begin", facts))
            for _ in range(chance.randint(1, 6)):
                steps += self._in_transaction(chance.choice((txn, txn, txn, "x", "y")))
            if chance.random() < 0.9:
                facts = {"txn": txn, "is_commit": chance.random() < 0.65, "waits": chance.random() < 0.7}
                steps.append(Step("end", facts))
        return tuple(steps)

    def _in_transaction(self, txn: str) -> list[Step]:
        chance = self.chance
        do = chance.choices(
            ("ack", "send", "batch", "plain", "plain ack", "nack", "wait", "cut"), (10, 8, 2, 2, 1, 1, 3, 1)
        )[0]
        take = Step("take", {"slot": "c", "count": chance.choice((1, 3, 10))})
        of_txn = {} if do.startswith("plain") else {"txn": txn}
        if do in ("ack", "plain ack"):
            how = chance.choice(("each", "each", "some", "cumulative", "parts"))
            return [take, Step("ack", {"slot": "c", "how": how, "receipt": True, **of_txn})]
        if do in ("send", "plain"):
            facts = {"slot": "p", "count": chance.choice((1, 2, 5)), "keys": chance.choice((0, 1, 3))}
            return [Step("send", facts | of_txn)]
        if do == "batch":
            return [Step("send", {"slot": "p", "count": 1, "batch": chance.randint(2, 6), "keys": 0, **of_txn})]
        if do == "nack":
            return [Step("nack", {"slot": "c", "how": chance.choice(("some", "all"))})]
        return [self._pause() if do == "wait" else Step("cut", {"silently": False})]

    def _moving_coordinators(self) -> tuple[Step, ...]:
        chance = self.chance
        steps: list[Step] = []
        for _ in range(chance.randint(2, 8)):
            steps.append(self._pause())
            facts = {"coordinator": chance.randrange(COORDINATORS), "to": chance.choice(("", *self.hosts))}
            steps.append(Step("move_coordinator", facts))
        return tuple(steps)

    def _asking(self) -> tuple[Step, ...]:
        chance = self.chance
        pauses_s = (0.001, 0.01, 0.05, 0.3)
        return tuple(
            Step("look_up", {"topic": self._some_topic(), "count": 15, "pause_s": chance.choice(pauses_s)})
            for _ in range(chance.randint(2, 6))
        )

    def _moving(self) -> tuple[Step, ...]:
        chance = self.chance
        steps: list[Step] = []
        for _ in range(chance.randint(3, 12)):
            steps.append(Step("wait", {"s": chance.choice((0.01, 0.1, 0.5, 1))}))
            do = chance.choices(
                ("unload_bundle", "transfer", "split", "unload", "namespace_unload", "stats"), (4, 4, 4, 2, 1, 1)
            )[0]
            facts: dict[str, Any] = {"topic": self._some_topic()}
            if do == "transfer":
                facts["to"] = chance.choice(self.hosts)
            elif do == "split":
                facts["unload"] = chance.random() < 0.5
            steps.append(Step(do, facts))
        return tuple(steps)

    def _moment(self) -> list[Any]:
        """What a client does when a fault begins, and how long after that."""
        chance = self.chance
        return [chance.choice(("", "sends", "acknowledges")), chance.choice((0, 0.0005, 0.002, 0.01, 0.05))]

    def _faults(self) -> tuple[Step, ...]:
        chance = self.chance
        steps: list[Step] = []
        for _ in range(chance.randint(1, 4)):
            steps.append(Step("wait", {"s": chance.choice((0.05, 0.5, 1, 3))}))
            do = chance.choices(FAULTS, WEIGHTS)[0]
            facts: dict[str, Any] = {"s": chance.choice((0.3, 1, 2.7, 4, 6, 8)), "moment": self._moment()}
            if do in ("kill", "freeze", "cut_zookeeper", "cut_clients", "cut_bookies", "stop", "drop_zookeeper"):
                facts["host"] = OWNER if chance.random() < 0.7 else chance.choice(self.hosts)
            if do == "cut_bookies":
                facts["bookies"] = chance.choice((1, 2, self.bookies))
            if do in ("kill_bookie", "freeze_bookie"):
                facts["bookie"] = chance.randrange(self.bookies)
            if do == "kill":
                facts["stays_down"] = chance.random() < 0.25
            if do == "lose_answers":
                facts["count"] = chance.randint(1, 3)
            steps.append(Step(do, facts))
        return tuple(steps)

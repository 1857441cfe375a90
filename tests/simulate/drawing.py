"""Draws a script from a seed: who is there, what they do, and what goes wrong meanwhile.

Actors are not drawn alike: a simulation has a theme (one subscription that many fight for, keys, deduplication, administrators at
work), since what breaks brokers is several who do the same thing at once.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.simulate.script import ADMIN, CLIENT, NATURE, ActorScript, Script, Step

KINDS = ("Exclusive", "Shared", "Failover", "Key_Shared")
NAMESPACE = "public/default"
BAD = (0, 0, 0, 1, 0, 5)
FULL_AND_KILLED = (3, 2, 4, 2, 0, 2)
"""Weights of faults for those who send again."""


def draw(seed: int) -> Script:
    """The script of `seed`."""
    return _Drawing(seed).script()


class _Drawing:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = Random(f"script {seed}")
        theme = self.chance.choice(
            ("mixed", "one subscription", "keys", "deduplication", "administrators", "crowd", "crashes")
        )
        # Of what was added later: the other scripts stay as they were.
        self.more = Random(f"more {seed}")
        drawn = self.more.random()
        self.has_transactions = drawn < 0.3
        theme = "transactions" if drawn < 0.2 else theme
        self.theme = theme
        count = 1 if theme in ("one subscription", "keys") else self.chance.randint(1, 3)
        self.topics = {f"t{index}": self._topic() for index in range(count)}
        self.subscriptions = [f"s{index}" for index in range(1 if theme == "one subscription" else 2)]
        # Each subscription has a type in this script, which clients leave seldom.
        self.kind_of = {name: self.chance.choice(KINDS) for name in self.subscriptions}
        if theme == "keys":
            self.kind_of = dict.fromkeys(self.subscriptions, "Key_Shared")

    def script(self) -> Script:
        chance = self.chance
        actors: list[ActorScript] = []
        producers = chance.randint(1, 2 if self.theme != "crowd" else 4)
        consumers = chance.randint(1, 3 if self.theme != "crowd" else 5)
        actors += [ActorScript(f"producer{index}", CLIENT, self._producing()) for index in range(producers)]
        actors += [
            ActorScript(f"consumer{index}", CLIENT, self._consuming(f"consumer{index}")) for index in range(consumers)
        ]
        if chance.random() < 0.35:
            actors.append(ActorScript("asker", CLIENT, self._asking()))
        if self.theme == "administrators" or chance.random() < 0.5:
            count = 2 if self.theme == "administrators" and chance.random() < 0.5 else 1
            actors += [ActorScript(f"admin{index}", ADMIN, self._administrating()) for index in range(count)]
        if self.theme == "crashes" or chance.random() < 0.3:
            actors.append(ActorScript("nature", NATURE, self._faults()))
        if self.has_transactions:
            actors += self._of_transactions()
        if self.more.random() < 0.08:
            actors += self._not_stored()
        if self.more.random() < 0.06:
            facts = {"topic": self._some_topic(), "count": 1}
            actors.append(ActorScript("expirer", ADMIN, (Step("wait", {"s": 0.5}), Step("ttl", facts))))
        if self.more.random() < 0.06 and all(actor.kind != NATURE for actor in actors):
            self.chance = self.more
            actors.append(ActorScript("nature", NATURE, self._faults(BAD)))
            # Topics are loaded meanwhile.
            steps = [step for _ in range(3) for step in (self._pause(), Step("unload", {"topic": self._some_topic()}))]
            actors.append(ActorScript("unloader", ADMIN, tuple(steps)))
            self.chance = chance
        is_nature_quiet = all(actor.kind != NATURE for actor in actors)
        if is_nature_quiet and self.theme in ("transactions", "deduplication") and self.more.random() < 0.5:
            self.chance = self.more
            actors.append(ActorScript("nature", NATURE, self._faults(FULL_AND_KILLED)))
            self.chance = chance
        return Script(self.seed, self._settings(), self.topics, tuple(actors))

    def _settings(self) -> dict[str, Any]:
        chance = self.chance
        return {
            "managed_ledger_max_entries_per_ledger": chance.choice((3, 10, 1000)),
            "managed_ledger_min_ledger_rollover_time_minutes": 0,
            "acknowledgment_at_batch_index_level_enabled": chance.random() < 0.7,
            "active_consumer_failover_delay_time_millis": chance.choice((0, 1000)),
            # Without one every entry is read from the store.
            "managed_ledger_cache_size_mb": chance.choice((0, 1)),
            "max_unacked_messages_per_consumer": chance.choice((50000, 5)),
            "max_unacked_messages_per_subscription": chance.choice((200000, 8)),
        }

    def _topic(self) -> dict[str, Any]:
        chance = self.chance
        return {
            "partitions": chance.choice((0, 0, 0, 2)),
            "deduplication": self.theme == "deduplication" or chance.random() < 0.2,
            # A subscription that nobody touches holds everything until it is judged; without, ledgers are trimmed.
            "keeper": chance.random() < 0.7,
        }

    def _some_topic(self) -> str:
        return self.chance.choice(list(self.topics))

    def _pause(self) -> Step:
        return Step("wait", {"s": self.chance.choice((0, 0.001, 0.01, 0.1, 1, 3))})

    def _producing(self) -> tuple[Step, ...]:
        chance = self.chance
        steps = [self._open_producer("p")]
        for _ in range(chance.randint(3, 12)):
            do = chance.choices(
                ("send", "batch", "delayed", "chunks", "wait", "cut", "close", "flush"), self._weights()
            )[0]
            keys = chance.choice((0, 1, 3))
            if do == "send":
                steps.append(Step("send", {"slot": "p", "count": chance.choice((1, 1, 2, 5, 12)), "keys": keys}))
            elif do == "batch":
                steps.append(Step("send", {"slot": "p", "count": 1, "batch": chance.randint(2, 6), "keys": 0}))
            elif do == "delayed":
                steps.append(Step("send", {"slot": "p", "count": 1, "delay_s": chance.choice((0.5, 5)), "keys": keys}))
            elif do == "chunks":
                steps.append(Step("send", {"slot": "p", "count": 1, "chunks": chance.randint(2, 4), "keys": 0}))
            elif do == "wait":
                steps.append(self._pause())
            elif do == "cut":
                steps.append(Step("cut", {"silently": chance.random() < 0.2}))
            elif do == "flush":
                steps.append(Step("flush", {"slot": "p"}))
            else:
                steps += [Step("close_producer", {"slot": "p"}), self._open_producer("p")]
        return tuple(steps)

    def _weights(self) -> tuple[int, ...]:
        """Of what a producer does. Who sends again what is stored already has been cut off in the middle."""
        return (12, 5, 1, 1, 2, 6, 1, 1) if self.theme == "deduplication" else (12, 5, 1, 1, 4, 1, 1, 2)

    def _open_producer(self, slot: str) -> Step:
        chance = self.chance
        facts: dict[str, Any] = {"slot": slot, "topic": self._some_topic()}
        if self.theme == "deduplication" or chance.random() < 0.3:
            facts["name"] = f"n{chance.randint(0, 3)}"
        if chance.random() < 0.15:
            facts["access"] = chance.choice(("Exclusive", "WaitForExclusive", "ExclusiveWithFencing"))
        if chance.random() < 0.1:
            facts["initial_subscription"] = chance.choice(self.subscriptions)
        return Step("open_producer", facts)

    def _consuming(self, name: str) -> tuple[Step, ...]:
        chance = self.chance
        steps = [self._subscribe("c")]
        for _ in range(chance.randint(4, 14)):
            do = chance.choices(
                (
                    "take", "ack", "nack", "wait", "cut", "again", "seek", "unsubscribe", "last_id", "stats",
                    "second", "nack_all", "ack_late",
                ),
                (10, 8, 3, 3, 1, 2, 1, 0.4, 1, 0.5, 1, 1, 1),
            )[0]  # fmt: skip
            if do == "take":
                steps.append(Step("take", {"slot": "c", "count": chance.choice((1, 3, 10, 50))}))
            elif do in ("ack", "ack_late"):
                how = chance.choice(("each", "each", "some", "cumulative", "parts"))
                steps.append(Step("ack", {"slot": "c", "how": how, "receipt": chance.random() < 0.6}))
            elif do == "nack":
                steps.append(Step("nack", {"slot": "c", "how": "some"}))
            elif do == "nack_all":
                steps.append(Step("nack", {"slot": "c", "how": "all"}))
            elif do == "wait":
                steps.append(self._pause())
            elif do == "cut":
                steps.append(Step("cut", {"silently": chance.random() < 0.2}))
            elif do == "again":
                steps += [Step("close_consumer", {"slot": "c"}), self._subscribe("c")]
            elif do == "second":
                steps += [self._subscribe("d"), Step("take", {"slot": "d", "count": 5})]
            elif do == "seek":
                steps.append(
                    Step("seek", {"slot": "c", "to": chance.choice(("earliest", "latest", "seen", "time", "parts"))})
                )
            else:
                steps.append(Step(do, {"slot": "c"}))
        return tuple(steps)

    def _subscribe(self, slot: str) -> Step:
        chance = self.chance
        subscription = chance.choice(self.subscriptions)
        kind = self.kind_of[subscription] if chance.random() < 0.93 else chance.choice(KINDS)
        facts: dict[str, Any] = {
            "slot": slot,
            "topic": self._some_topic(),
            "subscription": subscription,
            "kind": kind,
            "earliest": chance.random() < 0.7,
        }
        if chance.random() < 0.08:
            facts |= {"subscription": f"reader{chance.randint(0, 1)}", "kind": "Exclusive", "durable": False}
        elif chance.random() < 0.05 and kind in ("Exclusive", "Failover"):
            facts["compacted"] = True
        if kind == "Key_Shared" and chance.random() < 0.1:
            facts["out_of_order"] = True
        if chance.random() < 0.1:
            facts["priority"] = chance.randint(1, 2)
        return Step("subscribe", facts)

    def _not_stored(self) -> list[ActorScript]:
        """Who publishes to a non-persistent topic, and who consumes from it."""
        chance = self.more
        sending = [Step("open_producer", {"slot": "p", "topic": "np0"})]
        for _ in range(chance.randint(3, 8)):
            facts = {"slot": "p", "count": chance.choice((1, 3, 10)), "keys": chance.choice((0, 1, 3))}
            wait = Step("wait", {"s": chance.choice((0, 0.001, 0.1, 1))})
            sending.append(chance.choice((Step("send", facts), Step("send", facts | {"count": 1, "batch": 3}), wait)))
        if chance.random() < 0.3:
            sending.insert(chance.randrange(len(sending)), Step("cut", {"silently": chance.random() < 0.2}))
        actors = [ActorScript("np_producer", CLIENT, tuple(sending))]
        kind = chance.choice(KINDS)
        for index in range(chance.randint(1, 2)):
            facts = {"slot": "c", "topic": "np0", "subscription": "s0", "kind": kind, "earliest": False}
            steps = [Step("subscribe", facts)]
            for _ in range(chance.randint(2, 6)):
                take = Step("take", {"slot": "c", "count": chance.choice((1, 5, 50))})
                ack = Step("ack", {"slot": "c", "how": "each", "receipt": chance.random() < 0.5})
                steps.append(chance.choice((take, take, ack, Step("nack", {"slot": "c", "how": "all"}))))
            actors.append(ActorScript(f"np_consumer{index}", CLIENT, tuple(steps)))
        return actors

    def _of_transactions(self) -> list[ActorScript]:
        """Clients that consume, transform and produce, and perhaps an administrator who ends what is theirs."""
        before, self.chance = self.chance, self.more
        chance = self.chance
        count = chance.randint(1, 3) if self.theme == "transactions" else 1
        actors = [ActorScript(f"worker{index}", CLIENT, self._working()) for index in range(count)]
        if chance.random() < 0.3:
            actors.append(ActorScript("txn_admin", ADMIN, self._administrating_transactions()))
        self.chance = before
        return actors

    def _working(self) -> tuple[Step, ...]:
        """Two transactions at a time, which no order binds: what one begins the other may have taken already."""
        chance = self.chance
        subscribe = self._subscribe("c")
        subscribe.facts["earliest"] = True
        steps = [subscribe, self._open_producer("p")]
        if chance.random() < 0.6:
            steps.append(Step("send", {"slot": "p", "count": chance.randint(2, 10), "keys": chance.choice((0, 1, 3))}))
        if chance.random() < 0.5:
            steps.append(self._open_producer("q"))
        for _ in range(chance.randint(2, 5)):
            txn = chance.choice(("x", "x", "y"))
            timeout_s = chance.choice((1, 5, 10, 10, 10))
            steps.append(Step("begin", {"txn": txn, "coordinator": chance.choice((0, 0, 1)), "timeout_s": timeout_s}))
            for _ in range(chance.randint(1, 6)):
                steps += self._in_transaction(chance.choice((txn, txn, txn, "x", "y")))
            if chance.random() < 0.85:
                facts = {"txn": txn, "is_commit": chance.random() < 0.65, "waits": chance.random() < 0.7}
                steps.append(Step("end", facts))
            if chance.random() < 0.15:
                steps += self._in_transaction(txn)  # which has ended
            if chance.random() < 0.1:
                steps.append(Step("end", {"txn": txn, "is_commit": chance.random() < 0.5, "waits": False}))
            if chance.random() < 0.1:
                steps.append(self._forge(txn))
        return tuple(steps)

    def _in_transaction(self, txn: str) -> list[Step]:
        chance = self.chance
        slot = chance.choice(("p", "p", "q"))
        do = chance.choices(
            ("take", "ack", "send", "batch", "chunks", "plain", "plain ack", "nack", "wait", "cut", "again", "forge"),
            (4, 14, 7, 2, 0.5, 2, 1, 1, 2, 1, 0.7, 0.3),
        )[0]
        take = Step("take", {"slot": "c", "count": chance.choice((1, 3, 10))})
        if do == "take":
            return [take]
        if do in ("ack", "plain ack"):
            how = chance.choice(("each", "each", "some", "some", "cumulative", "parts", "again"))
            facts = {"slot": "c", "how": how, "receipt": True}
            ack = Step("ack", facts | ({"txn": txn} if do == "ack" else {}))
            return [take, ack] if chance.random() < 0.6 else [ack]
        if do in ("send", "plain"):
            facts = {"slot": slot, "count": chance.choice((1, 1, 2, 5)), "keys": chance.choice((0, 1, 3))}
            return [Step("send", facts | ({"txn": txn} if do == "send" else {}))]
        if do == "batch":
            return [Step("send", {"slot": slot, "count": 1, "batch": chance.randint(2, 6), "keys": 0, "txn": txn})]
        if do == "chunks":
            return [Step("send", {"slot": slot, "count": 1, "chunks": 2, "keys": 0, "txn": txn})]
        if do == "nack":
            return [Step("nack", {"slot": "c", "how": chance.choice(("some", "all"))})]
        if do == "wait":
            return [self._pause()]
        if do == "cut":
            return [Step("cut", {"silently": chance.random() < 0.2})]
        if do == "again":
            return [Step("close_consumer", {"slot": "c"}), self._subscribe("c")]
        return [self._forge(txn)]

    def _forge(self, txn: str) -> Step:
        chance = self.chance
        facts = {"is_commit": chance.random() < 0.5, "of_subscription": chance.random() < 0.5}
        return Step("forge", {"txn": txn, **facts, "is_made_up": chance.random() < 0.5})

    def _administrating_transactions(self) -> tuple[Step, ...]:
        chance = self.chance
        steps = []
        for _ in range(chance.randint(2, 6)):
            do = chance.choice(
                ("abort_txn", "abort_txn", "transactions", "unload", "grow_coordinators", "wait", "wait")
            )
            if do == "wait":
                steps.append(self._pause())
            elif do == "abort_txn":
                steps.append(Step(do, {"which": chance.randint(0, 3)}))
            elif do == "grow_coordinators":
                steps.append(Step(do))
            else:
                steps.append(Step(do, {"topic": self._some_topic()}))
        return tuple(steps)

    def _asking(self) -> tuple[Step, ...]:
        chance = self.chance
        steps = []
        for _ in range(chance.randint(3, 10)):
            do = chance.choice(
                ("lookup", "partitions", "topics", "watch", "unwatch", "put_schema", "get_schema", "ping", "wait")
            )
            if do == "wait":
                steps.append(self._pause())
            elif do in ("lookup", "partitions", "get_schema"):
                steps.append(Step(do, {"topic": self._some_topic()}))
            elif do == "put_schema":
                steps.append(Step(do, {"topic": f"schema{chance.randint(0, 1)}", "fields": chance.randint(1, 3)}))
            else:
                steps.append(Step(do))
        return tuple(steps)

    def _administrating(self) -> tuple[Step, ...]:
        chance = self.chance
        steps = []
        for _ in range(chance.randint(2, 8)):
            do = chance.choices(
                (
                    "unload", "stats", "internal_stats", "delete_topic", "terminate", "trim", "compact", "truncate",
                    "create_subscription", "delete_subscription", "skip", "skip_all", "reset_cursor", "expire", "peek",
                    "retention", "max_consumers", "unacked_limit", "dispatch_rate", "topics", "partitions", "wait",
                    "grow", "namespace_unload", "clear_backlog",
                ),
                (
                    6, 4, 2, 1, 0.5, 2, 1.5, 0.5, 1, 1, 1, 0.5, 1, 0.5, 1, 1, 0.5, 1, 0.5, 1, 1, 6, 0.5, 1, 0.3,
                ),
            )[0]  # fmt: skip
            if do == "wait":
                steps.append(self._pause())
                continue
            facts: dict[str, Any] = {"topic": self._some_topic()}
            if do in (
                "create_subscription",
                "delete_subscription",
                "skip",
                "skip_all",
                "reset_cursor",
                "expire",
                "peek",
            ):
                facts["subscription"] = chance.choice(self.subscriptions)
            if do in ("delete_topic", "delete_subscription"):
                facts["force"] = chance.random() < 0.6
            if do in ("skip", "expire", "unacked_limit", "retention", "max_consumers"):
                facts["count"] = chance.randint(1, 6)
            steps.append(Step(do, facts))
        return tuple(steps)

    def _faults(self, weights: tuple[int, ...] = (2, 2, 1, 4, 1, 0)) -> tuple[Step, ...]:
        chance = self.chance
        steps = []
        for _ in range(chance.randint(1, 4)):
            steps.append(Step("wait", {"s": chance.choice((0.001, 0.01, 0.05, 0.3, 2))}))
            do = chance.choices(("kill", "power_cut", "full_disk", "cut", "stall", "bad_disk"), weights)[0]
            facts = {"while_sending": True} if weights is FULL_AND_KILLED and chance.random() < 0.7 else {}
            if do == "bad_disk":
                of = chance.choice(("reads", "metadata"))
                steps.append(Step(do, {"s": chance.choice((0.05, 0.5, 3)), "of": of}))
            elif do in ("full_disk", "stall"):
                steps.append(Step(do, facts | {"s": chance.choice((0.05, 1, 5))}))
            elif do == "cut":
                steps.append(Step(do, {"which": chance.randint(0, 9), "silently": chance.random() < 0.3}))
            else:
                steps.append(Step(do, facts | {"down_s": chance.choice((0, 0.2, 2))}))
        return tuple(steps)

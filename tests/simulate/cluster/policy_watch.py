"""Checks that answered changes of topic policies are in force: in quiet times within a bounded time, and at rest at all brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from tests.simulate import tape
from tests.simulate.cluster.cluster_simulation import ClusterSimulation
from tests.simulate.cluster.policy_writes import POLICIES, PolicyWrites, effective_value
from tests.simulate.life import Gone
from tests.simulate.tape import Tape

from pybroker.errors import StoreError
from pybroker.model.names import TopicName

IN_FORCE_S = 10.0
"""An answered change is in force at the owner of the topic after this time, if there is no fault."""
AFTERMATH_S = 15.0
"""After a fault, nothing is checked for this time: sessions end, brokers start, and clients reconnect."""
AT_REST_S = 10.0
"""At rest all brokers have the same policies by then."""
LOOK_S = 1.0
RULE = "policies"


class PolicyWatch:
    """Of one run. `paths` returns the full names of a topic's partitions, or of the topic itself."""

    def __init__(self, cluster: ClusterSimulation, tape_: Tape, paths: Callable[[str], list[str]]) -> None:
        self._cluster = cluster
        self._tape = tape_
        self._paths = paths

    async def watch(self) -> None:
        """Look at the owners of topics until the task is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self._look_at_owners()

    def _look_at_owners(self) -> None:
        now_s = self._cluster.now_s
        if self._last_fault_s() > now_s - AFTERMATH_S:
            return
        writes = self._writes()
        for topic, policy, text, value in self._in_force(writes):
            possible = writes.possible(topic, policy, now_s - IN_FORCE_S)
            if value not in possible:
                self._broken(f"{text}, and not with {_text(possible)}")

    def answered(self, name: str, topic: str, policy: str, value: int | None, asked_s: float) -> None:
        """Check a value that a broker has answered to an administrator."""
        if self._last_fault_s() <= asked_s - AFTERMATH_S:
            possible = self._writes().possible(topic, policy, asked_s - IN_FORCE_S)
            if value not in possible:
                self._broken(f"{name} read {policy} {value} of {topic}, and not {_text(possible)}")

    async def look_at_rest(self) -> None:
        """Compare the policies at all brokers, once the cluster is quiet."""
        ends_s = self._cluster.now_s + AT_REST_S
        while (found := await self._wrong_at_rest()) and self._cluster.now_s < ends_s:  # noqa: ASYNC110 (a state of all brokers)
            await asyncio.sleep(LOOK_S)
        for text in found:
            self._broken(f"{text} at rest")

    async def _wrong_at_rest(self) -> list[str]:
        writes = self._writes()
        found = [
            f"{text}, and not with {_text(writes.possible(topic, policy))}"
            for topic, policy, text, value in self._in_force(writes)
            if value not in writes.possible(topic, policy)
        ]
        for topic in dict.fromkeys(topic for topic, _ in writes.of):
            found += await self._different(writes, topic)
        return found

    async def _different(self, writes: PolicyWrites, topic: str) -> list[str]:
        """Compare the stored policies that each broker has read."""
        name = TopicName.parse(self._paths(topic)[0]).partitioned_name
        found, values = [], dict[str, set[int | None]]()
        for life in self._cluster.lives_now:
            assert life.service is not None
            try:
                stored = await life.ask(life.service.resources.topic_policies(name))
            except (Gone, StoreError) as error:
                found.append(f"{life.name} does not know the policies of {topic}: {error!r}")
                continue
            for policy in (each for of, each in writes.of if of == topic):
                value, possible = POLICIES[policy].stored(stored), writes.possible(topic, policy)
                values.setdefault(policy, set()).add(value)
                if value not in possible:
                    found.append(f"{life.name} has read {policy} {value} of {topic}, and not {_text(possible)}")
        found += [
            f"brokers have read {policy} {_text(different)} of {topic}"
            for policy, different in values.items()
            if len(different) > 1
        ]
        return found

    def _in_force(self, writes: PolicyWrites) -> Iterator[tuple[str, str, str, int | None]]:
        """Topic, policy, description and value at each broker that serves the topic, runs and has a session."""
        for life in self._cluster.lives_now:
            assert life.service is not None
            for topic, policy in list(writes.of):
                for path in self._paths(topic):
                    loaded = life.service.loaded.persistent.get(path)
                    if loaded is not None and not loaded.is_fenced and life.name in self._cluster.owners(path):
                        value = effective_value(policy, loaded.policies)
                        yield topic, policy, f"{life.name} serves {path} with {policy} {value}", value

    def _writes(self) -> PolicyWrites:
        return PolicyWrites(self._tape.of(tape.POLICY_SETTING, tape.POLICY_SET))

    def _last_fault_s(self) -> float:
        """When there was a fault last; now while there is one."""
        active, last_s = set(), -AFTERMATH_S
        for event in self._tape.of(tape.FAULT):
            last_s = event.at_s
            if event.facts["is_begin"]:
                active.add(event.actor)
            else:
                active.discard(event.actor)
        return self._cluster.now_s if active else last_s

    def _broken(self, text: str) -> None:
        self._tape.note("judge", tape.BROKEN, rule=RULE, text=text)


def _text(values: set[int | None]) -> str:
    return " or ".join(sorted(map(str, values)))

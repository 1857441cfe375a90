"""A whole broker on a seed: loop, disk, network and clock are the simulation's, and everything in it follows from the seed.

    async def scenario(simulation):
        await simulation.start()
        wire = await simulation.connect()
        wire.send(...)
        frame = await wire.receive()
        await simulation.kill()
        await simulation.start()

    simulation = Simulation.run(7, scenario)      # simulation.history, simulation.digest, simulation.coverage

Promises: see `simulated_run.py`.
"""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import suppress
from typing import Any

from tests.simulate.coverage import http_name
from tests.simulate.life import PORT, Gone, Life
from tests.simulate.network import SimulatedNetwork
from tests.simulate.simulated_run import SimulatedRun
from tests.simulate.wire import Wire
from tests.simulate.zookeeper_model import ZooKeeperModel
from tests.support.fault_disk import FaultDisk, PowerLoss
from tests.support.memory_network import MemoryPort

from pybroker.broker.service import BrokerService
from pybroker.config import BrokerConfig
from pybroker.local_store.store_options import LocalStoreOptions

DISK_BYTES = 64 << 20
LONGEST_WAIT_FOR_DISK_S = 0.3
"""For an operation of the disk to crash in."""
BAD_DISK = 0.4
"""How many operations fail of a disk that is bad, for a while."""
LOOKS_AT_MEMORY = 64
"""Turns of the loop from one look at the memory budget to the next."""
DISTURBED_S = 20.0
"""So long a simulated ZooKeeper is disturbed."""
ZOOKEEPER_HOST = "zookeeper"
SHARED_SETTINGS = {
    "metadata_store_url": f"zk:{ZOOKEEPER_HOST}:2181",
    "ledger_store": "local",
    "metadata_store_session_timeout_millis": 2000,
}
"""Settings of a broker with a simulated ZooKeeper."""
DOWN_S = 0.5
"""After which a process that ended by itself is started again, as a supervisor would."""
OPTIONS = (
    LocalStoreOptions(
        journal_file_bytes=64 << 10,
        max_batch_bytes=16 << 10,
        min_free_bytes=256 << 10,
        reserve_bytes=128 << 10,
        space_poll_s=1,  # most of a simulation's time nothing happens: looks that find nothing would be most of its work
    ),
    LocalStoreOptions(
        journal_file_bytes=32 << 10,
        max_batch_bytes=1,  # every run is a batch of its own
        checkpoint_max_entries=20,
        journal_max_records=40,
        checkpoint_retry_s=0.05,
        min_free_bytes=256 << 10,
        reserve_bytes=128 << 10,
        space_poll_s=1,
    ),
)


class Simulation(SimulatedRun):
    """One broker."""

    def __init__(self, seed: int, settings: dict[str, Any]) -> None:
        super().__init__(seed, settings)
        self.loop.slowness = self.chance("slowness").choice((1, 1, 1, 10, 50))
        self.loop.turned = self._turned
        self.network = SimulatedNetwork(self.chance("network"), self.loop, self._heard)
        fixed = {"broker_memory_limit_mb": 512, "managed_ledger_cache_size_mb": 1, "metrics_page_interval_ms": 0}
        self.config_fields = {**fixed, **settings}
        self.options = OPTIONS[self.chance("options").randrange(len(OPTIONS))]
        self.zookeeper = self._zookeeper()
        self.life: Life | None = None
        self._disk = FaultDisk(capacity_bytes=DISK_BYTES)
        self._disk_chance = self.chance("disk")
        self._crash_chance = self.chance("crashes")
        self._is_disk_full = False
        self._lost_power = False
        self._requests = 0
        self._disturbing: asyncio.Task[None] | None = None
        self._supervising: asyncio.Task[None] | None = None

    def _zookeeper(self) -> ZooKeeperModel | None:
        """The server that the configuration names, prepared for its cluster."""
        if not self.config_fields.get("metadata_store_url"):
            return None
        model = ZooKeeperModel(self.loop, self.chance("zookeeper"))
        self.loop.create_connection = model.connect  # type: ignore[method-assign,assignment]
        model.prepare(BrokerConfig(**self.config_fields).cluster_name)
        return model

    def _begin(self) -> None:
        if self.zookeeper is not None:
            self._disturbing = self.loop.create_task(self._disturb_zookeeper(self.zookeeper))

    # --- what a scenario uses ----------------------------------------------------------------------------------------

    @property
    def broker(self) -> BrokerService:
        """What `build` returned, of the process that runs now."""
        assert self.life is not None
        assert self.life.service is not None
        return self.life.service

    @property
    def is_up(self) -> bool:
        """Whether clients can connect."""
        return PORT in self.network.ports and self.life is not None and not self.life.is_over

    async def connect(self) -> Wire:
        """A new connection. Raises ConnectionRefusedError while nobody listens."""
        await asyncio.sleep(self.network.delay_s())
        port = self.network.ports.get(PORT)
        if port is None or not self.is_up:
            raise ConnectionRefusedError(PORT)
        assert isinstance(port, MemoryPort)
        self._wires += 1
        wire = Wire(self._wires, self.network, self)
        port.join(wire)
        return wire

    async def http(
        self, method: str, path: str, body: Any = None, query: dict[str, Any] | None = None
    ) -> tuple[int, Any]:
        """Status and body of a call, `path` with `/admin/v2`. Raises ConnectionError when the broker is gone, or goes."""
        life = self.life
        if life is None or not self.is_up or life.http is None:
            raise ConnectionRefusedError(PORT)
        self._requests += 1
        who, request = ("http", self._requests), self._requests
        self.coverage.begins(who, request, http_name(method, path))
        try:
            answer: tuple[int, Any] = await life.ask(life.http.call(method, path, body, query))
        finally:
            self.coverage.ends(who, request)
        # The answer is on the network as well.
        self._heard("http", repr((method, path, answer)).encode())
        return answer

    async def start(self) -> None:
        """A process on what the last one left; again, until one is not cut off while it starts."""
        assert self.life is None or self.life.is_over, "runs already"
        while True:
            self._find_disk()
            self.starts += 1
            life = self.life = Life(
                self.loop,
                self._disk,
                self.network,
                self.chance(f"broker {self.starts}"),
                BrokerConfig(**self.config_fields),
                self.options,
                self._fatal,
            )
            self.lives.append(life)
            if self.crashes and self._crash_chance.random() < 0.15:
                self._crash_after(
                    life, self._crash_chance.randrange(80), is_power_loss=self._crash_chance.random() < 0.5
                )
            try:
                await life.ask(life.start())
            except Gone:
                if self.life is not life or not life.is_over:
                    raise
                continue
            life.disk.plan = None
            self.note("simulation", "started", number=self.starts)
            return

    async def stop(self) -> None:
        """In order, as on SIGTERM."""
        life = self.life
        assert life is not None
        await life.ask(life.stop())
        self.note("simulation", "stopped")
        self.network.ports.clear()
        self.life = None

    async def kill(self) -> None:
        """kill -9, between two callbacks or, as often, in the middle of an operation of the disk; `start` comes next."""
        await self._crash(is_power_loss=False)

    async def power_cut(self) -> None:
        """The machine goes off, at such a moment: what was not synced may be lost."""
        await self._crash(is_power_loss=True)

    def fill_disk(self, is_full: bool) -> None:
        """No file can grow any more, or all can again."""
        self._is_disk_full = is_full
        self._set_capacity()
        self.note("simulation", "disk", full=is_full)

    def spoil_disk(self, of: str) -> None:
        """Operations fail now and then, of one kind: `reads` of what is stored, or all of `metadata`; empty: of none any more."""
        life = self.life
        if life is None or life.is_over:
            return
        self.note("simulation", "disk", fails=of)
        chance = self._disk_chance

        def plan(operation: str, name: str) -> None:
            is_metadata = name.startswith("metadata")
            is_hit = is_metadata if of == "metadata" else operation == "read" and not is_metadata
            if is_hit and chance.random() < BAD_DISK:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        life.disk.plan = plan if of else None

    async def _disturb_zookeeper(self, model: ZooKeeperModel) -> None:
        """Lose connections, answers and sessions, for the first part of the simulation."""
        chance = self.chance("faults of zookeeper")
        while self.loop.time() < self.began_s + DISTURBED_S:
            await asyncio.sleep(chance.uniform(0.2, 4))
            kind = chance.choice(("cut", "freeze", "refuse", "lost answers"))
            self.note("simulation", "zookeeper", fault=kind)
            match kind:
                case "cut":
                    model.cut()
                case "freeze":
                    model.freeze(ZOOKEEPER_HOST, chance.choice([0.3, 1.0, 4.0]))
                case "refuse":
                    model.refuse(chance.uniform(0.1, 3))
                case _:
                    model.lost_answers += 1

    # --- crashes -----------------------------------------------------------------------------------------------------

    async def _crash(self, *, is_power_loss: bool) -> None:
        life = self.life
        if life is None or life.is_over:
            return
        if self._crash_chance.random() < 0.5:
            self._crash_after(life, self._crash_chance.choice((0, 1, 2, 5, 20)), is_power_loss=is_power_loss)
            with suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_WAIT_FOR_DISK_S):
                    await life.over.wait()
        self._end(life, is_power_loss=is_power_loss)

    def _crash_after(self, life: Life, operations: int, *, is_power_loss: bool) -> None:
        """In the middle of the operation that comes after so many."""
        left = operations

        def plan(_operation: str, _name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                self._end(life, is_power_loss=is_power_loss)
                raise PowerLoss

        life.disk.plan = plan

    def _end(self, life: Life, *, is_power_loss: bool) -> None:
        if life.is_over:
            return
        self.crashes += 1
        self.note("simulation", "power_cut" if is_power_loss else "killed")
        life.end()
        life.disk.is_off = True
        self._lost_power = is_power_loss
        self.network.die(life, keeps_unsent=not is_power_loss)
        if self.zookeeper is not None:
            self.zookeeper.cut()

    def _fatal(self, life: Life, error: BaseException) -> None:
        """The store says that the process must end. Only a fault of the disk is a reason."""
        if life.is_over:
            return
        self.bugs.append(f"the store ended the process: {error!r}")
        self._end(life, is_power_loss=False)
        self._supervising = self.loop.create_task(self._restart())

    async def _restart(self) -> None:
        await asyncio.sleep(DOWN_S)
        if self.life is not None and self.life.is_over and not self._is_ending:
            await self.start()

    def _find_disk(self) -> None:
        """What a crash has left; only now, since the operation that it happened in has come to its end meanwhile."""
        disk = self._disk
        if disk.is_off:
            self._disk = disk.after_power_loss(self._disk_chance) if self._lost_power else disk.after_kill()
            self._set_capacity()

    def _set_capacity(self) -> None:
        disk = self._disk
        disk.capacity_bytes = disk._used_bytes() if self._is_disk_full else DISK_BYTES

    def _turned(self, turns: int) -> None:
        life = self.life
        if turns % LOOKS_AT_MEMORY or life is None or life.is_over:
            return
        budget = life.runtime.memory.budget
        budget.check_invariants()
        assert budget.used_bytes <= budget.limit_bytes, f"{budget.used_bytes} bytes of {budget.limit_bytes} are taken"

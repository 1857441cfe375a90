"""An embedded broker on its caller's event loop: start, crash, restart, reset, close.

Invariants: ports stay the same over restarts; after `close` no part of the broker runs; one of these operations runs at
a time, and the broker's time does not advance meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from pybroker.broker_process import Broker, StartError
from pybroker.config import KEYS, BrokerConfig, ConfigError, format_value, load
from pybroker.embedding.faults import Faults, Line, warn_of
from pybroker.embedding.in_process_connection import EmbeddedConnection
from pybroker.embedding.stores import FillableDisk, Fullness, MemoryStores
from pybroker.embedding.virtual_time import MovedClock, VirtualRuntime
from pybroker.runtime import logs
from pybroker.runtime.tasks import TaskOwner
from pybroker.server.connection import Connection
from pybroker.server.server_context import ServerContext

T = TypeVar("T")
DEFAULTS: dict[str, object] = {
    "bind_address": "127.0.0.1",
    "advertised_address": "127.0.0.1",
    "broker_service_port": 0,
    "web_service_port": 0,
    "event_loop_watchdog_ms": 0,  # it needs a process-wide signal
    "metrics_page_interval_ms": 0,
    "managed_ledger_cache_size_mb": 16,
    "delayed_delivery_tick_time_millis": 1,  # with an advanced clock, messages are due at exact times
    "storage_reserve_mb": 1,
    "journal_file_size_mb": 4,
}
PORT_TRIES = 40
PORT_TRY_S = 0.05
SETTLE_TURNS = 50
SETTLE_LOOK_S = 0.002
LONGEST_SETTLE_S = 5.0
MOST_MS = 100 * 365 * 86_400_000.0
OF_A_BROKER = (
    "checkpoint.db",
    "directory.mark",
    "journal",
    "ledgers",
    "metadata.",
    "run.id",
    "snapshots",
    "space.reserve",
)
"""Name prefixes of all files that a broker creates in its data directory, except `LOCK`, which marks a data
directory.
"""


class NotRunning(Exception):
    """The embedded broker has crashed, or was closed."""


class EmbeddedClock:
    """The broker's clock, which follows the machine's clock until a test advances it."""

    def __init__(self, broker: EmbeddedBroker, clock: MovedClock) -> None:
        self._broker = broker
        self._clock = clock

    def now_ms(self) -> int:
        return self._clock.wall_ms()

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC)

    async def advance(
        self,
        by: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> None:
        """Advance the broker's clock by the sum of all arguments. On return, timers that became due have run. Raises
        ValueError for a negative amount.
        """
        minutes += (days * 24 + hours) * 60
        milliseconds += (minutes * 60 + seconds) * 1000
        await self._broker.advance_ms(milliseconds + (by or timedelta()) / timedelta(milliseconds=1))


class _EmbeddedHost:
    def __init__(self, embedded: EmbeddedBroker, moved: MovedClock) -> None:
        self._embedded = embedded
        self._moved = moved

    def request_stop(self) -> None:
        """Do nothing: the process belongs to the caller."""

    def new_connection(self, context: ServerContext) -> Connection:
        return EmbeddedConnection(context, self._embedded.faults, self._moved)

    def storage_is_lost(self, error: BaseException) -> None:
        self._embedded.storage_is_lost(error)


class EmbeddedBroker:
    """A broker in this process, for use on its event loop. Created and closed by `embed`."""

    def __init__(self, config: BrokerConfig, run: Callable[[Callable[[], Any]], Any] | None = None) -> None:
        """`run` executes a function on the event loop, so that other threads can inject faults."""
        self._config = config
        self._moved = MovedClock()
        self._fullness = Fullness()
        self._memory = MemoryStores(self._fullness) if config.ledger_store == "memory" else None
        self._runtime: VirtualRuntime | None = None
        self._running: Broker | None = None
        self._changing = asyncio.Lock()
        self._is_closed = False
        self._ports: tuple[int | None, int | None] = (None, None)
        self._tasks = TaskOwner("embedded")
        self.clock = EmbeddedClock(self, self._moved)
        self.faults = Faults(self._fullness, self._lines, run or _at_once)

    # --- addresses ---------------------------------------------------------------------------------------------------

    @property
    def service_url(self) -> str:
        return f"pulsar://{self._config.advertised_address}:{self._ports[0]}"

    @property
    def admin_url(self) -> str:
        return f"http://{self._config.advertised_address}:{self._ports[1]}"

    @property
    def is_running(self) -> bool:
        return self._running is not None

    @property
    def broker(self) -> Broker:
        """Return the running broker. Raises NotRunning."""
        if self._running is None:
            raise NotRunning(
                "the embedded broker is not running: call restart(), or create a new embedded broker if this broker was closed"
            )
        return self._running

    # --- start and end -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        async with self._changing:
            await self._start()

    async def crash(self) -> None:
        """Stop immediately, as with `kill -9`: clients lose their connections without notification. Confirmed data
        is kept for `restart`, even if it is only in memory. Does nothing if the broker is not running.
        """
        async with self._changing:
            await self._crash()

    async def restart(self) -> None:
        """Start again with the stored data, at the same ports. A running broker is stopped first, as by `crash`. Raises
        NotRunning after `close`.
        """
        async with self._changing:
            await self._crash()
            await self._start()

    async def reset(self) -> None:
        """Start again at the same ports without stored data and faults, and with the machine's time. The broker's files
        in its data directory are deleted. Clients reconnect by themselves.
        """
        async with self._changing:
            unused = self.faults.end_all()
            await self._crash()
            self._moved.added_ms = 0.0
            if self._memory is not None:
                self._memory = MemoryStores(self._fullness)
            else:
                await asyncio.to_thread(_empty, Path(self._config.data_directory))
            await self._start()
        warn_of(unused)

    async def close(self) -> None:
        async with self._changing:
            self._is_closed = True
            running, self._running = self._running, None
            unused = self.faults.end_all()
            if running is not None:
                await running.close()
                self._end_of_life()
            await self._tasks.close()
        warn_of(unused)

    async def advance_ms(self, milliseconds: float) -> None:
        if not milliseconds >= 0:
            raise ValueError("the time of the embedded broker cannot be moved back")
        if self._moved.added_ms + milliseconds > MOST_MS:
            raise ValueError("advance_ms cannot move the time by more than a hundred years in total")
        async with self._changing:
            if self._runtime is None:
                self._moved.added_ms += milliseconds  # the broker is not running
            else:
                await self._runtime.advance(milliseconds, self._settle)

    async def _start(self) -> None:
        if self._is_closed:
            raise NotRunning("the embedded broker was closed")
        fields: dict[str, Any] = {}
        if self._ports != (None, None):
            fields = {"broker_service_port": self._ports[0], "web_service_port": self._ports[1]}
        for left in reversed(range(PORT_TRIES)):
            runtime = VirtualRuntime(_replaced(self._config, fields), self._moved)
            broker = Broker(
                runtime,
                _EmbeddedHost(self, self._moved),
                FillableDisk(self._fullness),
                stores=None if self._memory is None else self._memory.stores(),
            )
            try:
                await broker.start()
                break
            except StartError as error:
                runtime.cancel_timers()
                if not fields or not left or not _is_port_taken(error):
                    raise
                await asyncio.sleep(PORT_TRY_S)  # an outgoing connection may use the port for a short time
            except BaseException:
                runtime.cancel_timers()
                raise
        self._runtime, self._running = runtime, broker
        self._ports = (broker.listener.port, broker.http.port)

    async def _crash(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        if self._memory is not None:
            self._memory = self._memory.copied()
        await running.crash()
        self._end_of_life()

    def _end_of_life(self) -> None:
        if self._runtime is not None:
            self._runtime.cancel_timers()
            self._runtime = None

    def storage_is_lost(self, error: BaseException) -> None:
        """Crash the embedded broker, because a durable write failed. (`pybroker serve` ends its process in this
        case.)
        """
        logs.error(
            "storage.lost", error=str(error), action="the embedded broker crashes: call restart() to start it again"
        )
        self._tasks.start(self.crash(), "crash")

    # --- faults and time -----------------------------------------------------------------------------------

    def _lines(self) -> list[Line]:
        if self._running is None:
            return []
        return [each for each in self._running.listener.context.connections if isinstance(each, EmbeddedConnection)]

    async def _settle(self) -> None:
        if self._running is None:
            return
        broker_context = self._running.service.broker_context
        for _ in range(SETTLE_TURNS):
            await asyncio.sleep(0)
        if self._memory is None:
            await broker_context.ledgers.store.flush()
        with contextlib.suppress(TimeoutError):  # clients may publish continuously
            async with asyncio.timeout(LONGEST_SETTLE_S):
                while broker_context.pumps or broker_context.compaction_slot.locked():  # noqa: ASYNC110  (they say nothing)
                    await asyncio.sleep(SETTLE_LOOK_S if broker_context.compaction_slot.locked() else 0)
        if self._memory is None:
            await asyncio.sleep(SETTLE_LOOK_S)  # file reads end in threads
        for _ in range(SETTLE_TURNS):
            await asyncio.sleep(0)


@asynccontextmanager
async def embed(directory: str | Path | None = None, **settings: object) -> AsyncIterator[EmbeddedBroker]:
    """Run a broker on the running event loop until the end of the `with` block. Its data is in memory, or in
    `directory`.

    `settings` are keys of broker.conf, unchanged (`brokerDeduplicationEnabled=True`) or in snake case. Raises
    ConfigError for unknown keys, and the errors of a broker that cannot start.
    """
    broker = EmbeddedBroker(configuration(directory, settings))
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()


def configuration(directory: str | Path | None, settings: dict[str, object]) -> BrokerConfig:
    by_field = {info.field: info for info in KEYS.values()}
    store = "memory" if directory is None else "local"
    metadata = "memory" if directory is None else "sqlite"
    texts: dict[str, str] = {}
    given = {**DEFAULTS, "ledger_store": store, "metadata_store": metadata}
    if directory is not None:
        given["data_directory"] = str(directory)
    for name, value in given.items():
        texts[by_field[name].key] = _text(value)
    for name, value in settings.items():
        info = KEYS.get(name) or by_field.get(name)
        if info is None:
            raise ConfigError(f"broker.conf has no key {name}")
        texts[info.key] = _text(value)
    config = load(None, {}, texts).config
    if (config.ledger_store == "memory") != (config.metadata_store == "memory"):
        raise ConfigError("ledgerStore and metadataStore must both be in memory, or both in the data directory")
    if config.ledger_store != "memory" and directory is None:
        raise ConfigError(
            "an embedded broker with stores that are not in memory needs a directory: call embed(directory)"
        )
    return config


def _replaced(config: BrokerConfig, fields: dict[str, Any]) -> BrokerConfig:
    """Return a changed copy, because a broker changes its configuration object when keys are set at run time."""
    values = {info.field: getattr(config, info.field) for info in KEYS.values()}
    return BrokerConfig(**{**values, **fields})


def _is_port_taken(error: StartError) -> bool:
    return any(errno.errorcode[errno.EADDRINUSE] in text or "in use" in text for text in map(str, error.args))


def _empty(directory: Path) -> None:
    for path in directory.iterdir():
        if not path.name.startswith(OF_A_BROKER):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _at_once(work: Callable[[], T]) -> T:
    return work()


def _text(value: object) -> str:
    if isinstance(value, (list, tuple)):
        value = tuple(map(str, value))
    return format_value(value)  # type: ignore[arg-type]

"""`/admin/v3/diagnostics`: stacks, recent log, disk and memory usage of the broker process, for problem reports.

Requires a superuser. Values of secret configuration keys are masked.
"""

# ruff: noqa: N815  (the attributes are the JSON properties)

from __future__ import annotations

import asyncio
import platform
import shutil
import sys
import threading
import traceback
from collections.abc import Iterable
from pathlib import Path

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_response
from pybroker.admin.calls.routing import route
from pybroker.config import KEYS, BrokerConfig
from pybroker.memory.memory_limit import memory_limit
from pybroker.process.python_build import python_build
from pybroker.runtime import logs
from pybroker.version import __version__
from pybroker.wire import core

MAX_TASKS = 1000
_TASKS_PER_SLICE = 50
_FRAMES = 8
_MASK = "****"
_LEAST_SECRET = 4
"""Minimum length of a masked secret. Shorter values would match ordinary words."""


class DiagnosticsShown(msgspec.Struct):
    """Diagnostics of the broker process. Sizes are in bytes. `tasks` lists at most 1,000 of `taskCount` asyncio tasks.
    `wireCore`: the implementation of the frame decoder, `compiled` or `python`. `pythonBuild`: `optimised` or `undeclared`.
    """

    version: str
    python: str
    pythonBuild: str
    platform: str
    wireCore: str
    threads: dict[str, str]
    taskCount: int
    tasks: list[str]
    disk: dict[str, int]
    memoryLimit: int
    log: list[str]


def routes() -> list[Route]:
    return [route("GET", "/admin/v3/diagnostics", diagnostics)]


async def diagnostics(call: Call) -> Response:
    await call.require_superuser()
    secrets = secret_values(call.config)
    tasks = asyncio.all_tasks()
    stacks = []
    for number, task in enumerate(tasks):
        if number == MAX_TASKS:
            break
        if number % _TASKS_PER_SLICE == _TASKS_PER_SLICE - 1:
            await asyncio.sleep(0)
        stacks.append(without(secrets, _stack_of_task(task)))
    directory = call.config.data_directory if call.broker.data_directory is not None else ""
    return json_response(
        DiagnosticsShown(
            __version__,
            sys.version,
            python_build(),
            platform.platform(),
            core.IMPLEMENTATION,
            {name: without(secrets, stack) for name, stack in _stacks_of_threads().items()},
            len(tasks),
            sorted(stacks),
            await asyncio.to_thread(_disk, directory),
            (await asyncio.to_thread(memory_limit)).size_bytes,
            [without(secrets, line) for line in logs.recent_lines()],
        )
    )


def secret_values(config: BrokerConfig) -> list[str]:
    values = (str(getattr(config, info.field)) for info in KEYS.values() if info.secret)
    return sorted({value for value in values if len(value) >= _LEAST_SECRET}, key=len, reverse=True)


def without(secrets: Iterable[str], text: str) -> str:
    for secret in secrets:
        text = text.replace(secret, _MASK)
    return text


def _stack_of_task(task: asyncio.Task[object]) -> str:
    frames = [line for frame in task.get_stack(limit=_FRAMES) for line in traceback.format_stack(frame, limit=1)]
    return f"{task.get_name()}\n{''.join(frames)}"


def _stacks_of_threads() -> dict[str, str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        f"{names.get(ident, 'unknown')} ({ident})": "".join(traceback.format_stack(frame))
        for ident, frame in sys._current_frames().items()  # noqa: SLF001  (the documented way to get them)
    }


def _disk(directory: str) -> dict[str, int]:
    if not directory or not Path(directory).exists():
        return {}
    usage = shutil.disk_usage(directory)
    return {"total": usage.total, "free": usage.free}

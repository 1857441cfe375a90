"""Every action that `explain` suggests, carried out as printed: on a real situation, with its stated effect, and nothing else lost.

Each situation is made once for each of its actions. The command comes from the text that `pybroker explain` has written. It names
the broker itself, and no environment variable does. What is irreversible is first refused without a confirmation.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import re
import shlex
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support import stuck_publishing, stuck_situations
from tests.support.commands import runner, without_a_broker
from tests.support.explaining import Explained, explained
from tests.support.stuck_situations import Situation

from pybroker.broker.explain import actions

SITUATIONS: list[type[Situation]] = [
    each
    for module in (stuck_situations, stuck_publishing)
    for each in vars(module).values()
    if inspect.isclass(each) and each.__module__ == module.__name__ and issubclass(each, Situation) and each.code
]


class Terminal(io.StringIO):
    """A standard input on which a person answers."""

    def isatty(self) -> bool:
        return True


def test_every_action_has_a_situation_in_which_it_is_carried_out() -> None:
    suggested = {
        name
        for name, function in inspect.getmembers(actions, inspect.isfunction)
        if function.__module__ == actions.__name__ and not name.startswith("_")
    }
    helpers = {"topic_path", "subscription_path", "hand_over", "of_open_transaction"}
    assert suggested - helpers == frozenset().union(*(each.used for each in SITUATIONS))


ACTION = re.compile(r"^  \d+\. (.*?)\n {5}((?:PULSAR_\w+=\S+ )*pybroker .*?)$", re.DOTALL | re.MULTILINE)


def printed(out: str, code: str) -> dict[str, str]:
    """Return the texts of the actions of a finding and their commands, as they are printed."""
    block = out.partition(f"\n  [{code}] ")[2].partition("\n  [")[0]
    if not block:
        raise StopIteration
    return {" ".join(text.split()): command for text, command in ACTION.findall(block)}


@contextlib.asynccontextmanager
async def made(
    kind: type[Situation], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Situation, Explained, list[str]]]:
    situation = kind(monkeypatch)
    async with explained(**kind.settings) as world:
        arguments = [*await situation.make(world), "--url", world.broker.admin_url]
        try:
            yield situation, world, arguments
        finally:
            for task in situation.tasks:
                task.cancel()
            await asyncio.gather(*situation.tasks, return_exceptions=True)


@pytest.mark.parametrize("kind", SITUATIONS, ids=lambda kind: kind.__name__)
async def test_each_suggested_command_has_its_stated_effect_and_loses_nothing_else(
    kind: type[Situation],
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
    tmp_path: Any,
) -> None:
    without_a_broker(monkeypatch, str(tmp_path))
    run = runner(capsysbinary)
    beginnings = [*kind(monkeypatch).checks()]
    for number, beginning in enumerate(beginnings):
        with monkeypatch.context() as patched:
            async with made(kind, patched) as (situation, world, arguments):
                found: dict[str, str] = {}
                for _ in range(200):
                    asked = await asyncio.to_thread(run, "explain", *arguments)
                    with contextlib.suppress(StopIteration):
                        found = printed(asked.out, kind.code)
                        break
                    await asyncio.sleep(0.01)
                assert found, asked
                assert len(found) == len(beginnings), found
                text = [*found][number]
                assert text.startswith(beginning), found
                words = shlex.split(found[text])
                assert words[0] == "pybroker"
                if text.startswith("Irreversible: "):
                    before = {name: each.backlog_entries for name, each in world.topic().subscriptions.items()}
                    patched.setattr("sys.stdin", Terminal("no\n"))
                    assert (await asyncio.to_thread(run, *words[1:])).code == 1
                    patched.setattr("sys.stdin", io.StringIO("yes\n"))  # no terminal
                    assert (await asyncio.to_thread(run, *words[1:])).code == 2
                    assert {n: each.backlog_entries for n, each in world.topic().subscriptions.items()} == before
                patched.setattr("sys.stdin", Terminal("yes\n"))
                ran = await asyncio.to_thread(run, *words[1:])
                assert ran.code in {0, 3}, ran
                await situation.checks()[beginning](world, ran)

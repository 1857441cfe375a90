"""Base classes of model tests: the code under test beside a model of it, driven by the steps of a script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class World:
    """The code under test, a model of it, and all that both depend on. Derive from `SyncWorld` or `AsyncWorld`.

    Operation: a script is a sequence of steps; a step is a name followed by its arguments. By default the name is that of a method
    of the subclass; a subclass with another form of steps overrides `perform`. After each step `check` compares code and model.
    After the last step `finish` brings everything to rest and checks the end state. `discard` releases what the world holds, also
    after a failure.

    A failure carries a note with the number of its step, so that it can be found in the script that a seed draws.

    Limitations: `check` must not change the code under test, and a step draws random numbers only from a source of the world;
    otherwise the same script does not do the same again.
    """

    def check(self) -> None:
        """Assert what must hold after every step."""

    @contextmanager
    def _failure_noted(self, number: int, step: tuple[Any, ...]) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            error.add_note(f"{type(self).__name__}: step {number} is {step!r}")
            raise


class SyncWorld(World):
    """A world whose steps are plain calls."""

    def perform(self, name: str, *arguments: Any) -> None:
        """Do one step."""
        step: Callable[..., object] = getattr(self, name)
        step(*arguments)

    def finish(self) -> None:
        """Bring everything to rest and assert what must hold at the end of a script."""

    def discard(self) -> None:
        """Release what the world holds, in whatever state it is."""

    def take(self, name: str, *arguments: Any) -> None:
        """Do one step and check."""
        self.perform(name, *arguments)
        self.check()

    def close(self) -> None:
        """End a script that has not failed."""
        try:
            self.finish()
        finally:
            self.discard()

    def play(self, script: Iterable[tuple[Any, ...]]) -> None:
        """Take the steps of `script` and close. Raises the first failure. A script may be a generator that draws each step."""
        try:
            for number, step in enumerate(script):
                with self._failure_noted(number, step):
                    self.take(*step)
        except BaseException:
            self.discard()
            raise
        self.close()


class AsyncWorld(World):
    """A world whose steps are coroutines. Between two steps the event loop runs no other task unless a step awaits."""

    async def start(self) -> None:
        """Begin what a constructor cannot await."""

    async def perform(self, name: str, *arguments: Any) -> None:
        """Do one step."""
        await getattr(self, name)(*arguments)

    async def finish(self) -> None:
        """Bring everything to rest and assert what must hold at the end of a script."""

    async def discard(self) -> None:
        """Release what the world holds, in whatever state it is."""

    async def take(self, name: str, *arguments: Any) -> None:
        """Do one step and check."""
        await self.perform(name, *arguments)
        self.check()

    async def play(self, script: Iterable[tuple[Any, ...]]) -> None:
        """Start, take the steps of `script` and finish. Raises the first failure."""
        try:
            await self.start()
            for number, step in enumerate(script):
                with self._failure_noted(number, step):
                    await self.take(*step)
            await self.finish()
        finally:
            await self.discard()

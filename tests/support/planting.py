"""Injection of bugs (mutants) that a random test must find, with detection of broken mutants.

    with found_by_walk(plant):
        walk_many()

A mutant patches names of the broker. If these have changed, the mutant's own code fails, and every random test with
it, which would count as found. So a test finds a mutant only if it fails with the assertion of a model or oracle (or
another named error), nothing failed in the mutant's own code, and each of its functions was called.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import pytest

Plant = Callable[[pytest.MonkeyPatch], None]

PROGRAM_ERRORS = (AttributeError, TypeError, NameError, ImportError)
"""Errors of code that does not fit together. They never indicate an invalid state of the broker."""
_NAMED = re.compile("|".join(rf"\b{each.__name__}\b" for each in PROGRAM_ERRORS))
_OF_A_PLANT = (*PROGRAM_ERRORS, LookupError, ValueError)
"""Errors that indicate a broken mutant if a line of it raises them."""


class BrokenPlant(Exception):
    """The mutant no longer fits the patched code."""


class Planting(pytest.MonkeyPatch):  # type: ignore[misc]
    """A patch that records failures and calls of its functions for `require_whole`."""

    def __init__(self) -> None:
        super().__init__()
        self._errors: list[BaseException] = []
        self._uncalled: set[str] = set()
        self._is_planted = False

    def setattr(self, target: Any, name: Any, value: Any = ..., raising: bool = True) -> None:
        """Patch like the parent class, which also accepts a dotted name."""
        if self._is_planted:  # called by the mutant's own functions, temporarily
            super().setattr(target, name, value, raising)
            return
        label = name if isinstance(name, str) else target
        try:
            if value is ...:
                super().setattr(target, self._heard(label, name), raising=raising)
            else:
                super().setattr(target, name, self._heard(label, value), raising)
        except (AttributeError, ImportError) as error:
            raise BrokenPlant(f"there is no {label} any more: {error}") from error

    def planted(self) -> None:
        """Mark the mutant as complete: nothing more is patched."""
        self._is_planted = True

    def require_whole(self) -> None:
        """Raise BrokenPlant if the mutant's own code failed, or a part of it was never called."""
        for error in self._errors:
            raise BrokenPlant(f"the plant itself failed: {error!r}") from error
        if self._uncalled:
            raise BrokenPlant(f"never called: {', '.join(sorted(self._uncalled))}")

    def _heard(self, label: str, value: Any) -> Any:
        if isinstance(value, property):
            return value.getter(self._heard(label, value.fget))
        if isinstance(value, staticmethod):
            return staticmethod(self._heard(label, value.__func__))
        if not isinstance(value, FunctionType):
            return value
        self._uncalled.add(label)
        return self._wrapped(label, value)

    def _wrapped(self, label: str, function: FunctionType) -> Callable[..., Any]:
        is_brokers = function.__module__.startswith("pybroker.")  # a function of the broker replaces another one
        own_files = {__file__} if is_brokers else {__file__, function.__code__.co_filename}

        @contextmanager
        def hearing() -> Iterator[None]:
            self._uncalled.discard(label)
            try:
                yield
            except _OF_A_PLANT as error:
                if _is_raised_in(error, own_files):
                    self._errors.append(error)
                raise

        @functools.wraps(function)
        async def in_a_task(*args: Any, **more: Any) -> Any:
            with hearing():
                return await function(*args, **more)

        @functools.wraps(function)
        def in_steps(*args: Any, **more: Any) -> Iterator[Any]:
            with hearing():
                return (yield from function(*args, **more))  # type: ignore[no-any-return]

        @functools.wraps(function)
        async def as_they_come(*args: Any, **more: Any) -> AsyncIterator[Any]:
            with hearing():
                async for each in function(*args, **more):
                    yield each

        @functools.wraps(function)
        def at_once(*args: Any, **more: Any) -> Any:
            with hearing():
                return function(*args, **more)

        if inspect.iscoroutinefunction(function):
            return in_a_task
        if inspect.isasyncgenfunction(function):
            return as_they_come
        return in_steps if inspect.isgeneratorfunction(function) else at_once


@contextmanager
def planted(plant: Plant) -> Iterator[Planting]:
    """Apply the mutant within the block."""
    with Planting.context() as patch:
        plant(patch)
        patch.planted()  # type: ignore[attr-defined]
        yield patch  # type: ignore[misc]


@contextmanager
def found_by_walk(plant: Plant, *others: type[BaseException], says: str = "") -> Iterator[None]:
    """Require that the block fails with an AssertionError, or one of `others`, because of `plant`.

    `says`: a pattern in the error's message.
    """
    with planted(plant) as patch:
        try:
            yield
        except (AssertionError, *others) as error:  # type: ignore[misc]
            patch.require_whole()
            require_no_program_error(error)
            if not re.search(says, str(error)):
                pytest.fail(f"{error!r} does not say {says!r}")
            return
        except PROGRAM_ERRORS as error:
            raise BrokenPlant(f"the walk ends with {error!r}") from error
        patch.require_whole()
    pytest.fail(f"the planted bug {getattr(plant, '__name__', plant)} is not found")


def require_no_program_error(error: BaseException | str | None) -> None:
    """Raise BrokenPlant if `error`, its cause, or its text names an error of code that does not fit together."""
    if isinstance(error, str):
        if names := _NAMED.findall(error):
            raise BrokenPlant(f"the walk ends because of a {names[0]}: {error}")
        return
    while error is not None:
        if isinstance(error, PROGRAM_ERRORS):
            raise BrokenPlant(f"the walk ends because of {error!r}") from error
        for each in getattr(error, "exceptions", ()):
            require_no_program_error(each)
        error = error.__cause__ or error.__context__


def _is_raised_in(error: BaseException, files: set[str]) -> bool:
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and place.tb_frame.f_code.co_filename in files

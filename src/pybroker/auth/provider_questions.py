"""Questions to the authorization provider: bounded in time and number, with a defined error for each failure.

Operation: the first step of a question runs in the caller's task. A provider that answers from memory has then answered,
without an iteration of the event loop, a timer or a slot. A question that must wait takes a slot until its answer, at
most `authorizationTimeoutMillis`. The caller's cancellation cancels the question.

Invariant: a question that fails grants nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, Generic, TypeVar

from pybroker.auth.plugins import failure_place
from pybroker.errors import AuthorizationError, BrokerError, ServiceNotReady
from pybroker.runtime import logs

T = TypeVar("T")

ROLES_SHARE = 4
"""One role may use one slot in this number, so that a provider that hangs for one role does not affect the others."""


class ProviderQuestions:
    """The questions of one broker. `name` is the provider's name in errors and logs."""

    def __init__(self, name: str, timeout_s: float, max_pending: int) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._max_pending = max_pending
        self._max_of_role = max(1, max_pending // ROLES_SHARE)
        self._pending_of: Counter[str | None] = Counter()
        self.pending = 0
        """Number of questions that wait for an answer of the provider."""
        self.has_waited = False
        """Whether the provider has ever not answered from memory."""
        self.failures: Counter[str] = Counter({"TIMEOUT": 0, "TOO_MANY_PENDING": 0, "PROVIDER_ERROR": 0})
        """Questions without an answer, by reason."""

    async def ask(self, role: str | None, question: Coroutine[Any, Any, T]) -> T:
        """Return the provider's answer.

        Raises AuthorizationError and other errors of the broker as the provider does; ServiceNotReady if the provider
        does not answer in time, or too many questions are pending; and AuthorizationError for any other exception.
        """
        try:
            waits_for = question.send(None)
        except StopIteration as answer:
            found: T = answer.value
            return found
        except Exception as error:  # noqa: BLE001  (the code of a plugin)
            raise self._failed(error) from None
        self.has_waited = True
        return await self._answer(role, _Rest(question, waits_for))

    async def _answer(self, role: str | None, rest: Awaitable[T]) -> T:
        is_full = self.pending >= self._max_pending or self._pending_of[role] >= self._max_of_role
        self.pending += 1
        self._pending_of[role] += 1
        # Above the limit the question is cancelled, not abandoned, so that the provider can release its connection.
        deadline = asyncio.timeout(0 if is_full else self._timeout_s)
        try:
            async with deadline:
                return await rest
        except Exception as error:  # noqa: BLE001  (the code of a plugin)
            if not deadline.expired():
                raise self._failed(error) from None
            raise (self._too_many() if is_full else self._too_late()) from None
        finally:
            self.pending -= 1
            self._pending_of[role] -= 1
            if not self._pending_of[role]:
                del self._pending_of[role]

    def _too_many(self) -> BrokerError:
        self.failures["TOO_MANY_PENDING"] += 1
        return ServiceNotReady(
            f"too many requests wait for the authorization provider {self._name} (authorizationMaxPendingQuestions): "
            "try again later"
        )

    def _too_late(self) -> BrokerError:
        self.failures["TIMEOUT"] += 1
        return ServiceNotReady(
            f"the authorization provider {self._name} did not answer within {self._timeout_s:g} s "
            "(authorizationTimeoutMillis): try again later"
        )

    def _failed(self, error: Exception) -> BrokerError:
        if isinstance(error, BrokerError):
            return error
        self.failures["PROVIDER_ERROR"] += 1
        logs.error(
            "authorization.provider_failed", provider=self._name, error=type(error).__name__, at=failure_place(error)
        )
        return AuthorizationError(
            f"the authorization provider {self._name} failed; see authorization.provider_failed in the broker's log"
        )


class _Rest(Generic[T]):
    """The steps of a coroutine after its first one, which returned `waits_for`."""

    def __init__(self, begun: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._begun = begun
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, T]:
        waits_for = self._waits_for
        while True:
            step: Callable[[], Any]
            try:
                step = partial(self._begun.send, (yield waits_for))
            except GeneratorExit:
                self._begun.close()
                raise
            except BaseException as error:  # noqa: BLE001  (for example the caller's cancellation)
                step = partial(self._begun.throw, error)
            try:
                waits_for = step()
            except StopIteration as answer:
                found: T = answer.value
                return found

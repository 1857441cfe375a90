"""An authorization provider whose answers a test holds back, as a slow remote service does."""

from __future__ import annotations

import asyncio
from typing import Self

from pybroker.auth.authorization_provider import AuthorizationEnvironment, AuthorizationProvider
from pybroker.errors import AuthorizationError
from pybroker.model.names import TopicName

NAME = "tests.support.held_authorization:HeldAuthorization"
SUPERUSER = "super"


class HeldAuthorization(AuthorizationProvider):
    """`SUPERUSER` may do everything, roles in `permitted` may produce and consume. No question is answered at once.

    Questions of roles in `held` wait until `release`, and those of roles in `broken` raise an unexpected error.
    """

    def __init__(self, environment: AuthorizationEnvironment) -> None:
        self.environment = environment
        self.permitted: set[str | None] = set()
        self.held: set[str | None] = set()
        self.broken: set[str | None] = set()
        self.asked: list[str] = []
        """The questions: method and role."""
        self.waiting: list[str] = []
        """The held questions without an answer."""
        self._changed = asyncio.Event()

    @classmethod
    def create(cls, environment: AuthorizationEnvironment) -> Self:
        return cls(environment)

    def release(self) -> None:
        """Answer all held questions, by the permissions that the roles had when they were asked."""
        self.held.clear()
        self._changed.set()
        self._changed = asyncio.Event()

    async def is_superuser(self, role: str | None) -> bool:
        await asyncio.sleep(0)
        return role == SUPERUSER

    async def administers(self, tenant: str, role: str | None) -> bool:
        return await self.is_superuser(role)

    async def require_produce(self, topic: TopicName, role: str | None) -> None:
        await self._require("produce", role)

    async def require_consume(self, topic: TopicName, subscription: str, role: str | None) -> None:
        await self._require("consume", role)

    async def _require(self, method: str, role: str | None) -> None:
        question = f"{method} {role}"
        self.asked.append(question)
        is_permitted = role == SUPERUSER or role in self.permitted
        if role in self.broken:
            raise ValueError("the password of the service is swordfish")
        if role in self.held:
            self.waiting.append(question)
            try:
                await self._changed.wait()
            finally:
                self.waiting.remove(question)
        else:
            await asyncio.sleep(0)
        if not is_permitted:
            raise AuthorizationError(f"role {role!r} may not {method}")

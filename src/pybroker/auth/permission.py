"""A permission that a client keeps using: the answer of the provider, current until permissions change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable


class PermissionChanges:
    """Counts the changes of permissions: of policies, administrators, and dynamic keys such as `superUserRoles`."""

    def __init__(self) -> None:
        self.count = 0


class Permission:
    """One permission of one client. `ask` asks the provider for it, and raises the refusal.

    `require` asks only if permissions have changed since the last answer. So the provider is asked again for a client
    that has waited, for example for its topic, only if the client may have lost the permission meanwhile.
    """

    __slots__ = ("_answered_at", "_ask", "_changes")

    def __init__(self, changes: PermissionChanges, ask: Callable[[], Awaitable[None]]) -> None:
        self._changes = changes
        self._ask = ask
        self._answered_at = -1

    @property
    def is_current(self) -> bool:
        """Whether the last answer of the provider granted the permission, and no permissions have changed since the
        provider was asked.
        """
        return self._answered_at == self._changes.count

    async def require(self) -> None:
        """Return at once if the permission is current. Otherwise ask the provider, and ask again if permissions have
        changed meanwhile. Raises the errors of `ask`.
        """
        while not self.is_current:
            asked_at = self._changes.count
            self._answered_at = -1
            await self._ask()
            self._answered_at = asked_at

"""The permission that one WebSocket session needs while it is open."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pybroker.auth.permission import Permission
    from pybroker.model.names import NamespaceName, TopicName


class SessionPermission(NamedTuple):
    """The permission of a session for its topics. `topics` can change while the session is open."""

    permission: Permission
    topics: Sequence[Collection[TopicName]]

    def is_in(self, scope: NamespaceName | str | None) -> bool:
        """Return whether one of the topics is in `scope`, a namespace or the name of a tenant. Always true if `scope`
        is None.
        """
        return scope is None or any(scope in (each.namespace, each.tenant) for each in chain(*self.topics))

"""The states of the bundles that this broker owns, acquires or releases. No IO: `bundle_ownership.py` performs the
changes and reports them here.

    absent --begin_acquire--> ACQUIRING --created--> OWNED --begin_release--> RELEASING --released--> absent
                                  |                    |                          |
                                  +---- gave_up        +--- session_lost, lost ---+-----------------> absent

A bundle is served while it is OWNED. RELEASING: its topics are being closed, and its document still exists, so no other
broker serves it yet.

Invariants: an operation that began in one session has no effect in a later session; a bundle is OWNED only if its
document was created in the present session.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from enum import Enum
from typing import Generic, TypeVar

B = TypeVar("B", bound=Hashable)


class BundleState(Enum):
    """The state of a bundle, as in the diagram of the module."""

    ACQUIRING = "acquiring"
    OWNED = "owned"
    RELEASING = "releasing"


class _Held:
    __slots__ = ("session", "state", "version")

    def __init__(self, session: int) -> None:
        self.session = session
        self.state = BundleState.ACQUIRING
        self.version = -1


class HeldBundles(Generic[B]):
    """The states of the bundles that this broker owns, acquires or releases. Sessions are counted from 0."""

    def __init__(self) -> None:
        self.session = 0
        self._held: dict[B, _Held] = {}

    def state(self, bundle: B) -> BundleState | None:
        held = self._held.get(bundle)
        return None if held is None else held.state

    def serves(self, bundle: B) -> bool:
        held = self._held.get(bundle)
        return held is not None and held.state is BundleState.OWNED

    def owned(self) -> Iterator[B]:
        return (bundle for bundle, held in self._held.items() if held.state is BundleState.OWNED)

    def begin_acquire(self, bundle: B) -> int:
        """Record that this broker tries to acquire the bundle. Return the number of the present session."""
        assert bundle not in self._held, "one attempt at a time"
        self._held[bundle] = _Held(self.session)
        return self.session

    def created(self, bundle: B, session: int, version: int) -> bool:
        """Record that this broker created the ownership document, with this version. Return False if the session has
        ended meanwhile: the document then has no effect.
        """
        held = self._held.get(bundle)
        if session != self.session or held is None:
            return False
        assert held.state is BundleState.ACQUIRING, "one attempt at a time"
        held.state, held.version = BundleState.OWNED, version
        return True

    def gave_up(self, bundle: B, session: int) -> None:
        """Record that an attempt to acquire the bundle, begun in session number `session`, has failed."""
        held = self._held.get(bundle)
        if held is not None and held.session == session and held.state is BundleState.ACQUIRING:
            del self._held[bundle]

    def begin_release(self, bundle: B) -> int | None:
        """Record that this broker stops serving the bundle. Return the version of its ownership document; None if the
        bundle is not owned.
        """
        held = self._held.get(bundle)
        if held is None or held.state is not BundleState.OWNED:
            return None
        held.state = BundleState.RELEASING
        return held.version

    def released(self, bundle: B, session: int) -> None:
        """Record that the ownership document from session number `session` is deleted."""
        held = self._held.get(bundle)
        if held is not None and held.session == session and held.state is BundleState.RELEASING:
            del self._held[bundle]

    def lost(self, bundle: B) -> bool:
        """Record that another program deleted or replaced the ownership document. Return whether this broker owned the
        bundle.
        """
        held = self._held.get(bundle)
        if held is None or held.state is not BundleState.OWNED:
            return False
        del self._held[bundle]
        return True

    def session_lost(self) -> list[B]:
        """Remove all bundles, because the session has ended. Return those that were owned or being released; the caller
        must close their topics.
        """
        self.session += 1
        had = [bundle for bundle, held in self._held.items() if held.state is not BundleState.ACQUIRING]
        self._held.clear()
        return had

    def check_invariants(self) -> None:
        for held in self._held.values():
            assert held.session == self.session, "a bundle of an earlier session"
            assert (held.version >= 0) == (held.state is not BundleState.ACQUIRING), "an owned bundle has a document"

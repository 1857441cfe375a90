"""What all ways in have in common: an identity, and a provider that tells it from credentials."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a client is. `role` is None only when authentication is off; `expires_at_s` is in seconds since 1970."""

    role: str | None
    method: str
    expires_at_s: float | None


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """What the broker needs of a client certificate that was verified against the trusted authorities."""

    common_name: str | None


class AuthenticationProvider(ABC):
    """One way in. Holds keys and never shows them."""

    @abstractmethod
    def authenticate(self, data: bytes, peer_certificate: PeerCertificate | None, now_s: float) -> Identity:
        """Tell the identity from the client's data or certificate; raise AuthenticationError when they are no good."""

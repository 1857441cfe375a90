"""Interface of all authentication methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """`role` is None only if authentication is off; `expires_at_s` is in seconds since 1970."""

    role: str | None
    method: str
    expires_at_s: float | None


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """Fields of a verified client certificate."""

    common_name: str | None


class AuthenticationProvider(ABC):
    """One authentication method. It holds keys and never shows them."""

    @abstractmethod
    def authenticate(self, data: bytes, peer_certificate: PeerCertificate | None, now_s: float) -> Identity:
        """Raise AuthenticationError."""

"""Interface of authentication methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated client. `role` is None only if authentication is disabled. `expires_at_s` is Unix time in
    seconds.
    """

    role: str | None
    method: str
    expires_at_s: float | None


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """Fields of a verified client certificate."""

    common_name: str | None


class AuthenticationProvider(ABC):
    """One authentication method."""

    @abstractmethod
    def authenticate(self, data: bytes, peer_certificate: PeerCertificate | None, now_s: float) -> Identity:
        """Verify the credentials `data`. Raises AuthenticationError with a reason that is safe to send to the client.
        `now_s`: Unix time in seconds.
        """

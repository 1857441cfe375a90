"""What a client can fail with. What the broker itself refuses comes as the `BrokerError` of its code (`pybroker.errors`)."""

from __future__ import annotations

from pybroker.errors import (
    BrokerError,
    ConsumerBusy,
    MetadataError,
    PersistenceError,
    ProducerBlockedQuotaExceededError,
    ProducerBusy,
    ServiceNotReady,
    TooManyRequests,
    UnknownError,
)


class ClientError(Exception):
    """Something that the client could not do; the text says with which broker, and what to do next. Never carries a secret."""


class ConnectionLost(ClientError):
    """The broker could not be reached, or the connection ended: what was under way may or may not have happened."""


class NotTrusted(ClientError):
    """The broker's certificate does not verify. Trying again changes nothing: what is trusted must be changed, or the broker."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(
            f"the certificate of {where} is not trusted: {reason}; name the authority that signed it, and the broker by a host "
            "that its certificate has"
        )


class RequestTimedOut(ClientError):
    """The broker did not answer in time."""


class NotSent(ClientError):
    """An entry that this client refuses to send: too large, or its producer has failed or is closed."""


def refusal(code: int, text: str) -> BrokerError:
    """What the broker answered, as the error of that code; a code of a newer protocol is `UnknownError`."""
    return BrokerError.by_code.get(code, UnknownError)(text)


_PASSING = (ServiceNotReady, TooManyRequests, PersistenceError, MetadataError, ProducerBlockedQuotaExceededError)


def may_pass(error: Exception) -> bool:
    """Whether the same request may be answered otherwise a moment later: a broker that restarts, a topic that moves."""
    return isinstance(error, (ConnectionLost, *_PASSING))


def may_attach_later(error: Exception) -> bool:
    """The same of who was attached before: the broker may not have noticed yet that the former connection is gone."""
    return may_pass(error) or isinstance(error, (RequestTimedOut, ProducerBusy, ConsumerBusy))

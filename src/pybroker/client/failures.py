"""Errors of the client. Error responses of the broker are raised as `BrokerError` (`pybroker.errors`)."""

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
    """Base of the client's errors. The text names the broker and the next step, and contains no secret."""


class ConnectionLost(ClientError):
    """The broker could not be reached, or the connection ended. Requests without a response may or may not have been
    executed.
    """


class NotTrusted(ClientError):
    """Verification of the broker's certificate failed. A retry does not help: change the client's trusted certificates
    or the broker's certificate.
    """

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(
            f"the certificate of {where} is not trusted: {reason}. Add the authority that signed it to the trusted certificates, "
            "and use a host name of the certificate in the URL"
        )


class RequestTimedOut(ClientError):
    """The broker did not answer in time."""


class NotSent(ClientError):
    """The client refuses to send an entry: it is too large, or its producer has failed or is closed."""


def refusal(code: int, text: str) -> BrokerError:
    """Return the exception for an error code of the broker, or UnknownError for a code that this version does not
    know.
    """
    return BrokerError.by_code.get(code, UnknownError)(text)


_PASSING = (ServiceNotReady, TooManyRequests, PersistenceError, MetadataError, ProducerBlockedQuotaExceededError)


def may_pass(error: Exception) -> bool:
    """Return whether a retry may succeed soon, because a broker restarts or a topic moves."""
    return isinstance(error, (ConnectionLost, *_PASSING))


def may_attach_later(error: Exception) -> bool:
    """Return whether a retry to create a producer or consumer can succeed after `error`. After ProducerBusy and
    ConsumerBusy it can: the broker may not have noticed that the previous connection of the producer or consumer has
    ended.
    """
    return may_pass(error) or isinstance(error, (RequestTimedOut, ProducerBusy, ConsumerBusy))

"""All errors that a client or an operator can receive.

Families (see docs/contributing/architecture.md):

* `ProtocolViolation`: the client broke the protocol. Only its connection is closed.
* `BrokerError`: an expected failure that is sent to the client. One subclass for each `ServerError` of the protocol,
  with the same name. The class has the code and the HTTP status, which only the two edges (connection, HTTP) use.
* `AdminError`: a refusal with a code of REST only (conflict, precondition).
* `StoreError`: storage failed, for example on a full disk; `told_as` is the `BrokerError` for clients.

Any other exception is a bug: the client gets `UnknownError`, and the exception is logged with its stack trace and
counted.
"""

from __future__ import annotations

from typing import ClassVar


class CannotListen(Exception):
    """Ports cannot be bound. Each item of `problems` contains address, port, configuration key and reason."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems

    @classmethod
    def on(cls, address: str, port: int, key: str, error: OSError) -> CannotListen:
        """Return the error for one port. `key` is the configuration key of the port."""
        return cls(f"cannot listen on {address} port {port} ({key}): {error.strerror or error}")


class ProtocolViolation(Exception):
    """The client sent an invalid command, which the text describes. The connection is closed."""


class BrokerError(Exception):
    """An expected failure with a code that Pulsar's clients understand."""

    code: ClassVar[int] = 0
    http_status: ClassVar[int] = 500
    by_code: ClassVar[dict[int, type[BrokerError]]] = {}

    def __init_subclass__(cls, *, code: int | None = None, http_status: int | None = None) -> None:
        if http_status is not None:
            cls.http_status = http_status
        if code is not None:
            # one class for each code: otherwise the class that maps a code would be ambiguous
            assert code not in BrokerError.by_code, f"ServerError {code} has two classes"
            cls.code = code
            BrokerError.by_code[code] = cls


class UnknownError(BrokerError, code=0, http_status=500):
    """An unexpected failure: a bug of the broker."""


class MetadataError(BrokerError, code=1, http_status=500):
    """The metadata store failed, or the consumer in a request does not exist."""


class PersistenceError(BrokerError, code=2, http_status=500):
    """The broker's storage could not be written or read."""


class AuthenticationError(BrokerError, code=3, http_status=401):
    """Credentials are missing, invalid or expired. `reason` is the label of the metric of failures: a constant in upper
    case.
    """

    EXPIRED: ClassVar[str] = "EXPIRED_JWT"
    """The reason of credentials that were valid before."""

    def __init__(self, text: str, reason: str = "INVALID_AUTH_DATA") -> None:
        super().__init__(text)
        self.reason = reason


class AuthorizationError(BrokerError, code=4, http_status=403):
    """The role is known but not permitted."""


class ConsumerBusy(BrokerError, code=5, http_status=409):
    """The subscription cannot take this consumer now: another exclusive consumer, another type, or a limit."""


class ServiceNotReady(BrokerError, code=6, http_status=503):
    """The topic is not served here now: the broker starts or stops, the topic is fenced, or another broker owns the
    bundle.
    """


class TopicChanging(ServiceNotReady):
    """The namespace or partitioned topic is being created, changed, or deleted. Waiting and retrying may succeed."""


class TopicFenced(ServiceNotReady):
    """The topic is being closed, and the request had no effect. A new lookup loads the topic again."""


class ProducerBlockedQuotaExceededError(BrokerError, code=7, http_status=412):
    """The backlog quota is exceeded, with policy producer_request_hold."""


class ProducerBlockedQuotaExceededException(BrokerError, code=8, http_status=412):
    """The backlog quota is exceeded, with policy producer_exception."""


class ChecksumError(BrokerError, code=9, http_status=400):
    """The CRC32C of a message does not match its bytes."""


class UnsupportedVersionError(BrokerError, code=10, http_status=400):
    """The client is too old for the requested feature."""


class TopicNotFound(BrokerError, code=11, http_status=404):
    """The topic does not exist and is not created automatically, or its namespace does not exist."""


class SubscriptionNotFound(BrokerError, code=12, http_status=404):
    """The durable subscription does not exist and is not created automatically."""


class ConsumerNotFound(BrokerError, code=13, http_status=404):
    """The consumer does not exist on this connection."""


class TooManyRequests(BrokerError, code=14, http_status=429):
    """A limit of concurrent requests is reached. Retry later."""


class TopicTerminatedError(BrokerError, code=15, http_status=406):
    """The topic is terminated and accepts no more messages."""


class ProducerBusy(BrokerError, code=16, http_status=409):
    """A producer of this name is connected, or the topic has its maximum number of producers."""


class InvalidTopicName(BrokerError, code=17, http_status=412):
    """The topic name is invalid."""


class IncompatibleSchema(BrokerError, code=18, http_status=409):
    """The topic's compatibility strategy refuses the schema."""


class ConsumerAssignError(BrokerError, code=19, http_status=400):
    """The hash ranges of a Key_Shared consumer are missing or overlap."""


class TransactionCoordinatorNotFound(BrokerError, code=20, http_status=404):
    """This broker does not run the transaction coordinator."""


class InvalidTxnStatus(BrokerError, code=21, http_status=409):
    """The status of the transaction does not allow the operation."""


class NotAllowedError(BrokerError, code=22, http_status=405):
    """The operation is not possible for this kind of topic, subscription or message."""


class TransactionConflict(BrokerError, code=23, http_status=409):
    """Another open transaction has acknowledged this message."""


class TransactionNotFound(BrokerError, code=24, http_status=404):
    """The transaction is unknown, has ended, or has timed out."""


class ProducerFenced(BrokerError, code=25, http_status=409):
    """Another producer has taken exclusive access to the topic."""


class AdminError(Exception):
    """A REST refusal: `status` is the HTTP status, the text becomes `{"reason": ...}`."""

    def __init__(self, status: int, reason: str, retry_after_s: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s


class StoreError(Exception):
    """A storage or metadata back end failed. The text describes the failure."""

    told_as: ClassVar[type[BrokerError]] = PersistenceError
    """The error for clients, with its code and HTTP status. Subclasses may replace it."""

    def answer(self, what: str = "") -> BrokerError:
        """Return the error for the client. `what`: a prefix of its text, such as `the acknowledgement is not stored: `."""
        return self.told_as(f"{what}{self}")


class BadVersionError(StoreError):
    """A versioned put or delete found another version, because another writer has changed the value."""


class MetadataUnavailable(StoreError):
    """The shared metadata store was not reached in time. A change certainly did not happen."""

    told_as = MetadataError


class UnknownOutcome(StoreError):
    """The response to a change was lost, and it is unknown whether the change happened. Read the values again."""

    told_as = MetadataError


class LedgerFenced(StoreError):
    """The ledger accepts no more appends: it is sealed or fenced, or an earlier append failed."""


class AppendUnknown(StoreError):
    """It is unknown whether the entries are stored. Seal their ledger: they are stored if it then contains them."""


class StateTooLarge(StoreError):
    """The state of a cursor is larger than its store can store. The cursor keeps it in memory only."""

    def __init__(self, text: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(text)
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class LedgerTerminated(StoreError):
    """The managed ledger is terminated and accepts no more appends."""


class StorageFull(StoreError):
    """There is no space for more entries. Nothing of the append was stored; retry when space is available."""


class NoSuchLedger(StoreError):
    """The ledger was deleted or never existed."""


class DamagedEntries(StoreError):
    """Stored entries are permanently unreadable. Adjacent entries are readable."""

    def __init__(self, ledger_id: int, first_entry_id: int, last_entry_id: int, reason: str) -> None:
        super().__init__(reason)
        self.ledger_id = ledger_id
        self.first_entry_id = first_entry_id
        self.last_entry_id = last_entry_id

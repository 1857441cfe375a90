"""Errors of ZooKeeper: one subclass of `ZooKeeperError` for each code of the server that a caller can act on."""

from __future__ import annotations

from typing import ClassVar


class ZooKeeperError(Exception):
    """An operation failed. `path` is the node, or "" if there is none."""

    code: ClassVar[int] = 0
    by_code: ClassVar[dict[int, type[ZooKeeperError]]] = {}
    operation_index: int | None = None
    """The position of the failing operation in a multi."""

    def __init__(self, text: str, path: str = "") -> None:
        super().__init__(text)
        self.path = path

    def __init_subclass__(cls, *, code: int | None = None) -> None:
        if code is not None:
            cls.code = code
            ZooKeeperError.by_code[code] = cls


class NoNode(ZooKeeperError, code=-101):
    """The node does not exist; for a creation: the parent does not exist."""


class NoAuth(ZooKeeperError, code=-102):
    """The node's access control list does not allow the operation."""


class BadVersion(ZooKeeperError, code=-103):
    """The node has another version than expected."""


class NoChildrenForEphemerals(ZooKeeperError, code=-108):
    """The parent is an ephemeral node."""


class NodeExists(ZooKeeperError, code=-110):
    """The node exists already."""


class NotEmpty(ZooKeeperError, code=-111):
    """The node has children."""


class SessionExpired(ZooKeeperError, code=-112):
    """The server ended the session while the request was on its way. The request was not performed."""


class InvalidAcl(ZooKeeperError, code=-114):
    """The access control list is empty, or needs an authentication that the client does not have."""


class AuthFailed(ZooKeeperError, code=-115):
    """The server refused the credentials."""


class QuotaExceeded(ZooKeeperError, code=-125):
    """The quota of the tree is used up."""


class ThrottledOperation(ZooKeeperError, code=-127):
    """The server has too many requests. The request was not performed; try again later."""


class ConnectionLoss(ZooKeeperError, code=-4):
    """The request was sent and its response is lost: a change may or may not have happened."""


class NotSent(ZooKeeperError):
    """The request was not sent, so the change certainly did not happen."""


class TooLarge(ZooKeeperError):
    """A request larger than the server accepts, which was not sent; or a response larger than the client's limit."""


class DamagedAnswer(ZooKeeperError):
    """The response cannot be decoded. The client closes the connection."""


_TEXTS = {
    -1: "system error of the server",
    -2: "runtime inconsistency",
    -3: "data inconsistency",
    -5: "the server cannot decode the request",
    -6: "the server does not support the operation",
    -7: "time-out of the operation in the server",
    -8: "the server refuses the arguments",
    -101: "the node does not exist",
    -102: "not permitted by the node's access control list",
    -103: "the node has another version",
    -108: "an ephemeral node cannot have children",
    -110: "the node exists already",
    -111: "the node has children",
    -112: "the session has expired",
    -114: "invalid access control list",
    -115: "the server refused the credentials",
    -118: "the session moved to another server",
    -119: "the server is read-only",
    -124: "the server accepts only clients with a SASL login",
    -125: "the quota is used up",
    -127: "the server has too many requests",
}


def error_of(code: int, path: str) -> ZooKeeperError:
    """Return the error for a result code of the server. `path`: the node of the request."""
    text = _TEXTS.get(code, f"error {code} of the server")
    where = f"{path}: " if path else ""
    return ZooKeeperError.by_code.get(code, ZooKeeperError)(f"{where}{text}", path)

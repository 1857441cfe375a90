"""The addresses of ZooKeeper servers, and the node below which the client works (chroot)."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_PORT = 2181
MAX_SERVERS = 100


@dataclass(frozen=True, slots=True)
class ServerAddresses:
    """The servers of one ensemble and the chroot. `chroot` is "" or a path without a slash at its end; all paths of the
    client are below it.
    """

    servers: tuple[tuple[str, int], ...]
    chroot: str = ""

    @classmethod
    def parse(cls, text: str) -> ServerAddresses:
        """Parse `host1:2181,host2,[::1]:2181/chroot`; the port is 2181 if it is missing. Raises ValueError, whose text
        contains the invalid part.
        """
        hosts, slash, chroot = text.strip().partition("/")
        servers = tuple(_server(part.strip(), text) for part in hosts.split(",") if part.strip())
        if not servers:
            raise ValueError(f"the address {text!r} names no server: use the form host:port,host:port/chroot")
        if len(servers) > MAX_SERVERS:
            raise ValueError(f"the address has {len(servers)} servers; the maximum is {MAX_SERVERS}")
        path = (slash + chroot).rstrip("/")
        if path:
            require_path(path)
        return cls(servers, path)

    def __str__(self) -> str:
        return (
            ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.servers)
            + self.chroot
        )


def require_path(path: str) -> None:
    """Raise ValueError for a path that ZooKeeper refuses."""
    if not path.startswith("/") or (path.endswith("/") and path != "/"):
        raise ValueError(f"{path!r} is not a path: a path must begin with a slash and must not end with a slash")
    for segment in path[1:].split("/"):
        if (not segment and path != "/") or segment in (".", ".."):
            raise ValueError(f"{path!r} is not a path: it has a segment {segment!r}")
    if any(
        character < " " or "\x7f" <= character <= "\x9f" or "\ud800" <= character <= "\uf8ff" or character >= "\ufff0"
        for character in path
    ):
        raise ValueError(f"{path!r} is not a path: it contains a character that ZooKeeper does not accept")


def _server(part: str, text: str) -> tuple[str, int]:
    if part.startswith("["):
        host, bracket, port = part[1:].partition("]")
        is_valid = bool(bracket) and (not port or port.startswith(":"))
        port = port[1:]
    else:
        host, _, port = part.partition(":")
        is_valid = True
    if not host or not is_valid or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)):
        raise ValueError(f"{part!r} in {text!r} is not a server address: use the form host:port")
    return host, int(port) if port else DEFAULT_PORT

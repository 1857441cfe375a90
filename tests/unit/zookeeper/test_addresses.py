"""Texts that name ZooKeeper servers and a chroot."""

import pytest

from pybroker.zookeeper.addresses import ServerAddresses, require_path


@pytest.mark.parametrize(
    ("text", "servers", "chroot"),
    [
        ("h1:2181", [("h1", 2181)], ""),
        ("h1", [("h1", 2181)], ""),
        (" h1:1, h2:2 ,h3 ", [("h1", 1), ("h2", 2), ("h3", 2181)], ""),
        ("h1:1/a/b", [("h1", 1)], "/a/b"),
        ("h1:1/a/", [("h1", 1)], "/a"),
        ("h1:1/", [("h1", 1)], ""),
        ("[::1]:7,[fe80::1]/x", [("::1", 7), ("fe80::1", 2181)], "/x"),
    ],
)
def test_addresses_have_servers_and_chroot(text: str, servers: list[tuple[str, int]], chroot: str) -> None:
    found = ServerAddresses.parse(text)
    assert list(found.servers) == servers
    assert found.chroot == chroot
    assert ServerAddresses.parse(str(found)) == found


@pytest.mark.parametrize(
    "text", ["", ",", "/a", "h1:x", "h1:0", "h1:70000", ":1", "[::1", "[::1]x", "h1:1//a", "h1:1/a/../b"]
)
def test_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no|names no server|not a path"):
        ServerAddresses.parse(text)


@pytest.mark.parametrize(
    "path", ["a", "/a/", "//", "/a//b", "/.", "/a/..", "/a\0", "/a\x1f", "/\x85", "/\ue000", "/\uffff", ""]
)
def test_path_that_zookeeper_refuses_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="not a path"):
        require_path(path)


@pytest.mark.parametrize("path", ["/", "/a", "/a/b-c_d%2F", "/ä/世"])
def test_valid_path_is_accepted(path: str) -> None:
    require_path(path)

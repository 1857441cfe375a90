"""Which Host headers a broker accepts in requests without credentials."""

from __future__ import annotations

import pytest

from pybroker.admin.http.accepted_hosts import AcceptedHosts, is_loopback
from pybroker.config import BrokerConfig
from pybroker.errors import AdminError


def hosts_of(**settings: object) -> AcceptedHosts:
    hosts = AcceptedHosts.of(BrokerConfig(**settings))  # type: ignore[arg-type]
    assert hosts is not None
    return hosts


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8080",
        "localhost.:8080",
        "broker.localhost:8080",
        "127.0.0.1",
        "127.0.0.1:8080",
        "127.8.8.8:1",
        "192.168.0.7:8080",
        "[::1]",
        "[::1]:8080",
        "[2001:db8::7]:8080",
    ],
)
def test_loopback_names_and_addresses_are_accepted(host: str) -> None:
    assert hosts_of().accepts(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        ":8080",
        "rebound.example",
        "rebound.example:8080",
        "localhost.rebound.example",
        "notlocalhost",
        "127.0.0.1.rebound.example",
        "x",
        "0.0.0.0:8080",
        "[::]:8080",
        "[::1].rebound.example",
        "[rebound.example]:8080",
        "127.0.0.1@rebound.example",
        "rebound.example:localhost",
        "rebound.example#localhost",
        "2130706433",
        "localhost:8080, rebound.example",
    ],
)
def test_other_names_and_the_unspecified_address_are_refused(host: str) -> None:
    with pytest.raises(AdminError, match="httpAllowedHosts") as refused:
        hosts_of().check(host)
    assert refused.value.status == 421


def test_request_without_host_is_accepted() -> None:
    hosts_of().check(None)


def test_configured_names_are_accepted() -> None:
    hosts = hosts_of(
        http_allowed_hosts=("Proxy.Example", "[2001:db8::1]"),
        advertised_address="broker.example",
        advertised_listeners=("inner:pulsar://inner.example:6650", "inner:https://web.example:8443"),
    )
    for host in (
        "proxy.example:443",
        "broker.example:8080",
        "inner.example:8080",
        "web.example:8443",
        "PROXY.EXAMPLE.",
    ):
        assert hosts.accepts(host), host
    assert not hosts.accepts("sub.proxy.example")


def test_listed_unspecified_address_is_accepted() -> None:
    assert hosts_of(http_allowed_hosts=("0.0.0.0",)).accepts("0.0.0.0:8080")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "::1", "[::1]", "localhost", "LocalHost"])
def test_broker_on_a_loopback_address_checks_hosts(address: str) -> None:
    assert is_loopback(address)
    assert AcceptedHosts.of(BrokerConfig(bind_address=address)) is not None


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "", "*", "192.168.0.7", "broker.example"])
def test_broker_on_another_address_checks_hosts_only_if_some_are_listed(address: str) -> None:
    assert AcceptedHosts.of(BrokerConfig(bind_address=address)) is None
    listed = AcceptedHosts.of(BrokerConfig(bind_address=address, http_allowed_hosts=("broker.example",)))
    assert listed is not None
    assert not listed.accepts("rebound.example")


def test_asterisk_turns_the_check_off() -> None:
    assert AcceptedHosts.of(BrokerConfig(http_allowed_hosts=("a.example", "*"))) is None

from __future__ import annotations

from typing import Any

import pytest

from pybroker.cluster.advertised_addresses import AdvertisedAddresses, BoundPorts, LookupResult, parse_listeners
from pybroker.config import BrokerConfig, ConfigError
from pybroker.errors import ServiceNotReady

PLAIN = BoundPorts(6650, None, 8080, None)
ALL = BoundPorts(6650, 6651, 8080, 8443)


def addresses(ports: BoundPorts = PLAIN, **settings: Any) -> AdvertisedAddresses:
    return AdvertisedAddresses(BrokerConfig(**settings), ports, "machine")


@pytest.mark.parametrize(
    ("settings", "host"),
    [
        ({"bind_address": "127.0.0.1"}, "127.0.0.1"),
        ({"bind_address": "0.0.0.0"}, "machine"),
        ({"bind_address": "::"}, "machine"),
        ({"bind_address": "::1"}, "[::1]"),
        ({"bind_address": "0.0.0.0", "advertised_address": "broker.example"}, "broker.example"),
        ({"advertised_address": "fd00::1"}, "[fd00::1]"),
    ],
)
def test_the_default_host_is_the_advertised_one_or_a_concrete_bind_address_or_the_machines_name(
    settings: dict[str, str], host: str
) -> None:
    assert addresses(**settings).resolve(None) == LookupResult(f"pulsar://{host}:6650", "", f"http://{host}:8080", "")  # type: ignore[arg-type]


def test_ports_that_are_served_with_tls_are_advertised_with_tls() -> None:
    result = addresses(ALL, advertised_address="b").resolve("")
    assert result == LookupResult("pulsar://b:6650", "pulsar+ssl://b:6651", "http://b:8080", "https://b:8443")
    only_tls = addresses(BoundPorts(None, 6651, None, 8443), advertised_address="b").resolve(None)
    assert only_tls == LookupResult("", "pulsar+ssl://b:6651", "", "https://b:8443")


def test_a_client_without_listener_name_gets_the_first_listener_or_the_internal_one() -> None:
    listeners = ("a:pulsar://a:1", "b:pulsar://b:2")
    assert addresses(advertised_listeners=listeners).resolve(None).broker_url == "pulsar://a:1"
    internal = addresses(advertised_listeners=listeners, internal_listener_name="b")
    assert internal.resolve(None).broker_url == "pulsar://b:2"
    assert internal.resolve("a").broker_url == "pulsar://a:1"


def test_a_listener_that_names_no_http_address_gets_its_own_host_with_the_bound_port() -> None:
    listeners = ("a:pulsar://a:1", "b:pulsar+ssl://[::2]:2", "b:http://web:80")
    result = addresses(ALL, advertised_listeners=listeners)
    assert result.resolve("a") == LookupResult("pulsar://a:1", "", "http://a:8080", "https://a:8443")
    assert result.resolve("b") == LookupResult("", "pulsar+ssl://[::2]:2", "http://web:80", "https://[::2]:8443")
    with_address = addresses(ALL, advertised_listeners=listeners, advertised_address="all")
    assert with_address.resolve("a").http_url == "http://all:8080"


def test_a_client_without_listener_name_gets_each_scheme_that_any_listener_has() -> None:
    listeners = ("a:pulsar://a:1", "b:pulsar://b:2", "b:pulsar+ssl://b:3", "c:pulsar+ssl://c:4", "c:https://c:5")
    found = addresses(ALL, advertised_listeners=listeners)
    assert found.resolve(None) == LookupResult("pulsar://a:1", "pulsar+ssl://b:3", "http://a:8080", "https://c:5")
    assert found.resolve("a").broker_url_tls == ""  # a client that names a listener is in its network only
    internal = addresses(ALL, advertised_listeners=listeners, internal_listener_name="c")
    assert internal.resolve(None) == LookupResult("pulsar://a:1", "pulsar+ssl://c:4", "http://c:8080", "https://c:5")
    only_plain = addresses(ALL, advertised_listeners=("a:pulsar://a:1",))
    assert only_plain.resolve(None).broker_url_tls == ""


def test_an_unknown_listener_name_is_refused_with_the_known_ones() -> None:
    # C++ clients search for these words.
    with pytest.raises(ServiceNotReady, match=r"^the broker do not have c listener.*: a"):
        addresses(advertised_listeners=("a:pulsar://a:1",)).resolve("c")
    with pytest.raises(ServiceNotReady, match="none"):
        addresses().resolve("c")


@pytest.mark.parametrize(
    "entry",
    [
        "pulsar://a:1",
        ":pulsar://a:1",
        "a b:pulsar://a:1",
        "a:pulsar://a",
        "a:pulsar://a:0",
        "a:pulsar://a:port",
        "a:pulsar://a:70000",
        "a:pulsar://:1",
        "a:pulsar://a:1/path",
        "a:pulsar://user@a:1",
        "a:ftp://a:1",
        "a:http://a:1",
        "a",
        "",
    ],
)
def test_a_bad_listener_is_refused_with_its_key(entry: str) -> None:
    with pytest.raises(ConfigError, match="advertisedListeners"):
        parse_listeners([entry])


def test_a_listener_has_one_address_for_each_scheme() -> None:
    with pytest.raises(ConfigError, match="two pulsar addresses for listener 'a'"):
        parse_listeners(["a:pulsar://a:1", "a:pulsar://b:1"])


def test_an_internal_listener_that_does_not_exist_is_refused() -> None:
    for listeners in ((), ("a:pulsar://a:1",)):
        with pytest.raises(ConfigError, match="internalListenerName"):
            addresses(advertised_listeners=listeners, internal_listener_name="b")

"""The registration of a broker in its cluster: Pulsar's LocalBrokerData at `/loadbalance/brokers/<host:webPort>`.

A wrong registration harms the whole cluster: Java brokers fail every lookup if one value is not JSON, and send every
client to an empty address if it has none. Therefore one function encodes it, from complete values only. Reading is
lenient: a value that is no number counts as 0, and a registration without usable addresses gives a reason (`Unusable`),
never an exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from pybroker.cluster.advertised_addresses import (
    HTTP,
    HTTP_TLS,
    PULSAR,
    PULSAR_TLS,
    AdvertisedAddresses,
    LookupResult,
)
from pybroker.cluster.broker_registry import RegisteredBroker
from pybroker.cluster.load_balance.load_report import BundleFigures, LoadReport, ResourceUsage

BROKERS = "/loadbalance/brokers"
"""Parent of one session value for each registered broker."""
MODULAR_LOAD_MANAGER = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"
IMPLEMENTATION = "pybroker"
"""Value of the property `implementation`, which Java brokers neither write nor read."""
MAX_REGISTRATION_BYTES = 900_000
"""ZooKeeper refuses values of 1 MiB. Above this, `lastStats` omits the bundles with the lowest rates."""
INSTANCE = "instance"
"""Property with the id of the data directory, which Java brokers do not write either.

A registration by an earlier session is recognized by it and replaced.
"""
STORED_AT = "storedAt"
"""Property with the time of the registration, also only ours: `lastUpdate` is that of the last window of statistics."""
MAX_LISTENERS = 100
"""Maximum number of listeners of another broker; further ones are ignored."""


class Registration(NamedTuple):
    """A registered broker with its load."""

    broker: RegisteredBroker
    report: LoadReport
    serves_persistent: bool = True
    serves_non_persistent: bool = True
    is_pybroker: bool = False
    stored_ms: int = 0
    """When the broker stored the registration, by its wall clock; of a Java broker, when it measured the load, shortly
    before.
    """

    @property
    def host(self) -> str:
        return host_of(self.broker.broker_id)


class Unusable(NamedTuple):
    """A registration that lookups cannot use, with the reason."""

    reason: str


def registration_path(broker_id: str) -> str:
    return f"{BROKERS}/{broker_id}"


def host_of(broker_id: str) -> str:
    return broker_id.rpartition(":")[0]


def own_broker(
    broker_id: str, addresses: AdvertisedAddresses, load_manager_class: str, started_ms: int, version: str
) -> RegisteredBroker:
    """Return the registration of this broker. `started_ms`: its start, in milliseconds since 1970."""
    found = addresses.resolve(None)
    return RegisteredBroker(
        broker_id,
        found.http_url,
        found.http_url_tls,
        found.broker_url,
        found.broker_url_tls,
        dict(addresses.listeners),
        load_manager_class,
        started_ms,
        version,
    )


# --- writing -------------------------------------------------------------------------------------------------------------


def encoded(registration: Registration, instance: str) -> bytes:
    """Return the bytes to store, at most MAX_REGISTRATION_BYTES. If necessary, the bundles with the lowest rates are
    omitted, but included in the totals. `instance`: the id of the data directory.
    """
    assert checked(registration.broker) is None, "a broker registers with usable addresses"
    data = {**local_broker_data(registration), INSTANCE: instance}
    value = msgspec.json.encode(data)
    bundles = sorted(registration.report.bundles.items(), key=lambda item: item[1].byte_rate, reverse=True)
    kept_count = len(bundles)
    while len(value) > MAX_REGISTRATION_BYTES and kept_count:
        kept_count = min(kept_count - 1, kept_count * MAX_REGISTRATION_BYTES // len(value))
        kept = dict(sorted(bundles[:kept_count]))
        data["lastStats"] = {name: _bundle(figures) for name, figures in kept.items()}
        data["bundles"] = list(kept)
        value = msgspec.json.encode(data)
    return value


def local_broker_data(registration: Registration) -> dict[str, Any]:
    """Return the registration as a JSON object with Pulsar's property names."""
    broker, report, totals = registration.broker, registration.report, registration.report.totals
    return {
        **_present(
            webServiceUrl=broker.web_service_url,
            webServiceUrlTls=broker.web_service_url_tls,
            pulsarServiceUrl=broker.broker_service_url,
            pulsarServiceUrlTls=broker.broker_service_url_tls,
        ),
        "persistentTopicsEnabled": registration.serves_persistent,
        "nonPersistentTopicsEnabled": registration.serves_non_persistent,
        "cpu": report.cpu._asdict(),
        "memory": report.memory._asdict(),
        "directMemory": report.direct_memory._asdict(),
        "bandwidthIn": report.bandwidth_in._asdict(),
        "bandwidthOut": report.bandwidth_out._asdict(),
        "msgThroughputIn": totals.byte_rate_in,
        "msgThroughputOut": totals.byte_rate_out,
        "msgRateIn": totals.message_rate_in,
        "msgRateOut": totals.message_rate_out,
        "lastUpdate": report.measured_ms,
        "lastStats": {name: _bundle(figures) for name, figures in sorted(report.bundles.items())},
        "numTopics": totals.topic_count,
        "numBundles": len(report.bundles),
        "numConsumers": totals.consumer_count,
        "numProducers": totals.producer_count,
        "bundles": sorted(report.bundles),
        "lastBundleGains": [],
        "lastBundleLosses": [],
        "brokerVersionString": broker.version,
        "protocols": {},
        "advertisedListeners": {name: _listener(found) for name, found in broker.advertised_listeners.items()},
        "loadManagerClassName": broker.load_manager_class,
        "startTimestamp": broker.start_timestamp_ms,
        "maxResourceUsage": report.usage_share,
        "loadReportType": "LocalBrokerData",
        "implementation": IMPLEMENTATION,
        STORED_AT: registration.stored_ms,
    }


def _present(**urls: str) -> dict[str, str]:
    return {name: url for name, url in urls.items() if url}


def _bundle(figures: BundleFigures) -> dict[str, float]:
    return {
        "msgRateIn": figures.message_rate_in,
        "msgThroughputIn": figures.byte_rate_in,
        "msgRateOut": figures.message_rate_out,
        "msgThroughputOut": figures.byte_rate_out,
        "consumerCount": figures.consumer_count,
        "producerCount": figures.producer_count,
        "topics": figures.topic_count,
        "cacheSize": 0,
    }


def _listener(found: LookupResult) -> dict[str, str]:
    return _present(
        brokerServiceUrl=found.broker_url,
        brokerServiceUrlTls=found.broker_url_tls,
        brokerHttpUrl=found.http_url,
        brokerHttpsUrl=found.http_url_tls,
    )


# --- reading -------------------------------------------------------------------------------------------------------------


def parsed(broker_id: str, value: bytes) -> Registration | Unusable:
    try:
        data = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Unusable(f"it is not JSON: {error}")
    if not isinstance(data, dict):
        return Unusable("it is not a JSON object")
    broker = RegisteredBroker(
        broker_id,
        _text(data.get("webServiceUrl")),
        _text(data.get("webServiceUrlTls")),
        _text(data.get("pulsarServiceUrl")),
        _text(data.get("pulsarServiceUrlTls")),
        _parsed_listeners(data.get("advertisedListeners")),
        _text(data.get("loadManagerClassName")),
        int(_number(data.get("startTimestamp"))),
        _text(data.get("brokerVersionString")) or _text(data.get("brokerVersion")),
    )
    unusable = checked(broker)
    if unusable is not None:
        return unusable
    report = _parsed_report(data)
    return Registration(
        broker,
        report,
        data.get("persistentTopicsEnabled") is not False,
        data.get("nonPersistentTopicsEnabled") is not False,
        data.get("implementation") == IMPLEMENTATION,
        int(_number(data.get(STORED_AT))) or report.measured_ms,
    )


def instance_of(value: bytes) -> str:
    """Return the id of the data directory if `value` is the registration of a pybroker; otherwise ""."""
    try:
        data = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return _text(data.get(INSTANCE)) if isinstance(data, dict) and data.get("implementation") == IMPLEMENTATION else ""


def checked(broker: RegisteredBroker) -> Unusable | None:
    """Return the reason why lookups cannot use the addresses of `broker`; None if they can."""
    addresses = broker.addresses
    if not addresses.broker_url and not addresses.broker_url_tls:
        return Unusable("it has no pulsarServiceUrl")
    if not addresses.http_url and not addresses.http_url_tls:
        return Unusable("it has no webServiceUrl")
    for scheme, url in zip((PULSAR, PULSAR_TLS, HTTP, HTTP_TLS), addresses, strict=True):
        if url and not _is_url(url, scheme):
            return Unusable(f"{url!r} is not {scheme}://host:port")
    return None


def _is_url(url: str, scheme: str) -> bool:
    try:
        parts = urlsplit(url)
        has_address = bool(parts.hostname and parts.port)
    except ValueError:
        return False
    is_plain = url.isascii() and url.isprintable() and " " not in url
    return is_plain and has_address and parts.scheme == scheme and not (parts.path.strip("/") or parts.query)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> float:
    """Return a finite number that is not negative; 0 for anything else, such as Java's "NaN"."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0.0
    try:
        number = float(value)
    except OverflowError:
        return 0.0
    return number if isfinite(number) and number >= 0 else 0.0


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _parsed_listeners(value: Any) -> dict[str, LookupResult]:
    listeners: dict[str, LookupResult] = {}
    for name, found in list(_mapping(value).items())[:MAX_LISTENERS]:
        urls = _mapping(found)
        result = LookupResult(
            _usable_url(urls.get("brokerServiceUrl"), PULSAR),
            _usable_url(urls.get("brokerServiceUrlTls"), PULSAR_TLS),
            _usable_url(urls.get("brokerHttpUrl"), HTTP),
            _usable_url(urls.get("brokerHttpsUrl"), HTTP_TLS),
        )
        if result.broker_url or result.broker_url_tls:
            listeners[name] = result
    return listeners


def _usable_url(value: Any, scheme: str) -> str:
    url = _text(value)
    return url if _is_url(url, scheme) else ""


def _parsed_report(data: Mapping[str, Any]) -> LoadReport:
    bundles: dict[str, BundleFigures] = {}
    for name, found in _mapping(data.get("lastStats")).items():
        stats = _mapping(found)
        bundles[name] = BundleFigures(
            _number(stats.get("msgRateIn")),
            _number(stats.get("msgThroughputIn")),
            _number(stats.get("msgRateOut")),
            _number(stats.get("msgThroughputOut")),
            int(_number(stats.get("consumerCount"))),
            int(_number(stats.get("producerCount"))),
            int(_number(stats.get("topics"))),
        )
    return LoadReport(
        _usage(data.get("cpu")),
        _usage(data.get("memory")),
        _usage(data.get("directMemory")),
        _usage(data.get("bandwidthIn")),
        _usage(data.get("bandwidthOut")),
        bundles,
        int(_number(data.get("lastUpdate"))),
    )


def _usage(value: Any) -> ResourceUsage:
    found = _mapping(value)
    return ResourceUsage(_number(found.get("usage")), _number(found.get("limit")))

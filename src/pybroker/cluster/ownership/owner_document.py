"""The ownership document of a bundle: the addresses of its owner, in the form that Java brokers write and read.

`pybrokerSession` is an addition that Java brokers ignore. It identifies the session in which this broker wrote the
document: a document with this broker's addresses can also be from an earlier session or process.
"""

from __future__ import annotations

import msgspec

from pybroker.cluster.advertised_addresses import LookupResult
from pybroker.cluster.broker_registry import RegisteredBroker
from pybroker.errors import MetadataError


class ListenerUrls(msgspec.Struct, rename="camel"):
    """The addresses of one advertised listener."""

    broker_service_url: str | None = None
    broker_service_url_tls: str | None = None
    broker_http_url: str | None = None
    broker_https_url: str | None = None


class OwnerDocument(msgspec.Struct, rename="camel"):
    """The value of the ephemeral node of a bundle."""

    native_url: str | None = None
    native_url_tls: str | None = None
    http_url: str | None = None
    http_url_tls: str | None = None
    disabled: bool = False
    advertised_listeners: dict[str, ListenerUrls] | None = None
    pybroker_session: str | None = None


def own_document(broker: RegisteredBroker, session: str) -> bytes:
    """Encode the ownership document of a bundle of `broker`. `session` identifies the broker's session with the store.
    `httpUrl` is never absent: Java brokers cannot redirect REST calls without it.
    """
    listeners = {
        name: {
            key: url
            for key, url in (
                ("brokerServiceUrl", each.broker_url),
                ("brokerServiceUrlTls", each.broker_url_tls),
                ("brokerHttpUrl", each.http_url),
                ("brokerHttpsUrl", each.http_url_tls),
            )
            if url
        }
        for name, each in broker.advertised_listeners.items()
    }
    document: dict[str, object] = {}
    if broker.broker_service_url:
        document["nativeUrl"] = broker.broker_service_url
    if broker.broker_service_url_tls:
        document["nativeUrlTls"] = broker.broker_service_url_tls
    document["httpUrl"] = broker.web_service_url or broker.web_service_url_tls
    if broker.web_service_url_tls:
        document["httpUrlTls"] = broker.web_service_url_tls
    return msgspec.json.encode(
        {**document, "disabled": False, "advertisedListeners": listeners, "pybrokerSession": session}
    )


def decoded_document(path: str, value: bytes) -> OwnerDocument:
    """Decode an ownership document. Raises MetadataError if it cannot be read."""
    try:
        return msgspec.json.decode(value, type=OwnerDocument)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MetadataError(
            f"the ownership document at {path} cannot be read: {error}. The document is deleted when the "
            "session of the broker that wrote it ends"
        ) from error


def urls_of_document(document: OwnerDocument, listener_name: str | None) -> LookupResult:
    """Return the addresses of a bundle's owner. With a listener name, the addresses of the binary protocol are those of
    the listener. The HTTP addresses do not depend on the listener, as in Pulsar. Raises MetadataError if the owner has
    no such listener.
    """
    native, native_tls = document.native_url, document.native_url_tls
    if listener_name:
        found = (document.advertised_listeners or {}).get(listener_name)
        if found is None:
            raise _no_listener(listener_name)
        native, native_tls = found.broker_service_url, found.broker_service_url_tls
    return LookupResult(native or "", native_tls or "", document.http_url or "", document.http_url_tls or "")


def urls_of_broker(broker: RegisteredBroker, listener_name: str | None) -> LookupResult:
    """Return the addresses of a registered broker. With a listener name, the addresses of the binary protocol are those
    of the listener; the HTTP addresses do not depend on the listener. Raises MetadataError if the broker has no such
    listener.
    """
    if not listener_name:
        return broker.addresses
    listener = broker.advertised_listeners.get(listener_name)
    if listener is None:
        raise _no_listener(listener_name)
    return listener._replace(http_url=broker.web_service_url, http_url_tls=broker.web_service_url_tls)


def _no_listener(name: str) -> MetadataError:
    return MetadataError(f"the broker do not have {name} listener")  # Clients search for these words of Pulsar.

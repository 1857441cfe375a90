"""Suggestions for mistyped commands, options, and names of tenants, namespaces, topics and subscriptions."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from pybroker.errors import InvalidTopicName
from pybroker.model.names import DOMAINS, TopicName

MAX_COMPARED = 5_000
"""Longer lists are not compared, because that takes seconds."""
MAX_CHARACTERS = 200
"""Longer names are not compared."""


class NotListed(Exception):
    """The broker responded with 404 to the request for a list of names."""


Fetch = Callable[[str], Any]
"""Returns the document at a path. Raises NotListed for 404."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    candidates = list(known)
    if len(candidates) > MAX_COMPARED or not 0 < len(word) <= MAX_CHARACTERS:
        return None
    by_lower = {each.lower(): each for each in reversed(candidates)}
    found = difflib.get_close_matches(word.lower(), by_lower, 1)
    return by_lower[found[0]] if found else None


@dataclass(frozen=True, slots=True)
class NamedObject:
    """Tenant, namespace, topic or subscription that a REST path names. Parts that it does not name are empty."""

    tenant: str
    namespace: str = ""
    domain: str = ""
    topic: str = ""
    subscription: str = ""

    @property
    def namespace_name(self) -> str:
        return f"{self.tenant}/{self.namespace}"

    @property
    def topic_name(self) -> str:
        return f"{self.domain}://{self.namespace_name}/{self.topic}"


def named_by(path: str) -> NamedObject | None:
    parts = [unquote(part) for part in path.partition("?")[0].split("/")]
    match parts:
        case ["", "admin", "v2", ("tenants" | "namespaces"), tenant]:
            return NamedObject(tenant)
        case ["", "admin", "v2", "namespaces", tenant, namespace, *_]:
            return NamedObject(tenant, namespace)
        case ["", "admin", "v2", domain, tenant, namespace] if domain in DOMAINS:
            return NamedObject(tenant, namespace)
        case ["", "admin", "v2", domain, tenant, namespace, "partitioned"] if domain in DOMAINS:
            return NamedObject(tenant, namespace)
        case ["", "admin", "v2", domain, tenant, namespace, topic, "subscription", name, *_] if domain in DOMAINS:
            return NamedObject(tenant, namespace, domain, topic, name)
        case ["", "admin", "v2", domain, tenant, namespace, topic, *_] if domain in DOMAINS:
            return NamedObject(tenant, namespace, domain, topic)
        case ["", "lookup", "v2", "topic", domain, tenant, namespace, topic, *_] if domain in DOMAINS:
            return NamedObject(tenant, namespace, domain, topic)
    return None


def advice_for(path: str, fetch: Fetch) -> str:
    """Return a suggestion after a 404 for `path`: the most similar name, or the command that lists the names. Empty if
    the object exists. Calls `fetch` for at most four lists of names.
    """
    named = named_by(path)
    if named is None:
        return ""
    try:
        return _advice_in_namespace(named, fetch) if named.topic else _advice_in_tenant(named, fetch)
    except NotListed:
        pass
    try:
        return _advice_in_tenant(named, fetch)
    except NotListed:
        pass
    try:
        return _sentence("tenant", named.tenant, fetch("/admin/v2/tenants"), "pybroker api GET /admin/v2/tenants")
    except NotListed:
        return ""


def _advice_in_namespace(named: NamedObject, fetch: Fetch) -> str:
    base = f"/admin/v2/{named.domain}/{_quoted(named.tenant, named.namespace)}"
    listed = _texts([*_list(fetch(base)), *_list(fetch(f"{base}/partitioned"))])
    topics = {whole for name in listed for whole in _with_partitioned(name)}
    if named.topic_name not in topics:
        listing = f"pybroker topics {shlex.quote(named.namespace_name)}"
        by_local_name = {name.partition("://")[2].split("/", 2)[-1]: name for name in sorted(topics)}
        return _sentence("topic", named.topic, by_local_name, listing, by_local_name.get)
    if not named.subscription:
        return ""
    subscriptions = _texts(_list(fetch(f"{base}/{_quoted(named.topic)}/subscriptions")))
    if named.subscription in subscriptions:
        return ""
    listing = f"pybroker subscriptions {shlex.quote(named.topic_name)}"
    return _sentence("subscription", named.subscription, subscriptions, listing)


def _with_partitioned(name: str) -> tuple[str, ...]:
    try:
        return name, str(TopicName.parse(name).partitioned_name)
    except InvalidTopicName:
        return ()


def _advice_in_tenant(named: NamedObject, fetch: Fetch) -> str:
    namespaces = _texts(_list(fetch(f"/admin/v2/namespaces/{_quoted(named.tenant)}")))
    if not named.namespace or named.namespace_name in namespaces:
        return ""
    return _sentence("namespace", named.namespace_name, namespaces, f"pybroker topics {shlex.quote(named.tenant)}")


def _sentence(
    kind: str, name: str, known: Any, listing: str, shown: Callable[[str], str | None] = lambda name: name
) -> str:
    known = _texts(_list(known) if not isinstance(known, dict) else list(known))
    if name in known:
        return ""
    found = nearest(name, known)
    return f"Did you mean {kind} {shown(found)}?" if found else f"`{listing}` lists the existing {kind}s."


def _list(document: Any) -> list[Any]:
    return document if isinstance(document, list) else []


def _texts(items: Iterable[Any]) -> list[str]:
    return [each for each in items if isinstance(each, str)]


def _quoted(*parts: str) -> str:
    return "/".join(quote(part, safe="") for part in parts)

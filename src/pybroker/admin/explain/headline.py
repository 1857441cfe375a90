"""Headline of an explanation: the state of the explained object, and since when it has lasted. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pybroker.broker.explain.steps import cut
from pybroker.model.finding_evidence import key_text
from pybroker.model.findings import Finding


def headline(document: Mapping[str, Any], findings: Sequence[Finding]) -> dict[str, Any]:
    """Return `text` and `since` (Unix milliseconds, None if unknown) from the object's JSON and the findings about it."""
    waits = bool(document["waiting"])
    since = [each.since_ms for each in findings if each.waits and each.since_ms is not None]
    for each in document.get("subscriptions", ()):
        since += [found["since"] for found in each["findings"] if found["waits"] and found["since"] is not None]
    return {"text": _text(document, findings, waits=waits), "since": min(since, default=None) if waits else None}


def _text(document: Mapping[str, Any], findings: Sequence[Finding], *, waits: bool) -> str:
    subject = document["subject"]
    kind = subject["kind"]
    is_not = "" if waits else "not "
    if kind == "key":
        return f"Messages of key {cut(key_text(subject))} are {is_not}blocked"
    if kind == "message":
        return f"Message {subject['messageId']} is {is_not}blocked"
    if kind == "producer":
        return f"Producer {subject['producer']} is {is_not}blocked"
    if kind == "consumer":
        return f"Consumer {subject['consumer']} is {is_not}stuck"
    if kind == "subscription":
        return f"Subscription {document['subscription']} is {is_not}stuck"
    stuck = sum(1 for each in document.get("subscriptions", ()) if each["waiting"])
    if stuck and not any(each.waits for each in findings):
        are = "subscription is" if stuck == 1 else "subscriptions are"
        return f"{stuck:,} {are} stuck on topic {document['topic']}"
    return f"Topic {document['topic']} is {is_not}stuck"

"""Loads the topic to explain. If it is being loaded or closed, waits for a short time only.

An explanation of a blocked topic must not block itself: the response is sent within `LOAD_WAIT_S`. A load that was
started continues in the background.
"""

from __future__ import annotations

import asyncio

from pybroker.admin.calls.call import Call
from pybroker.admin.calls.existing import existing_any_topic
from pybroker.broker.explain.ownership import explain_not_served
from pybroker.broker.explain.topics import Whereabouts, explain_unloaded
from pybroker.broker.topic.topic import Topic
from pybroker.broker.topic.topic_base import TopicBase
from pybroker.errors import MetadataError, ServiceNotReady, StoreError, TooManyRequests
from pybroker.model.findings import Finding, ordered
from pybroker.model.names import TopicName

LOAD_WAIT_S = 2.0


async def topic_to_explain(call: Call) -> TopicBase | list[Finding]:
    """Return the topic in the path, or findings that report why it is not available. Raises AdminError 404 if it does
    not exist.
    """
    name = call.topic_name()
    if (not_served := await _not_served(call, name)) is not None:
        return [not_served]
    loaded = call.broker.loaded.get(name)
    findings = _findings(call, name)
    if findings and not (loaded is not None and not loaded.is_fenced):
        return findings
    try:
        async with asyncio.timeout(LOAD_WAIT_S) as wait:
            return await existing_any_topic(call)
    except TimeoutError:
        if not wait.expired():
            raise
        failure = f"it takes longer than {LOAD_WAIT_S:g} s"
    except (StoreError, ServiceNotReady, TooManyRequests) as error:
        failure = str(error)
    return _findings(call, name) or _findings(call, name, failure)


async def _not_served(call: Call, name: TopicName) -> Finding | None:
    """Return a finding that reports why this broker does not serve the topic. None if it does, or if it is a standalone
    broker.
    """
    ownership = call.broker.ownership
    if ownership is None or call.resources.namespace(name.namespace) is None:
        return None
    bundle = ownership.bundle_of(name)
    if ownership.serves(bundle) or call.broker.partitioned.get(name) is not None:
        return None
    try:
        owner = await ownership.present_owner(bundle)
    except (MetadataError, StoreError) as error:
        reason = str(error)
    else:
        reason = "no broker owns it" if owner is None else f"broker {owner.urls.broker_url} owns it"
    return explain_not_served(name, str(bundle), ownership.registry.own_broker.broker_id, reason)


def _findings(call: Call, name: TopicName, failure: str = "") -> list[Finding]:
    topics = call.broker.topics
    has_conflict = isinstance(loaded := call.broker.loaded.get(name), Topic) and loaded.ledger.document.is_fenced
    session = call.broker.metadata_store.session_report
    found = Whereabouts(
        topics.ending_of(name),
        topics.load_of(name),
        topics.is_settled(name),
        has_conflict,
        failure,
        session,
        call.broker.ledgers.store.bookies(),
    )
    return ordered(explain_unloaded(name, found, call.runtime.clock))

"""Loading of the topic to explain.

An explanation waits at most `LOAD_WAIT_S` seconds for a topic that is being loaded or closed.
"""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from pybroker.admin.calls.call import Call
from pybroker.admin.calls.existing import existing_any_topic
from pybroker.admin.explain.owner_to_explain import explained_elsewhere
from pybroker.broker.explain.topics import Whereabouts, explain_unloaded
from pybroker.broker.topic.topic import Topic
from pybroker.broker.topic.topic_base import TopicBase
from pybroker.errors import ServiceNotReady, StoreError, TooManyRequests
from pybroker.model.findings import Finding, ordered
from pybroker.model.names import TopicName

LOAD_WAIT_S = 2.0


async def topic_to_explain(call: Call) -> TopicBase | list[Finding] | Response:
    """Return the topic of the path, findings that state why the topic is not available, or a redirect to its owner.
    Raises TopicNotFound if the topic does not exist, AdminError 404 if its namespace does not exist.
    """
    name = call.topic_name()
    if (elsewhere := await explained_elsewhere(call, name)) is not None:
        return elsewhere
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

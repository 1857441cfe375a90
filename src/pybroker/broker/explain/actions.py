"""The calls that findings suggest: all of them are served, and need the caller's rights as ever."""

from __future__ import annotations

from shlex import quote as shell
from typing import TYPE_CHECKING
from urllib.parse import quote

from pybroker.model.findings import Action

if TYPE_CHECKING:
    from pybroker.model.names import TopicName


def topic_path(topic: TopicName) -> str:
    """Where the calls about a topic begin."""
    parts = (topic.domain, topic.tenant, topic.namespace.local_name, topic.local_name)
    return "/admin/v2/" + "/".join(quote(part, safe="") for part in parts)


def subscription_path(topic: TopicName, subscription: str) -> str:
    """Where the calls about a subscription begin."""
    return f"{topic_path(topic)}/subscription/{quote(subscription, safe='')}"


def unload(topic: TopicName) -> Action:
    return Action(
        "Unload the topic: its clients connect again, and what is unacknowledged is delivered anew",
        "PUT",
        topic_path(topic) + "/unload",
    )


def skip_all(topic: TopicName, subscription: str) -> Action:
    return Action(
        "Give up all messages that wait, if nobody wants them",
        "POST",
        subscription_path(topic, subscription) + "/skip_all",
    )


def delete_subscription(topic: TopicName, subscription: str) -> Action:
    return Action(
        "Delete the subscription, if nobody will come back to it", "DELETE", subscription_path(topic, subscription)
    )


def explain_consumer(topic: TopicName, subscription: str, consumer: str) -> Action:
    return Action(
        f"Look at consumer {consumer}",
        "GET",
        f"{subscription_path(topic, subscription)}/explain?consumer={quote(consumer, safe='')}",
        command=f"pybroker explain {shell(str(topic))} {shell(subscription)} --consumer {shell(consumer)}",
    )

"""Loaded topics of a broker by name, including fenced topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pybroker.broker.topic.non_persistent_topic import NonPersistentTopic
    from pybroker.broker.topic.topic import Topic
    from pybroker.broker.topic.topic_base import TopicBase
    from pybroker.model.names import TopicName


class LoadedTopics:
    """Registry of loaded topics. Loading and creation add topics; closing and deletion remove them."""

    def __init__(self) -> None:
        self.persistent: dict[str, Topic] = {}
        self.non_persistent: dict[str, NonPersistentTopic] = {}

    def get(self, name: TopicName) -> TopicBase | None:
        return (self.persistent if name.is_persistent else self.non_persistent).get(str(name))

    def all(self) -> list[TopicBase]:
        return [*self.persistent.values(), *self.non_persistent.values()]

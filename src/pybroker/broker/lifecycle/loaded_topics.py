"""The topics that are loaded, by name; a topic in here may be fenced already."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pybroker.broker.topic.non_persistent_topic import NonPersistentTopic
    from pybroker.broker.topic.topic import Topic
    from pybroker.broker.topic.topic_base import TopicBase
    from pybroker.model.names import TopicName


class LoadedTopics:
    """The loaded topics of the broker service. Loading and creation add topics, closing and deletion remove them."""

    def __init__(self) -> None:
        self.persistent: dict[str, Topic] = {}
        """By full name, as the others."""
        self.non_persistent: dict[str, NonPersistentTopic] = {}

    def get(self, name: TopicName) -> TopicBase | None:
        """Whether persistent or not."""
        return (self.persistent if name.is_persistent else self.non_persistent).get(str(name))

    def all(self) -> list[TopicBase]:
        """All of them as they are now, the persistent ones first."""
        return [*self.persistent.values(), *self.non_persistent.values()]

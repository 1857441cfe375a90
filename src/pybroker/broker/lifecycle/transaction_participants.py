"""End of transactions at their participants: topics and subscriptions on this broker and on other brokers.

A participant that does not exist counts as success. The caller retries all other failures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pybroker.broker.lifecycle.open_topic import on_open_topic
from pybroker.broker.topic.topic import Topic
from pybroker.errors import InvalidTopicName, SubscriptionNotFound, TopicNotFound
from pybroker.model.names import TopicName
from pybroker.model.system_topics import is_transaction_internal

if TYPE_CHECKING:
    from pybroker.broker.lifecycle.topic_manager import Topics
    from pybroker.broker.topic.topic_base import TopicBase
    from pybroker.metadata.partitioned_topics import PartitionedTopics
    from pybroker.model.txn_id import TxnAction, TxnId
    from pybroker.runtime.runtime import Runtime
    from pybroker.transactions.participant_notification import Participant


class RemoteParticipants(Protocol):
    """Client of the brokers that own the topics and subscriptions of a transaction."""

    def serves(self, topic: TopicName) -> bool:
        """Return whether this broker itself serves `topic`."""

    async def end(
        self, topic: TopicName, subscription: str | None, txn: TxnId, action: TxnAction, low_water_mark: int
    ) -> None:
        """Commit or abort the transaction on `topic`, or on its `subscription`, at the broker that owns the topic.
        Durable on return. Raises BrokerError: the caller must retry.

        `low_water_mark`: all transactions of the same coordinator with this or a lower id have ended.
        """


class TransactionParticipants:
    """Ends transactions at their participants."""

    elsewhere: RemoteParticipants | None = None
    """Participants at other brokers; None for a broker that serves all topics."""

    def __init__(self, runtime: Runtime, topics: Topics, partitioned: PartitionedTopics) -> None:
        self._runtime = runtime
        self._topics = topics
        self._partitioned = partitioned

    async def end(self, participant: Participant, txn: TxnId, action: TxnAction, low_water_mark: int) -> None:
        """Commit or abort the transaction at the participant. Durable on return. Raises BrokerError, StoreError: the
        caller must retry.

        `low_water_mark`: all transactions of the same coordinator with this or a lower id have ended.
        """
        if self.elsewhere is not None:
            name = _name_of(participant)
            if name is not None and not self.elsewhere.serves(name):
                await self.elsewhere.end(name, participant.subscription, txn, action, low_water_mark)
                return
        await self.end_here(participant, txn, action, low_water_mark)

    async def end_here(self, participant: Participant, txn: TxnId, action: TxnAction, low_water_mark: int) -> None:
        """Commit or abort the transaction at a participant that this broker serves. Raises ServiceNotReady if another
        broker serves it, and the errors of `end`.
        """
        name = _name_of(participant)
        if name is None or self._partitioned.get(name) is not None:
            return  # It cannot contain messages of a transaction.
        subscription_name = participant.subscription

        async def find() -> TopicBase:
            return await self._topics.get(name, may_create=False)

        async def act(topic: TopicBase) -> None:
            assert isinstance(topic, Topic)
            if subscription_name is None:
                await topic.end_transaction(txn, action, low_water_mark)
                return
            subscription = topic.subscriptions.get(subscription_name)
            if subscription is not None:
                await subscription.end_transaction(txn, action, low_water_mark)

        try:
            await on_open_topic(self._runtime, find, act)
        except (TopicNotFound, SubscriptionNotFound):
            return


def _name_of(participant: Participant) -> TopicName | None:
    try:
        name = TopicName.parse(participant.topic)
    except InvalidTopicName:
        return None
    return name if name.is_persistent and not is_transaction_internal(name) else None

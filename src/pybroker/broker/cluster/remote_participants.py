"""End of transactions on topics and subscriptions that other brokers of the cluster serve.

Sends END_TXN_ON_PARTITION and END_TXN_ON_SUBSCRIPTION.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pybroker.client.access import AccessRefused
from pybroker.client.failures import ClientError
from pybroker.errors import BrokerError, ServiceNotReady, SubscriptionNotFound, TopicNotFound
from pybroker.model.txn_id import TxnAction
from pybroker.wire import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from pybroker.client.pulsar_client import PulsarClient
    from pybroker.cluster.ownership.bundle_ownership import BundleOwnership
    from pybroker.model.names import TopicName
    from pybroker.model.txn_id import TxnId


class OwnersParticipants:
    """Client of the brokers that own the topics and subscriptions of a transaction. The caller retries failed calls."""

    def __init__(self, ownership: BundleOwnership, client: Callable[[], PulsarClient]) -> None:
        self._ownership = ownership
        self._client = client

    def serves(self, topic: TopicName) -> bool:
        """Return whether this broker serves `topic`. Also True if the namespace of the topic does not exist, because
        then no other broker owns the topic.
        """
        try:
            self._ownership.require_served(topic)
        except ServiceNotReady:
            return False
        except TopicNotFound:
            return True
        return True

    async def end(
        self, topic: TopicName, subscription: str | None, txn: TxnId, action: TxnAction, low_water_mark: int
    ) -> None:
        """Commit or abort the transaction on `topic`, or on its `subscription`, at the broker that owns the topic.

        A topic or subscription that does not exist counts as success. `low_water_mark`: all transactions of the same
        coordinator with this or a lower id have ended. Raises BrokerError if the owner is unreachable or refuses.
        """
        command = _command(topic, subscription, txn, action, low_water_mark)
        try:
            connection = await self._client().connection_for(topic)
            await connection.request(command)
        except (TopicNotFound, SubscriptionNotFound):
            return
        except BrokerError:
            raise
        except (ClientError, AccessRefused, OSError) as error:
            raise ServiceNotReady(
                f"the broker that owns topic {topic} did not confirm the end of transaction {txn}: {error}"
            ) from error


def _command(
    topic: TopicName, subscription: str | None, txn: TxnId, action: TxnAction, low_water_mark: int
) -> pb.BaseCommand:
    if subscription is None:
        command = pb.BaseCommand(type=pb.BaseCommand.END_TXN_ON_PARTITION)
        partition = command.endTxnOnPartition
        partition.topic = str(topic)
        request: pb.CommandEndTxnOnPartition | pb.CommandEndTxnOnSubscription = partition
    else:
        command = pb.BaseCommand(type=pb.BaseCommand.END_TXN_ON_SUBSCRIPTION)
        request = command.endTxnOnSubscription
        request.subscription.topic = str(topic)
        request.subscription.subscription = subscription
    request.txnid_most_bits, request.txnid_least_bits = txn
    request.txn_action = pb.COMMIT if action is TxnAction.COMMIT else pb.ABORT
    request.txnid_least_bits_of_low_watermark = low_water_mark
    return command

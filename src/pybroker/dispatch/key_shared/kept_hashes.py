"""Kept hashes: key hashes of a Key_Shared subscription that stay with their former owner, because it has received some
chunks of a large message and must receive the others.

A hash is kept until its consumer has all chunks of the message or has returned its chunks. With out-of-order delivery,
several consumers may have incomplete messages of a hash.
"""

from __future__ import annotations

from collections.abc import Iterable

from pybroker.dispatch.chunks.chunked_messages import ChunkedMessages
from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.key_shared.hash_owners import HashOwners


class KeptHashes:
    """The kept hashes of one Key_Shared dispatcher. `by_hash` is public for reading: the dispatcher looks up the hash
    of each entry without a call.
    """

    def __init__(self, owners: HashOwners, chunked: ChunkedMessages) -> None:
        self._owners = owners
        self._chunked = chunked
        self.by_hash: dict[int, ConsumerState] = {}

    def keep(self, holder: ConsumerState, sticky_hash: int) -> None:
        """Keep the hash at `holder`, which has some chunks of a message with this hash and must receive the next
        chunk.
        """
        self.by_hash[sticky_hash] = holder

    def keep_unfinished(self, loser: ConsumerState) -> bool:
        """Keep hashes at `loser` that `loser` no longer owns: those of messages of which it has received only some
        chunks. Return whether a hash was kept.
        """
        owner = self._owners.selector.owner
        lost = [each for each in self._chunked.unfinished_hashes(loser) if owner(each) is not loser]
        kept = {sticky_hash: loser for sticky_hash in lost if not self.is_elsewhere(loser, sticky_hash)}
        self.by_hash.update(kept)
        return bool(kept)

    def is_elsewhere(self, consumer: ConsumerState, sticky_hash: int) -> bool:
        """Return True if a consumer other than `consumer` must receive the entries of this hash: the consumer at which
        the hash is kept or, for a hash that is not kept, its owner if it has an incomplete message with this hash. The
        owner is considered with out-of-order delivery only. Return False in all other cases.
        """
        keeper = self.by_hash.get(sticky_hash)
        if keeper is not None or not self._owners.allows_out_of_order_delivery:
            return keeper is not None and keeper is not consumer
        owner = self._owners.selector.owner(sticky_hash)
        return owner is not consumer and owner in self._chunked.unfinished_holders(sticky_hash)

    def release(self, consumer: ConsumerState) -> list[int]:
        released = [sticky_hash for sticky_hash, keeper in self.by_hash.items() if keeper is consumer]
        for sticky_hash in released:
            del self.by_hash[sticky_hash]
        return released

    def release_finished(self) -> list[int]:
        """Release the kept hashes whose consumer has no incomplete message with the hash any more, and return them.
        With out-of-order delivery, two consumers can have incomplete messages with the same hash. If the owner of a
        released hash has none, but another consumer has one, the hash is kept again, at that consumer.
        """
        finished = [
            sticky_hash
            for sticky_hash, keeper in self.by_hash.items()
            if sticky_hash not in self._chunked.unfinished_hashes(keeper)
        ]
        for sticky_hash in finished:
            del self.by_hash[sticky_hash]
        self.keep_at_holders(finished)
        return finished

    def keep_at_holders(self, sticky_hashes: Iterable[int]) -> bool:
        """Keep each of these hashes at a consumer that has only some chunks of a message with this hash, unless the
        hash's owner is such a consumer. Return whether a hash was kept. With ordered delivery, keep no hash and return
        False.
        """
        found = False
        for sticky_hash in sticky_hashes if self._owners.allows_out_of_order_delivery else ():
            holders = self._chunked.unfinished_holders(sticky_hash)
            if holders and self._owners.selector.owner(sticky_hash) not in holders:
                self.by_hash[sticky_hash] = holders[0]
                found = True
        return found

    def clear(self) -> None:
        self.by_hash.clear()

"""Checks of each message before it is stored: size, delay, and required encryption. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pybroker.errors import BrokerError, MetadataError, NotAllowedError
from pybroker.model.effective_policies import EffectivePolicies
from pybroker.model.events import SendRun
from pybroker.model.policies import DelayedDeliveryPolicies
from pybroker.wire.entry_metadata import chunk_of, deliver_at_ms, is_encrypted, publish_time_ms

Refused = list[tuple[SendRun, BrokerError]]


class PublishChecks:
    """Limits for published messages; 0 for no limit."""

    __slots__ = ("_is_encryption_required", "_max_delay_ms", "_max_message_bytes")

    def __init__(self, max_message_bytes: int, max_delay_ms: int, is_encryption_required: bool) -> None:
        self._max_message_bytes = max_message_bytes
        self._max_delay_ms = max_delay_ms
        self._is_encryption_required = is_encryption_required

    def split(self, run: SendRun) -> tuple[SendRun, Refused]:
        errors = {
            index: error for index, entry in enumerate(run.payloads) if (error := self._refusal(entry)) is not None
        }
        return split(run, errors)

    def _refusal(self, entry: bytes) -> BrokerError | None:
        if self._is_encryption_required and not is_encrypted(entry):
            return MetadataError("Messages must be encrypted")
        # A chunk may have the maximum message size that the broker announced to the producer.
        if 0 < self._max_message_bytes < len(entry) and chunk_of(entry) is None:
            return NotAllowedError("Exceed maximum message size")
        if self._max_delay_ms:
            due_ms = deliver_at_ms(entry)
            if due_ms and due_ms - publish_time_ms(entry) > self._max_delay_ms:
                return NotAllowedError(f"Exceeds max allowed delivery delay of {self._max_delay_ms} milliseconds")
        return None


def publish_checks(policies: EffectivePolicies, *, is_encryption_required: bool) -> PublishChecks | None:
    max_message_bytes = max(0, policies.max_message_size)
    max_delay_ms = _max_delay_ms(policies.delayed_delivery)
    if not (max_message_bytes or max_delay_ms or is_encryption_required):
        return None
    return PublishChecks(max_message_bytes, max_delay_ms, is_encryption_required)


def split(run: SendRun, errors: Mapping[int, BrokerError]) -> tuple[SendRun, Refused]:
    if not errors:
        return run, []
    kept = [index for index in range(len(run.payloads)) if index not in errors]
    return rows(run, kept), [(rows(run, [index]), error) for index, error in errors.items()]


def rows(run: SendRun, indexes: Sequence[int]) -> SendRun:
    part = SendRun(run.producer_id, run.txn)
    part.payloads = [run.payloads[index] for index in indexes]
    part.sequence_ids = [run.sequence_ids[index] for index in indexes]
    part.highest_sequence_ids = [run.highest_sequence_ids[index] for index in indexes]
    part.message_counts = [run.message_counts[index] for index in indexes]
    part.size_bytes = sum(map(len, part.payloads))
    part.has_markers = run.has_markers
    if run.chunk_count:
        part.chunk_count = sum(chunk_of(payload) is not None for payload in part.payloads)
    return part


def _max_delay_ms(policies: DelayedDeliveryPolicies) -> int:
    return max(0, policies.maxDeliveryDelayInMillis) if policies.active else 0

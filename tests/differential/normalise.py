"""What may differ between two honest brokers is taken out of a trace here; pure.

Invariant: normalising is a function of one trace alone, never of the other broker's: ids become ordinals in order of
first appearance, addresses and versions become names, times and rates become markers of their kind.
"""

import re
from collections.abc import Mapping
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

# Fields whose value is a time, a rate or a size on disk. Presence and kind are compared, the value is not.
_VOLATILE = re.compile(
    r"^(publish_?[tT]ime|timestamp|broker_timestamp|startTimestamp|connectedSince|creationDate|modificationDate"
    r"|last[A-Z]\w*Timestamp|lastUpdate|msgRate\w*|msgThroughput\w*|messageAckRate)$"
)
# Free text for people: each broker words it its own way, or says nothing. `--out` keeps the words.
_FREE_TEXT = {"message", "reason", "error_message", "lastError"}
# Fields of the protocol whose absence says the same as this value.
_SAME_AS_ABSENT = {"partition": -1, "batch_index": -1}
# Lists of these stand for sets and come in any order.
_ACTIONS = {"produce", "consume", "functions", "sources", "sinks", "packages"}
_GENERATED_NAME = re.compile(r"^standalone-\d+-\d+$")
_MAX_UNSIGNED = 2**64 - 1


class Normaliser:
    """Owner: one scenario on one broker."""

    def __init__(self, replacements: Mapping[str, str]) -> None:
        # Longest first: an http url contains the host that stands alone elsewhere.
        self._replacements = sorted(replacements.items(), key=lambda pair: -len(pair[0]))
        self._positions: dict[tuple[int, int], str] = {}
        self._names: dict[str, str] = {}

    def position(self, ledger_id: int, entry_id: int) -> str:
        """A name for a message id, by order of appearance; the special ones keep their meaning."""
        special = {-1: "none", _MAX_UNSIGNED: "none", 2**63 - 1: "latest"}
        if ledger_id in special and entry_id in special:
            return f"<{special[ledger_id]}>"
        return self._positions.setdefault((ledger_id, entry_id), f"<id {len(self._positions) + 1}>")

    def text(self, value: str) -> str:
        for found, name in self._replacements:
            value = value.replace(found, name)
        if _GENERATED_NAME.match(value):
            return self._names.setdefault(value, f"<generated name {len(self._names) + 1}>")
        return value

    def value(self, value: Json, field: str = "") -> Json:
        """`value` without what may differ; `field` is the name under which it stands."""
        if isinstance(value, dict):
            ids = _position_fields(value)
            left_out = {*ids, *(k for k, v in value.items() if k in _SAME_AS_ABSENT and v == _SAME_AS_ABSENT[k])}
            if _says_nothing_of_a_batch(value):
                left_out.add("highest_sequence_id")
            rest: dict[str, Json] = {self.text(k): self.value(v, k) for k, v in value.items() if k not in left_out}
            if ids:
                ledger, entry = (int(str(value[each])) for each in ids)
                rest["position"] = self.position(ledger, entry)
            return rest
        if isinstance(value, list):
            is_set = all(isinstance(each, str) and each in _ACTIONS for each in value)
            return [self.value(each, field) for each in (sorted(value, key=str) if is_set else value)]
        if field in _FREE_TEXT and isinstance(value, str):
            return "<text>"
        if _VOLATILE.search(field) and isinstance(value, int | float | str) and not isinstance(value, bool):
            return "<volatile>"
        return self.text(value) if isinstance(value, str) else value


def _position_fields(value: Mapping[str, Json]) -> tuple[str, ...]:
    if "ledgerId" in value and "entryId" in value:
        return ("ledgerId", "entryId")
    return ()


def _says_nothing_of_a_batch(value: Mapping[str, Json]) -> bool:
    """Clients take the larger of a receipt's two sequence ids, as signed numbers: the second counts when it is larger."""
    if "sequence_id" not in value or "highest_sequence_id" not in value:
        return False
    first, highest = (int(str(value[each])) for each in ("sequence_id", "highest_sequence_id"))
    return (highest if highest < 2**63 else highest - 2**64) <= first


def flatten(value: Json, path: str = "") -> dict[str, Json]:
    """Every leaf of `value` by its path, empty containers included."""
    if isinstance(value, dict) and value:
        children = {f"{path}.{key}" if path else key: child for key, child in value.items()}
    elif isinstance(value, list) and value:
        children = {f"{path}[{index}]": child for index, child in enumerate(value)}
    else:
        return {path: value}
    leaves: dict[str, Json] = {}
    for child_path, child in children.items():
        leaves |= flatten(child, child_path)
    return leaves

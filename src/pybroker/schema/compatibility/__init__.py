"""Compatibility of a new schema with a topic's existing ones: `check` by a `CompatibilityStrategy`. Start with `rules`."""

from pybroker.schema.compatibility.rules import CompatibilityStrategy, check

__all__ = ["CompatibilityStrategy", "check"]

"""Compatibility of a new schema with the existing schemas of a topic. Start with `rules.check`."""

from pybroker.schema.compatibility.rules import CompatibilityStrategy, check

__all__ = ["CompatibilityStrategy", "check"]

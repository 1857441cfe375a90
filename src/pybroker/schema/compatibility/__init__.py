"""May a schema follow the ones that a topic has: `check` by a `CompatibilityStrategy`. Start reading in `rules`."""

from pybroker.schema.compatibility.rules import CompatibilityStrategy, check

__all__ = ["CompatibilityStrategy", "check"]

"""Importing the modules registers their scenarios, in this order."""

from importlib import import_module

MODULES = (
    "scenarios_subscriptions",
    "scenarios_topics",
    "scenarios_neighbours",
    "scenarios_helped",
    "scenarios_shared",
    "scenarios_massive",
)


def load() -> None:
    for module in MODULES:
        import_module(f"tests.storm.{module}")

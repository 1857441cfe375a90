"""The keys that can be set at run time: all of Pulsar's, and those of features that Pulsar does not have."""

import json
from pathlib import Path

from tests.differential.scenarios_brokers import OWN_DYNAMIC_KEYS

from pybroker.config.dynamic import dynamic_names

PULSAR = Path(__file__).parents[2] / "vectors/pulsar_dynamic_keys.json"
"""What `GET /admin/v2/brokers/configuration` of the reference broker lists."""


def test_dynamic_keys_are_those_of_pulsar_and_the_listed_own_ones() -> None:
    pulsar = set(json.loads(PULSAR.read_text()))
    assert pulsar.isdisjoint(OWN_DYNAMIC_KEYS)
    assert sorted(dynamic_names()) == sorted(pulsar | OWN_DYNAMIC_KEYS)

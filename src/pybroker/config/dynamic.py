"""The one place where a configuration changes while the broker runs: its dynamic keys, through `change`.

Whoever reads `config.some_key` when it is needed sees a change by itself. Who keeps what it made from a key listens to
`cluster.dynamic_configuration`, which decides what is changed and makes it outlive the process.
"""

from pybroker.config.broker_config import KEYS, BrokerConfig
from pybroker.config.keys import KeyInfo, Value


def dynamic_keys() -> dict[str, KeyInfo]:
    """The keys that may be changed at run time and have an effect, by name."""
    return {key: info for key, info in KEYS.items() if info.dynamic and info.supported}


def change(config: BrokerConfig, info: KeyInfo, value: Value) -> None:
    """Give a dynamic key its new value, which `parse_value` has made from a text."""
    assert info.dynamic, f"{info.key} is read once, at start"
    # For everybody else the configuration is frozen.
    object.__setattr__(config, info.field, value)

"""The one place where a configuration changes while the broker runs: its dynamic keys, through `change`.

Whoever reads `config.some_key` when it is needed sees a change by itself. Who keeps what it made from a key listens to
`cluster.dynamic_configuration`, which decides what is changed and makes it outlive the process.
"""

from pybroker.config.broker_config import KEYS, BrokerConfig
from pybroker.config.keys import KeyInfo, Value
from pybroker.config.only_in_pulsar import ONLY_IN_PULSAR


def dynamic_keys() -> dict[str, KeyInfo]:
    """The keys that may be changed at run time and have an effect, by name."""
    return {key: info for key, info in KEYS.items() if info.dynamic and info.supported}


def dynamic_names() -> list[str]:
    """All keys that can be given a value at run time: those, and those that have an effect in Pulsar only."""
    return [
        *dynamic_keys(),
        *(key for key, info in KEYS.items() if info.dynamic and not info.supported),
        *ONLY_IN_PULSAR,
    ]


def is_dynamic(key: str) -> bool:
    """Whether `key` is one of `dynamic_names`."""
    info = KEYS.get(key)
    return info.dynamic if info is not None else key in ONLY_IN_PULSAR


def is_secret(key: str) -> bool:
    """Whether the value of `key` is never shown."""
    info = KEYS.get(key)
    return info is not None and info.secret


def change(config: BrokerConfig, info: KeyInfo, value: Value) -> None:
    """Give a dynamic key its new value, which `parse_value` has made from a text."""
    assert info.dynamic, f"{info.key} is read once, at start"
    # Everywhere else the configuration is frozen.
    config.__dict__[info.field] = value

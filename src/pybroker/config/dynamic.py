"""Changes of dynamic configuration keys at run time.

Code that reads `config.some_key` on each use sees a change. Other code registers a listener with
`cluster.dynamic_configuration`.
"""

from pybroker.config.broker_config import KEYS, BrokerConfig
from pybroker.config.only_in_pulsar import ONLY_IN_PULSAR
from pybroker.config.setting_types import KeyInfo, Value


def dynamic_keys() -> dict[str, KeyInfo]:
    """Return the keys that have an effect when changed at run time."""
    return {key: info for key, info in KEYS.items() if info.dynamic and info.supported}


def dynamic_names() -> list[str]:
    """Return all keys that can be set at run time, including keys that have an effect in Pulsar only."""
    return [
        *dynamic_keys(),
        *(key for key, info in KEYS.items() if info.dynamic and not info.supported),
        *ONLY_IN_PULSAR,
    ]


def is_dynamic(key: str) -> bool:
    info = KEYS.get(key)
    return info.dynamic if info is not None else key in ONLY_IN_PULSAR


def is_secret(key: str) -> bool:
    """Return whether the value of `key` must not be shown."""
    info = KEYS.get(key)
    return info is not None and info.secret


def change(config: BrokerConfig, info: KeyInfo, value: Value) -> None:
    """Set the dynamic key `info` of `config` to `value`, which `parse_value` has returned."""
    assert info.dynamic, f"{info.key} is read once, at start"
    # For all other code the configuration is frozen.
    config.__dict__[info.field] = value

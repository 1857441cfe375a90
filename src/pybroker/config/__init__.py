"""Typed configuration of a broker.

`load` reads file, environment and command line into a frozen `BrokerConfig`; `KEYS` describes every key. Start with
`parse.py`.
"""

from pybroker.config.broker_config import KEYS, BrokerConfig
from pybroker.config.parse import LoadedConfig, dump, load, read, similar_key
from pybroker.config.setting_types import ConfigError, KeyInfo, Problems, Value, ValueType, format_value, parse_value

__all__ = [
    "KEYS",
    "BrokerConfig",
    "ConfigError",
    "KeyInfo",
    "LoadedConfig",
    "Problems",
    "Value",
    "ValueType",
    "dump",
    "format_value",
    "load",
    "parse_value",
    "read",
    "similar_key",
]

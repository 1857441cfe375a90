"""Settings that were changed at run time: stored, in force at once, and in force again after a restart.

What must always hold: what `set` and `unset` changed is durable when they return, and only then visible to readers of the
configuration. An override wins over file, environment and command line. As in Pulsar every key that is dynamic there is taken and
kept as text: one that has no effect here, and a value that does not fit, in place of which the value from the start holds; both
are reported in the log, now and at each start. `config.dynamic` does the change itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from pybroker.config import BrokerConfig, ConfigError, KeyInfo, Value, format_value, parse_value
from pybroker.config.dynamic import change, dynamic_keys, is_dynamic, is_secret
from pybroker.config.parse import MASK
from pybroker.errors import AdminError, StoreError
from pybroker.metadata import metadata_paths
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.runtime import logs

Check = Callable[[Value], object]
Listener = Callable[[KeyInfo], None]


class DynamicConfiguration:
    """The overrides of one broker. `load` comes first, once everybody listens."""

    def __init__(self, config: BrokerConfig, store: MetadataStore) -> None:
        self._config = config
        self._store = store
        self._keys = dynamic_keys()
        self._texts: dict[str, str] = {}
        self._from_start: dict[str, Value] = {}  # What overridden keys were before, and are again after `unset`.
        self._checks: dict[str, Check] = {}
        self._listeners: list[Listener] = []
        self._writing = asyncio.Lock()

    def check(self, key: str, check: Check) -> None:
        """Before `key` changes ask `check`, which raises ConfigError for a value that has the right type and cannot be used."""
        assert key in self._keys, key
        self._checks[key] = check

    def listen(self, listener: Listener) -> None:
        """After each change call `listener` with the key whose value in the configuration is another one now."""
        self._listeners.append(listener)

    async def load(self) -> None:
        """Put the stored overrides in force. One that does not fit is logged and left alone. Raises StoreError."""
        found = await self._store.get(metadata_paths.DYNAMIC_CONFIGURATION)
        if found is None:
            return
        try:
            self._texts = msgspec.json.decode(found.value, type=dict[str, str])
        except msgspec.DecodeError as error:
            raise StoreError(
                f"the metadata at {metadata_paths.DYNAMIC_CONFIGURATION} cannot be read: {error}"
            ) from error
        for key, text in self._texts.items():
            self._put_in_force(key, text)

    def overrides(self) -> dict[str, str]:
        """What was changed at run time, as it was given; secrets masked."""
        return {key: MASK if is_secret(key) else text for key, text in self._texts.items()}

    async def set(self, key: str, text: str) -> None:
        """Change `key`, or only keep `text` for it. Refused: 412 when it is not dynamic."""
        self._require_dynamic(key, "update")
        async with self._writing:
            await self._store_texts({**self._texts, key: text})
            logs.info("config.changed", key=key, value=MASK if is_secret(key) else text)
            self._put_in_force(key, text)

    async def unset(self, key: str) -> None:
        """`key` has the value again that it was started with. Refused: 412 when it is not dynamic."""
        self._require_dynamic(key, "delete")
        async with self._writing:
            if key not in self._texts:
                return
            await self._store_texts({other: text for other, text in self._texts.items() if other != key})
            self._take_back(key)
        logs.info("config.reset", key=key)

    def _require_dynamic(self, key: str, what: str) -> None:
        if not is_dynamic(key):
            raise AdminError(412, f"Can't {what} non-dynamic configuration")

    def _put_in_force(self, key: str, text: str) -> None:
        """Let `key` have the value that `text` means, or say in the log why it has not."""
        info = self._keys.get(key)
        if info is None:
            logs.warning("config.override_ignored", key=key, reason="changed at run time it has no effect here")
            return
        try:
            value = self._checked(info, text)
        except ConfigError as error:
            self._take_back(key)  # What would hold after a restart.
            in_force = MASK if info.secret else format_value(getattr(self._config, info.field))
            logs.warning("config.override_ignored", key=key, reason=str(error), in_force=in_force)
        else:
            self._apply(info, value)

    def _take_back(self, key: str) -> None:
        if key in self._from_start:
            self._tell(self._keys[key], self._from_start.pop(key))

    def _checked(self, info: KeyInfo, text: str) -> Value:
        value = parse_value(info, text, "dynamic configuration")
        if info.key in self._checks:
            self._checks[info.key](value)
        return value

    def _apply(self, info: KeyInfo, value: Value) -> None:
        self._from_start.setdefault(info.key, getattr(self._config, info.field))
        self._tell(info, value)

    def _tell(self, info: KeyInfo, value: Value) -> None:
        change(self._config, info, value)
        for listener in self._listeners:
            listener(info)

    async def _store_texts(self, texts: dict[str, str]) -> None:
        await self._store.put(metadata_paths.DYNAMIC_CONFIGURATION, msgspec.json.encode(texts))
        self._texts = texts

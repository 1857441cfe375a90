"""Dynamic configuration: overrides of settings at run time, stored, effective immediately, and applied again after a
restart.

An override takes precedence over file, environment and command line. As in Pulsar, every key that is dynamic there is
accepted and stored as text. This includes keys without effect here, and values that do not fit; for these the value
from the start stays in force. Both cases are logged, now and at each start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pybroker.config import KEYS, BrokerConfig, ConfigError, KeyInfo, Value, format_value, parse_value
from pybroker.config.dynamic import change, dynamic_keys, is_dynamic, is_secret
from pybroker.config.parse import MASK
from pybroker.errors import AdminError
from pybroker.metadata import metadata_paths
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.metadata.stored_document import decoded_or_logged, rewrite
from pybroker.runtime import logs

Check = Callable[[Value], object]
Listener = Callable[[KeyInfo], None]


class DynamicConfiguration:
    """The configuration overrides of one broker. Call `load` after all listeners are registered."""

    def __init__(self, config: BrokerConfig, store: MetadataStore) -> None:
        self._config = config
        self._store = store
        self._keys = dynamic_keys()
        self._texts: dict[str, str] = {}
        self._from_start: dict[str, Value] = {}  # values of overridden keys before the override; `unset` restores them
        self._checks: dict[str, Check] = {}
        self._listeners: list[Listener] = []
        self._writing = asyncio.Lock()

    def check(self, key: str, check: Check) -> None:
        """Register the function `check`, which receives each new value of `key` before the change. It must raise
        ConfigError for a value that cannot be used.
        """
        assert key in self._keys, key
        self._checks[key] = check

    def listen(self, listener: Listener) -> None:
        """Register `listener`, which is called after each change with the changed key."""
        self._listeners.append(listener)

    async def load(self) -> None:
        """Apply the stored overrides. An unsuitable value is logged and ignored. Raises StoreError."""
        async with self._writing:
            path = metadata_paths.DYNAMIC_CONFIGURATION
            found = await self._store.get(path)
            value = b"" if found is None else found.value
            self._texts = decoded_or_logged(self._store, path, value, dict[str, str]) or {}
            for key, text in self._texts.items():
                self._put_in_force(key, text)

    async def read_again(self) -> None:
        """Read the overrides again, and apply the changes of other brokers. Raises StoreError."""
        path = metadata_paths.DYNAMIC_CONFIGURATION
        async with self._writing:
            found = await self._store.get(path)
            after = {} if found is None else decoded_or_logged(self._store, path, found.value, dict[str, str])
            if after is None:
                return  # the overrides stay in force
            before, self._texts = self._texts, after
            for key in sorted(before.keys() | after.keys()):
                if key not in after:
                    self._take_back(key)
                    logs.info("config.reset", key=key)
                elif before.get(key) != after[key]:
                    self._put_in_force(key, after[key])
                    logs.info("config.changed", key=key, value=MASK if is_secret(key) else after[key])

    async def refresh(self, path: str) -> None:
        """Do the same as `read_again`, because the document at `path` has changed, which contains all overrides."""
        await self.read_again()

    def overrides(self) -> dict[str, str]:
        """Return the overrides by key. Secrets are masked."""
        return {key: MASK if is_secret(key) else text for key, text in self._texts.items()}

    async def set(self, key: str, text: str) -> None:
        """Store an override of the setting `key` with the value `text`, and apply it. If the setting has no effect in
        pybroker, or the value is invalid, the override is stored and logged, but not applied, and no error is raised.
        Raises AdminError 412 if the key is not dynamic, and StoreError.
        """
        self._require_dynamic(key, "update")
        async with self._writing:
            await self._store_texts(lambda texts: {**texts, key: text})
            logs.info("config.changed", key=key, value=MASK if is_secret(key) else text)
            self._put_in_force(key, text)

    async def unset(self, key: str) -> None:
        """Remove the override of the setting `key`, if there is one. Raises AdminError 412 if the key is not dynamic."""
        self._require_dynamic(key, "delete")
        async with self._writing:
            if key not in self._texts:
                return
            await self._store_texts(lambda texts: {other: text for other, text in texts.items() if other != key})
            self._take_back(key)
        logs.info("config.reset", key=key)

    def reload(self, config: BrokerConfig) -> list[str]:
        """Apply the dynamic settings of `config`, which was read again from file, environment and command line. Return
        the changed keys that are not dynamic and need a restart.

        Overrides stay in force. The new value of an overridden key takes effect when its override is removed.
        """
        for key, info in self._keys.items():
            value, before = getattr(config, info.field), self._value_from_start(info)
            if value == before:
                continue
            try:
                if key in self._checks:
                    self._checks[key](value)
            except ConfigError as error:
                logs.warning("config.override_ignored", key=key, reason=str(error), in_force=format_value(before))
                continue
            if key in self._from_start:
                self._from_start[key] = value
            else:
                self._tell(info, value)
            logs.info("config.changed", key=key, value=MASK if info.secret else format_value(value))
        return [
            info.key
            for info in KEYS.values()
            if info.key not in self._keys and getattr(config, info.field) != getattr(self._config, info.field)
        ]

    def _value_from_start(self, info: KeyInfo) -> Value:
        value: Value = self._from_start.get(info.key, getattr(self._config, info.field))
        return value

    def _require_dynamic(self, key: str, what: str) -> None:
        if not is_dynamic(key):
            raise AdminError(412, f"Can't {what} non-dynamic configuration")

    def _put_in_force(self, key: str, text: str) -> None:
        """Apply the override `text` of `key`, or log why it cannot be applied."""
        info = self._keys.get(key)
        if info is None:
            logs.warning(
                "config.override_ignored", key=key, reason="a change of this setting at run time has no effect"
            )
            return
        try:
            value = self._checked(info, text)
        except ConfigError as error:
            self._take_back(key)  # as it would be after a restart
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

    async def _store_texts(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Apply `change` to the stored overrides, which other brokers change too."""
        path, subject = metadata_paths.DYNAMIC_CONFIGURATION, "The dynamic configuration"
        texts = await rewrite(self._store, path, dict[str, str], change, subject, dict)
        assert texts is not None, "created if missing"
        self._texts = texts

"""JSON documents of the metadata store that other programs write too, such as Java brokers.

A document keeps all properties that this version does not know, at every depth. `rewrite` reads a document, changes
only the known properties, and stores it. Unknown names in an enumeration are read as absent, like Java brokers do, and
stay in the document as well.

An empty value counts as no document: ZooKeeper has such values at the parents of other nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from pybroker.errors import AdminError, BadVersionError, StoreError
from pybroker.metadata.metadata_store import NOT_EXISTING, MetadataStore
from pybroker.model import policies as documents
from pybroker.runtime import logs

UPDATE_ATTEMPTS = 5
"""For a document that other brokers change too."""

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors for documents that are damaged, of another kind, or nested too deeply."""

T = TypeVar("T")


async def read(store: MetadataStore, path: str, kind: type[T]) -> T | None:
    """Return the decoded document at `path`; None if there is no document. Raises StoreError if the document cannot be
    read.
    """
    found = await store.get(path)
    return None if found is None or not found.value else decoded(path, found.value, kind)


async def rewrite(
    store: MetadataStore,
    path: str,
    kind: type[T],
    change: Callable[[T], T],
    subject: str,
    new: Callable[[], T] | None = None,
) -> T | None:
    """Replace the document at `path` by the result of `change`, and return the result. If there is no document, pass
    `new()` to `change`; without `new`, store nothing and return None.

    `change` is called again if another broker has changed the document meanwhile. Raises AdminError 409, whose text
    names `subject`, after repeated concurrent changes; the errors of `change`; and StoreError if the document cannot be
    read.
    """
    for _ in range(UPDATE_ATTEMPTS):
        found = await store.get(path)
        stored = b"" if found is None else found.value
        if not stored and new is None:
            return None
        if stored:
            document = change(decoded(path, stored, kind))
            value = rewritten(stored, kind, document)
        else:
            assert new is not None
            document = change(new())
            value = documents.encode(document)
        try:
            await store.put(path, value, NOT_EXISTING if found is None else found.version)
        except BadVersionError:
            continue
        return document
    raise AdminError(409, f"{subject} is being changed by other requests, try again")


def decoded(path: str, value: bytes, kind: type[T]) -> T:
    """Decode a document as an object of type `kind`. Raises StoreError, whose text names `path`, if the document is
    invalid.
    """
    try:
        return _converted(msgspec.json.decode(value), kind)
    except UNREADABLE as error:
        raise StoreError(f"the metadata at {path} cannot be read: {error}") from error


def decoded_or_logged(store: MetadataStore, path: str, value: bytes, kind: type[T]) -> T | None:
    """Decode a document as an object of type `kind`. If the document cannot be read, log an error and return None in a
    shared store; raise StoreError in an embedded store.

    In a shared store, a document that another program damaged must not affect other documents. In an embedded store
    only a defect can damage a document. For an empty value, return None without logging.
    """
    if not value:
        return None
    try:
        return decoded(path, value, kind)
    except StoreError as error:
        if not store.is_shared:
            raise
        logs.error("metadata.document_unreadable", path=path, reason=str(error))
        return None


def rewritten(stored: bytes, kind: type[T], changed: T) -> bytes:
    """Return the JSON document `stored` with its known properties (of the type `kind`) set to the values in `changed`.
    All other properties stay. Raises msgspec.DecodeError.
    """
    raw = msgspec.json.decode(stored)
    before = documents.to_json(_converted(raw, kind))
    return msgspec.json.encode(_merged(raw, before, documents.to_json(changed)))


def _converted(raw: Any, kind: type[T]) -> T:
    """Return the known part of a parsed document. Raises msgspec.ValidationError."""
    try:
        return documents.converted(raw, kind)
    except msgspec.ValidationError:
        return documents.converted(_without_unknown_names(raw, inspect.type_info(kind)), kind)


def _without_unknown_names(raw: Any, kind: inspect.Type) -> Any:
    """Return `raw` without unknown enumeration values; `UNSET` if `raw` itself is one."""
    match kind:
        case inspect.EnumType(cls):
            try:
                cls(raw)
            except ValueError:
                return msgspec.UNSET
        case inspect.UnionType(types):
            for each in types:
                raw = _without_unknown_names(raw, each)
        case inspect.StructType(fields=fields) if isinstance(raw, dict):
            types_by_name = {field.encode_name: field.type for field in fields}
            parts = {
                key: _without_unknown_names(value, types_by_name[key]) if key in types_by_name else value
                for key, value in raw.items()
            }
            return {key: value for key, value in parts.items() if value is not msgspec.UNSET}
        case inspect.DictType(value_type=value_type) if isinstance(raw, dict):
            parts = {key: _without_unknown_names(value, value_type) for key, value in raw.items()}
            return {key: value for key, value in parts.items() if value is not msgspec.UNSET}
        case inspect.ListType(item_type=item_type) if isinstance(raw, list):
            items = [_without_unknown_names(value, item_type) for value in raw]
            return [value for value in items if value is not msgspec.UNSET]
    return raw


def _merged(raw: Any, before: Any, after: Any) -> Any:
    """Apply the difference between `before` and `after`, the known parts, to `raw`."""
    if not (isinstance(raw, dict) and isinstance(before, dict) and isinstance(after, dict)):
        return raw if before == after else after
    merged = {}
    for key, value in raw.items():
        if key in after:
            merged[key] = _merged(value, before.get(key), after[key])
        elif key not in before:
            merged[key] = value
    added = {key: value for key, value in after.items() if key not in raw and value != before.get(key)}
    return {**merged, **added}

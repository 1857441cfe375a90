"""Query parameters that the inspection routes of a subscription share: a key, a page, one message."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any

from pybroker.admin.calls.call import Call
from pybroker.admin.calls.existing import existing_subscription, require_persistent_subscription
from pybroker.admin.calls.partitions import require_not_partitioned
from pybroker.admin.calls.queries import Query
from pybroker.broker.explain.consumers import consumer_of, reference
from pybroker.broker.inspection.pages import DEFAULT_LIMIT, MAX_LIMIT, BadCursor, cursor_values
from pybroker.errors import AdminError

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.dispatch.consumer_state import ConsumerState
    from pybroker.dispatch.views import KeyOrderView

MAX_KEY_BYTES = 64 * 1024

KEY = (Query("key", "a key, as text"), Query("keyBase64", "a binary key, in Base64, instead of `key`"))
CONSUMER = Query("consumer", "name of a consumer")
LIMIT = Query("limit", f"maximum number of rows, up to {MAX_LIMIT}", int, DEFAULT_LIMIT)
PAGE = (LIMIT, Query("after", "`next` of the previous page"))


async def single_subscription(call: Call, what: str) -> Subscription:
    """Return the subscription in the path. The topic must be persistent and not partitioned. Checks that the role may
    consume. `what` names the operation in error texts.
    """
    await require_persistent_subscription(call, what)
    require_not_partitioned(call, call.topic_name())
    return await existing_subscription(call)


def key_order_of(subscription: Subscription, what: str) -> KeyOrderView:
    """Return the dispatcher's key state (draining and waiting hashes). Raises AdminError 412 if the subscription is not
    Key_Shared, or if no consumer has connected since its topic was loaded. `what` names the requested list in the error
    text.
    """
    if (key_order := subscription.key_order) is not None:
        return key_order
    if subscription.dispatcher is None:
        raise AdminError(
            412,
            (
                f"Subscription {subscription.name} has no {what}, because no consumer has connected since its topic was loaded. "
                "Connect a consumer first"
            ),
        )
    raise AdminError(
        412,
        (
            f"Subscription {subscription.name} has no {what}, because its type is {subscription.type_name}: only Key_Shared "
            "subscriptions have it"
        ),
    )


def key_of(call: Call) -> bytes | None:
    text, encoded = call.query("key"), call.query("keyBase64")
    if text is not None and encoded is not None:
        raise AdminError(412, "The query can contain only one of key and keyBase64")
    if text is not None:
        key = text.encode("utf-8", "surrogateescape")
    elif encoded is None:
        return None
    else:
        try:
            key = b64decode(encoded, validate=True)
        except ValueError as error:
            raise AdminError(412, f"The query parameter keyBase64 is not Base64: {error}") from error
    if len(key) > MAX_KEY_BYTES:
        raise AdminError(412, f"The key in the query is longer than {MAX_KEY_BYTES} bytes")
    return key


def required_key(call: Call) -> bytes:
    key = key_of(call)
    if key is None:
        raise AdminError(412, "The query needs a key: key= as text, or keyBase64=")
    return key


def page_limit(call: Call) -> int:
    """Return the requested page size (`limit`), reduced to MAX_LIMIT if larger. Raises AdminError 412 if it is below 1."""
    limit = call.query_integer("limit", DEFAULT_LIMIT)
    if limit < 1:
        raise AdminError(412, f"The query parameter limit is {limit}; it must be from 1 to {MAX_LIMIT}")
    return min(limit, MAX_LIMIT)


def after_of(call: Call, kind: str, start: tuple[int, ...]) -> list[int]:
    """Return the position in the list after which the page starts, decoded from the query parameter `after`; `start`
    for the first page. `kind` names the list. Raises AdminError 412 for an invalid value.
    """
    text = call.query("after")
    if not text:
        return list(start)
    try:
        return cursor_values(kind, text, len(start))
    except BadCursor as error:
        raise AdminError(412, f"The query parameter after is invalid. {error}") from error


def key_json(key: bytes | None, name: str = "key") -> dict[str, Any]:
    """Return a message key as JSON member: `{name: text}`, `{nameBase64: ...}` if it is not UTF-8, `{}` for None."""
    if key is None:
        return {}
    try:
        return {name: key.decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": b64encode(key).decode("ascii")}


def consumer_json(state: ConsumerState | None) -> dict[str, Any] | None:
    return None if state is None else reference(consumer_of(state))

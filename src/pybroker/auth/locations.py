"""Read key and password files from where the configuration says: a path, a `file:` or `data:` URL, or base64 text.

What must hold: error texts name the configuration key and never show the value, because the value may be the secret.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from pybroker.config.keys import ConfigError


def read_location(key: str, text: str) -> bytes:
    """The bytes that `text`, the value of the configuration key `key`, leads to. Raises ConfigError."""
    if text.startswith("data:"):
        return _data_url(key, text)
    if text.startswith("file:"):
        return _file(key, Path(unquote(urlsplit(text).path)))
    path = Path(text)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # Base64 text can be too long for a path.
        is_file = False
    if is_file:
        return _file(key, path)
    decoded = decoded_base64(text.encode())
    if decoded is None:
        raise ConfigError(f"{key} leads nowhere: expected a file that exists, a file: or data: URL, or base64 text")
    return decoded


def decoded_base64(data: bytes) -> bytes | None:
    """What base64 text, standard or URL-safe, padded or not, stands for; None when `data` is no such text."""
    compact = b"".join(data.split()).translate(bytes.maketrans(b"-_", b"+/")).rstrip(b"=")
    try:
        return base64.b64decode(compact + b"=" * (-len(compact) % 4), validate=True) if compact else None
    except binascii.Error:
        return None


def _data_url(key: str, text: str) -> bytes:
    media_type, comma, payload = text.removeprefix("data:").partition(",")
    raw = unquote_to_bytes(payload)
    content = decoded_base64(raw) if media_type.endswith(";base64") else raw
    if not comma or not content:
        raise ConfigError(f"{key} is no data: URL with content; expected data:;base64,...")
    return content


def _file(key: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read: {error.strerror}") from error

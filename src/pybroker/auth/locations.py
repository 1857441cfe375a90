"""Reader of keys and password files from a configured location: a path, a `file:` or `data:` URL, or Base64 text.

Error texts contain the configuration key, never a value that may be a secret.
"""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from pybroker.config.setting_types import ConfigError

MAX_PATH_CHARACTERS = 4096
SHORTEST_WORDS = 3.5
_RUN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_FILE_NAME = re.compile(r"[\w-]{1,64}(\.[A-Za-z]\w{0,9}){1,2}")


def read_location(key: str, text: str) -> bytes:
    """Return the content at the location `text`, the value of configuration key `key`. Raises ConfigError."""
    if text.startswith("data:"):
        return _data_url(key, text)
    if text.startswith("file:"):
        return _file(key, _path_of_url(key, text))
    path = Path(text)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # Base64 text can be too long for a path
        is_file = False
    if is_file:
        return _file(key, path)
    if looks_like_path(text):
        raise ConfigError(
            f"The configuration setting {key} cannot be read: the file {text} does not exist. Correct the path, or set "
            f"{key} to the content of the file in the form data:;base64,..."
        )
    decoded = decoded_base64(text.encode())
    if decoded is None:
        raise ConfigError(
            f"{key}: the value must be the path of an existing file, a file: URL, a data: URL, or base64 text"
        )
    return decoded


def decoded_base64(data: bytes) -> bytes | None:
    """Decode standard or URL-safe Base64, with or without padding. Return None if `data` is not Base64."""
    compact = b"".join(data.split()).translate(bytes.maketrans(b"-_", b"+/")).rstrip(b"=")
    try:
        return base64.b64decode(compact + b"=" * (-len(compact) % 4), validate=True) if compact else None
    except binascii.Error:
        return None


def looks_like_path(text: str) -> bool:
    """Return whether `text` looks like a path and not like random Base64. Such a text is not decoded as Base64:
    otherwise a mistyped path, which can be guessed, would become the secret.
    """
    if text.startswith(("./", "../", "~/")):
        return True
    if "/" not in text:
        return _FILE_NAME.fullmatch(text) is not None
    if not text.isprintable() or len(text) > MAX_PATH_CHARACTERS or text.endswith("="):
        return False
    directory, slash, _ = text.lstrip("/").partition("/")
    if slash and Path("/" if text.startswith("/") else "", directory).is_dir():
        return True
    return _reads_like_words(text)


def _reads_like_words(text: str) -> bool:
    """Return whether runs of letters and digits are as long as words."""
    runs = _RUN.findall(text)
    return len(runs) > 0 and sum(map(len, runs)) >= SHORTEST_WORDS * len(runs)


def _path_of_url(key: str, text: str) -> Path:
    url = urlsplit(text)
    if url.netloc not in {"", "localhost"}:
        # `file://keys/token.key` would name another file than its author expects.
        raise ConfigError(f"{key}: {text} contains a host name; expected a path with three slashes: file:///...")
    return Path(unquote(url.path))


def _data_url(key: str, text: str) -> bytes:
    media_type, comma, payload = text.removeprefix("data:").partition(",")
    raw = unquote_to_bytes(payload)
    content = decoded_base64(raw) if media_type.endswith(";base64") else raw
    if not comma or not content:
        raise ConfigError(f"{key}: the data: URL is malformed; expected data:;base64,...")
    return content


def _file(key: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read: {error.strerror}") from error

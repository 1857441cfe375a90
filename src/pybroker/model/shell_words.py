"""Command lines that are safe to paste into a shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterable


def shell_command(words: Iterable[str]) -> str:
    """Return a command line that is safe to paste into bash and zsh, whichever characters its words contain."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    data = word.encode("utf-8", "surrogateescape")
    escaped = "".join(chr(byte) if 32 <= byte < 127 and byte not in b"'\\" else f"\\x{byte:02x}" for byte in data)
    return f"$'{escaped}'"

"""Text formatting: tables, durations, sizes, and arbitrary bytes. Pure. Unprintable characters are escaped."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime

Cell = str | int | float | None
"""Booleans are shown as yes or no, None as a hyphen."""
GAP = "  "
NARROWEST = 8
"""Minimum width of a cut text column. If columns would be narrower, the table is shown as records."""
ELLIPSIS = "…"
NOTHING = "-"
_AGES = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]], width: int | None = None) -> list[str]:
    """Return the lines of a table with aligned columns.

    If lines exceed `width`, empty columns are removed, then the widest text columns are cut. If that is not enough,
    each cell gets a line with its title (see `records`).
    """
    titles = [printable(title) for title in head]
    texts = [titles, *([cell_text(cell) for cell in row] for row in rows)]
    widths = [max(map(columns_of, column)) for column in zip(*texts, strict=True)]
    numbers = [
        bool(rows)
        and all(_is_number(row[index]) or row[index] is None for row in rows)
        and any(row[index] is not None for row in rows)
        for index in range(len(head))
    ]
    if width is not None:
        available = width - len(GAP) * (len(widths) - 1)
        if sum(widths) > available:
            kept = [index for index in range(len(head)) if any(line[index] not in {"", NOTHING} for line in texts[1:])]
            if rows and 0 < len(kept) < len(head):
                return table([head[index] for index in kept], [[row[index] for index in kept] for row in rows], width)
        fitting = _fitting(widths, numbers, available)
        if fitting is None:
            return records(titles, texts[1:], width)
        widths = fitting
    return [
        GAP.join(_padded(text, w, is_number=n) for text, w, n in zip(line, widths, numbers, strict=True)).rstrip()
        for line in texts
    ]


def records(titles: Sequence[str], texts: Sequence[Sequence[str]], width: int) -> list[str]:
    lines: list[str] = []
    wide = max(map(columns_of, titles))
    for row in texts:
        lines += [""] if lines else []
        for title, text in zip(titles, row, strict=True):
            if text not in {"", NOTHING}:
                lines.append(cut(f"{_padded(title, wide, is_number=False)}{GAP}{text}", width).rstrip())
    return lines or [cut(GAP.join(titles), width)]


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def facts(pairs: Sequence[tuple[str, Cell]], indent: str = "") -> list[str]:
    shown = [(name, cell_text(cell)) for name, cell in pairs if cell is not None]
    wide = max((len(name) for name, _ in shown), default=0)
    return [f"{indent}{name.ljust(wide)}{GAP}{text}".rstrip() for name, text in shown]


def cell_text(cell: Cell) -> str:
    if cell is None:
        return NOTHING
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return rate(cell)
    return printable(cell)


def plain(value: object) -> str | None:
    """Format an id or hash without thousands separators; None for None."""
    return None if value is None else str(value)


def printable(text: str) -> str:
    """Escape unprintable characters, including line feeds, surrogates and direction marks."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape(each) for each in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def value_text(value: bytes | None) -> str:
    """Format a key or value as text, or in hexadecimal if it is not UTF-8; `(null)` for None."""
    if value is None:
        return "(null)"
    try:
        return printable(value.decode())
    except UnicodeDecodeError:
        return "0x" + value.hex()


def rate(value: float) -> str:
    """Format a number per second: without decimals from 100, with one from 1, with two below 1."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 1 else f"{value:.2f}"


def size(size_bytes: float | None) -> str | None:
    if size_bytes is None:
        return None
    value = float(size_bytes)
    for unit in _SIZES:
        if abs(value) < 1024 or unit == _SIZES[-1]:
            return f"{value:.0f} {unit}" if unit == "B" or abs(value) >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("no unit was found, although the last unit has no limit")


def age(age_ms: float | None) -> str | None:
    """Format a duration in milliseconds in its two largest units: `350ms`, `12.3s`, `4m 10s`, `3d 2h`; None for None."""
    if age_ms is None:
        return None
    if age_ms < 0:
        return "-" + (age(-age_ms) or "")
    if age_ms < 1000:
        return f"{age_ms:.0f}ms"
    if age_ms < 60_000:
        return f"{age_ms / 1000:.1f}s"
    left = int(age_ms // 1000)
    parts: list[str] = []
    for seconds, unit in _AGES:
        amount, left = divmod(left, seconds)
        if amount or parts:
            parts.append(f"{amount}{unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0"))


def ago(time_ms: int | None, now_ms: int) -> str | None:
    """Format a time relative to now: `3m 12s ago` or `in 3m 12s`. Return None if the time is None or 0."""
    if not time_ms:
        return None
    passed_ms = now_ms - time_ms
    return f"{age(passed_ms)} ago" if passed_ms >= 0 else f"in {age(-passed_ms)}"


def moment(time_ms: int | None) -> str | None:
    """Format milliseconds since 1970 as UTC time. Return None if the time is None or 0. A time outside the calendar is
    shown as a number.
    """
    if not time_ms:
        return None
    try:
        text = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
    return text.replace("+00:00", "Z")


def columns_of(text: str) -> int:
    """Return the width of a text on a terminal: wide characters have two columns, combining characters none."""
    if text.isascii():
        return len(text)
    return sum(_columns_of_one(each) for each in text)


def _columns_of_one(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, width: int) -> str:
    """Cut a text to `width` columns: a topic name in its middle, other texts at the end."""
    if columns_of(text) <= width:
        return text
    if "://" in text and " " not in text and width > 2:
        end = _first_columns(text[::-1], (width - 1) // 2)[::-1]
        return _first_columns(text, width - 1 - columns_of(end)) + ELLIPSIS + end
    return _first_columns(text, width - 1) + ELLIPSIS


def _first_columns(text: str, width: int) -> str:
    kept, taken = [], 0
    for each in text:
        taken += _columns_of_one(each)
        if taken > width:
            break
        kept.append(each)
    return "".join(kept)


def _padded(text: str, width: int, *, is_number: bool) -> str:
    text = cut(text, width)
    blanks = " " * (width - columns_of(text))
    return blanks + text if is_number else text + blanks


def _fitting(widths: Sequence[int], numbers: Sequence[bool], available: int) -> list[int] | None:
    fitting = [*widths]
    while sum(fitting) > available:
        texts = [each for each, is_number in zip(fitting, numbers, strict=True) if not is_number]
        widest = max(texts, default=0)
        if widest <= NARROWEST:
            return None
        most = [index for index, each in enumerate(fitting) if each == widest and not numbers[index]]
        next_widest = max((each for each in texts if each < widest), default=NARROWEST)
        down_to = max(NARROWEST, next_widest, widest - -(-(sum(fitting) - available) // len(most)))
        for index in most:
            fitting[index] = down_to
    return fitting

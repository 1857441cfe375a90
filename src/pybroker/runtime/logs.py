"""Structured logs: one line for each event on which an operator would act.

    logs.info("topic.loaded", topic="persistent://public/default/t", took_ms=3)
    2026-01-31T08:15:30.123Z INFO topic.loaded topic=persistent://public/default/t took_ms=3

A log call never raises, and one event is one line, plus the indented lines of a stack trace.
"""

import json
import logging
import math
import re
import sys
import time
from collections import deque
from typing import TextIO

_LOGGER = logging.getLogger("pybroker")
_AUDIT = logging.getLogger("pybroker.audit")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

# Characters of a value without quotes: printable ASCII except space, quote, equals sign and backslash.
_PLAIN = re.compile(r"[!#-<>-\[\]-~]+")

# Longer values are truncated: a client's property may have 5 MiB.
MAX_VALUE_CHARACTERS = 1000
MAX_RECENT_CHARACTERS = 1 << 20


class _LineFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        parts = [f"{seconds}.{int(record.msecs):03d}Z", record.levelname, record.getMessage()]
        fields: dict[str, object] = getattr(record, "fields", {})
        parts += [f"{key}={_format_value(value)}" for key, value in fields.items()]
        line = " ".join(parts).replace("\n", "\\n").replace("\r", "\\r")
        if record.exc_info and record.exc_info[0] is not None:
            line += "\n    " + self.formatException(record.exc_info).replace("\n", "\n    ")
        return line


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        document: dict[str, object] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "event": record.getMessage(),
        }
        fields: dict[str, object] = getattr(record, "fields", {})
        document |= {key: _json_value(value) for key, value in fields.items() if key not in document}
        if record.exc_info and record.exc_info[0] is not None:
            document["stack"] = self.formatException(record.exc_info)
        return json.dumps(document)


class _RecentLines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(_LineFormatter())
        self.lines: deque[str] = deque()
        self._characters = 0

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        self.lines.append(line)
        self._characters += len(line)
        while self._characters > MAX_RECENT_CHARACTERS and len(self.lines) > 1:
            self._characters -= len(self.lines.popleft())


_FORMATTERS = {"text": _LineFormatter, "json": _JsonFormatter}


def configure(level: str = "info", stream: TextIO | None = None, *, log_format: str = "text") -> None:
    """Write the events of `level` and above to `stream` (stderr by default), as `text` or as `json`.

    A program that embeds a broker uses its own `logging` configuration instead.
    """
    logging.raiseExceptions = False  # a closed stderr must not print a trace for each event
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(_FORMATTERS[log_format]())
    _LOGGER.handlers = [handler, _RecentLines()]
    _LOGGER.propagate = False
    set_level(level)


def recent_lines() -> list[str]:
    """Return the last lines of this process's log, at most `MAX_RECENT_CHARACTERS` in total, for diagnostics. The
    list is empty in a program that embeds a broker.
    """
    return [line for handler in _LOGGER.handlers if isinstance(handler, _RecentLines) for line in handler.lines]


def set_level(level: str) -> None:
    _LOGGER.setLevel(_LEVELS[level])


def is_debug() -> bool:
    return _LOGGER.isEnabledFor(logging.DEBUG)


def debug(event: str, /, **fields: object) -> None:
    _log(logging.DEBUG, event, None, fields)


def info(event: str, /, **fields: object) -> None:
    _log(logging.INFO, event, None, fields)


def warning(event: str, /, exc_info: bool | BaseException | None = None, **fields: object) -> None:
    _log(logging.WARNING, event, exc_info, fields)


def error(event: str, /, exc_info: bool | BaseException | None = None, **fields: object) -> None:
    """Log a failure. `exc_info` is the exception, or True inside an `except` block."""
    _log(logging.ERROR, event, exc_info, fields)


def audit(event: str, /, **fields: object) -> None:
    """Log a REST action, with the role that requested it in `fields`, to the logger `pybroker.audit`, whatever the
    level of other events.
    """
    _AUDIT.setLevel(logging.INFO)
    _AUDIT.info("%s", event, extra={"fields": fields})


def _log(level: int, event: str, exc_info: bool | BaseException | None, fields: dict[str, object]) -> None:
    if _LOGGER.isEnabledFor(level):
        # The record also has the raw fields, for programs with their own handler.
        _LOGGER.log(level, "%s", event, exc_info=exc_info, extra={"fields": fields})


def _json_value(value: object) -> object:
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return _text_of(value)


def _format_value(value: object) -> str:
    text = _text_of(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _text_of(value: object) -> str:
    try:
        text = value if isinstance(value, str) else str(value)
    except Exception as failure:  # noqa: BLE001  (a broken __str__ is no reason to lose the event)
        text = f"<{type(value).__name__}: {type(failure).__name__}>"
    if len(text) > MAX_VALUE_CHARACTERS:
        text = text[:MAX_VALUE_CHARACTERS] + "..."
    return text

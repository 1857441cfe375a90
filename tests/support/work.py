"""How much work a call is, as a number that is the same on every machine: how many lines of Python it runs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(call: Callable[[], object]) -> int:
    """Lines that `call` runs, in all functions. Work inside of C functions does not count.

    The garbage collector pauses meanwhile: the finalizers of earlier tests' objects would count.
    """
    lines = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    gc.collect()
    gc.disable()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        gc.enable()
    return lines

"""Makes a failing script small: what can be left out, while it still fails in the same way, is.

Delta debugging over the script's own data (`script.smaller`): first whole actors, then halves of what they do, then single steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.simulate.script import Script, smaller


def shrink(script: Script, fails: Callable[[Script], bool], most_s: float = 60) -> Script:
    """The smallest script found within `most_s` seconds for which `fails` still holds; `script` itself is known to."""
    ends_s = time.monotonic() + most_s
    while True:
        for candidate in smaller(script):
            if time.monotonic() > ends_s:
                return script
            if fails(candidate):
                script = candidate
                break
        else:
            return script

"""Build of the Python interpreter that runs the broker."""

from __future__ import annotations

import sysconfig

OPTIMISED = "optimised"
UNDECLARED = "undeclared"
_OPTION = "--enable-optimizations"


def python_build() -> str:
    """Return `optimised` if the interpreter was compiled with profile-guided optimisation.

    Otherwise return `undeclared`: the interpreter may be optimised nevertheless, as on Debian and Ubuntu, which
    optimise their packages without the configuration option that this function looks for.
    """
    return OPTIMISED if _OPTION in str(sysconfig.get_config_var("CONFIG_ARGS")) else UNDECLARED

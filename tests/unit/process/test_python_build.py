import sysconfig

import pytest

from pybroker.process.python_build import python_build


@pytest.mark.parametrize(
    ("arguments", "build"),
    [
        ("'--enable-shared' '--enable-optimizations' '--with-lto'", "optimised"),
        ("'--prefix=/usr' '--enable-shared'", "undeclared"),
        (None, "undeclared"),  # Windows
    ],
)
def test_build_is_optimised_if_the_interpreter_was_configured_for_it(
    monkeypatch: pytest.MonkeyPatch, arguments: str | None, build: str
) -> None:
    monkeypatch.setitem(sysconfig.get_config_vars(), "CONFIG_ARGS", arguments)
    assert python_build() == build

"""Keys that are documented as without effect have none."""

from tools.config_usage import read_unsupported_keys


def test_a_key_that_is_marked_unsupported_is_read_by_no_module() -> None:
    assert read_unsupported_keys() == [], "take `unsupported` off these keys in conf/broker.conf, then `make generate`"

"""The limit of descriptors is divided so that files always have some."""

import pytest

from pybroker.process.file_descriptors import Descriptors


@pytest.mark.parametrize(
    ("limit", "reserved", "clients", "http"),
    [(256, 128, 96, 32), (1024, 512, 384, 128), (4096, 512, 2688, 896), (1 << 20, 512, (1 << 20) - 512 - 2048, 2048)],
)
def test_files_get_their_reserve_and_http_a_quarter_at_most(limit: int, reserved: int, clients: int, http: int) -> None:
    found = Descriptors.share_out(limit, 512, 2048)
    assert found == (limit, reserved, clients, http)
    assert found.reserved + found.max_clients + found.max_http <= limit

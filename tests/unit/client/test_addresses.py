"""Service URLs."""

import pytest

from pybroker.client.addresses import Address, addresses
from pybroker.client.failures import ClientError


def test_a_service_url_names_one_or_several_brokers() -> None:
    assert addresses("pulsar://a:1") == [Address("a", 1, False)]
    assert addresses("pulsar+ssl://a,b:7/") == [Address("a", 6651, True), Address("b", 7, True)]
    assert addresses("pulsar://[::1]:6650") == [Address("::1", 6650, False)]
    assert str(Address("::1", 6650, False)) == "pulsar://[::1]:6650"
    assert Address("a", 1, True).host_and_port == "a:1"


@pytest.mark.parametrize(
    "url", ["", "a:1", "http://a:1", "pulsar://", "pulsar://a:x", "pulsar://a:1/x", "pulsar://u@a:1"]
)
def test_anything_else_is_refused(url: str) -> None:
    with pytest.raises(ClientError, match=r"use the form|not a host"):
        addresses(url)

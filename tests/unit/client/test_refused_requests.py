"""Responses with an error: no request counts as successful that the broker has refused."""

from __future__ import annotations

import pytest

from pybroker.client import client_connection
from pybroker.errors import ServiceNotReady
from pybroker.wire import pulsar_api_pb2 as pb

OTHERS = {"ERROR", "LOOKUP_RESPONSE", "PARTITIONED_METADATA_RESPONSE"}
"""Responses whose errors are recognized in another way."""
TYPES = {
    pb.BaseCommand.Type.Name(number): field
    for number, field in pb.BaseCommand.DESCRIPTOR.fields_by_number.items()
    if field.message_type is not None and {"request_id", "error"} <= set(field.message_type.fields_by_name)
}


@pytest.mark.parametrize("name", sorted(set(TYPES) - OTHERS))
def test_response_with_error_raises_it(name: str) -> None:
    answer = pb.BaseCommand(type=getattr(pb.BaseCommand, name))
    response = getattr(answer, TYPES[name].name)
    response.request_id = 1
    client_connection._raise_refusal(answer)
    response.error, response.message = pb.ServiceNotReady, "look it up again"
    with pytest.raises(ServiceNotReady):
        client_connection._raise_refusal(answer)

"""Responses of the broker to requests of the client, without a socket."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.client.access import Access
from pybroker.client.addresses import Address
from pybroker.client.client_connection import Connection
from pybroker.errors import ServiceNotReady
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.replies import frame

REFUSALS = [
    field.name
    for field in pb.BaseCommand.DESCRIPTOR.fields
    if field.message_type is not None
    and "request_id" in field.message_type.fields_by_name
    and {"error", "error_code"} & set(field.message_type.fields_by_name)
]


@pytest.mark.parametrize("name", REFUSALS)
async def test_every_response_with_an_error_raises_it(name: str) -> None:
    connection = Connection(Address("127.0.0.1", 6650, is_tls=False), Access("pulsar://127.0.0.1:6650"))
    asked = asyncio.create_task(connection.request(pb.BaseCommand(type=pb.BaseCommand.END_TXN)))
    await asyncio.sleep(0)
    number = pb.BaseCommand.DESCRIPTOR.fields_by_name[name].number
    command = pb.BaseCommand(type=pb.BaseCommand.Type.Name(number))
    response = getattr(command, name)
    response.request_id = 0
    code, text = ("error", "message") if hasattr(response, "error") else ("error_code", "error_message")
    setattr(response, code, pb.ServiceNotReady)
    setattr(response, text, "the topic is moving")
    if hasattr(response, "response"):
        response.response = type(response).Failed
    if name == "ackResponse":
        response.consumer_id = 0
    connection.data_received(frame(command))
    with pytest.raises(ServiceNotReady, match="the topic is moving"):
        await asked

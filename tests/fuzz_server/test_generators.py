"""What is drawn for a fuzz run: the same for a seed, of every kind, and never what would hurt all."""

from random import Random
from typing import Any

from tests.fuzz_server.frames import FIELDS, OF_CLIENTS, FrameMaker
from tests.fuzz_server.http_requests import HURTS_ALL, RequestMaker
from tests.unit.wire.support import connected_decoder

from pybroker.wire import pulsar_api_pb2 as pb

DOCUMENT: dict[str, Any] = {
    "paths": {
        "/admin/v2/tenants/{tenant}": {"get": {}, "put": {}},
        "/admin/v2/brokers/configuration/{name}/{value}": {"post": {}},
        "/admin/v2/brokers/shutdown": {"post": {}},
        "/admin/v2/clusters/{cluster}": {"delete": {}},
    }
}


def test_a_seed_draws_the_same_frames_again() -> None:
    def draw() -> list[tuple[str, str, bytes]]:
        maker = FrameMaker(Random("7"))
        return [*maker.introduction(), *(maker.next() for _ in range(300))]

    assert draw() == draw()


def test_every_command_and_every_kind_is_drawn() -> None:
    drawn = [FrameMaker(Random(seed)).next() for seed in range(8000)]
    assert {kind for kind, _, _ in drawn} >= {
        "plain",
        "odd values",
        "changed bytes",
        "garbage",
        "huge varints",
        "left out",
    }
    assert {name for _, name, _ in drawn} >= {pb.BaseCommand.Type.Name(number) for number in OF_CLIENTS}
    beyond = {name for _, name, _ in drawn} - {pb.BaseCommand.Type.Name(number) for number in OF_CLIENTS}
    assert len(beyond) > len(FIELDS) // 4


def test_what_a_connection_begins_with_is_well_formed() -> None:
    decoder = connected_decoder()
    for seed in range(50):
        for _, _, data in FrameMaker(Random(seed)).introduction():
            assert decoder.feed(data)


def test_requests_are_the_same_for_a_seed_and_spare_what_would_hurt_all() -> None:
    def draw() -> list[bytes]:
        maker = RequestMaker(Random(3), DOCUMENT)
        assert maker.operations() == [
            ("GET", "/admin/v2/tenants/{tenant}"),
            ("PUT", "/admin/v2/tenants/{tenant}"),
            ("DELETE", "/admin/v2/clusters/{cluster}"),
        ]
        return [maker.next().data for _ in range(2000)]

    drawn = draw()
    assert drawn == draw()
    assert any(data.startswith(b"DELETE /admin/v2/clusters/east") for data in drawn)
    assert not [data for data in drawn if HURTS_ALL.match(data.decode("latin-1"))]

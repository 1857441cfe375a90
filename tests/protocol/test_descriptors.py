"""A broker that may open few files: connections beyond are turned away with a reason, and everybody else is served."""

import contextlib
import socket
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.few_descriptors import LIMIT
from tests.support.raw_client import connected, encode, frame

from pybroker.process.file_descriptors import Descriptors
from pybroker.wire import core
from pybroker.wire import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/t"
SHARES = Descriptors.share_out(LIMIT, 512, 2048)


def test_a_flood_of_connections_takes_no_descriptor_from_files(tmp_path: Path) -> None:
    settings = {"checkpointMaxEntries": "50", "managedLedgerMaxEntriesPerLedger": "20"}
    broker = BrokerProcess(tmp_path, {**settings, "managedLedgerMinLedgerRolloverTimeMinutes": "0"})
    broker.module = "tests.support.few_descriptors"
    with broker.running(), connected(broker) as client, contextlib.ExitStack() as flood:
        client.open_producer(TOPIC)
        url = urlsplit(broker.url)
        for _ in range(SHARES.max_clients - 1):
            # Who has not said CONNECT would make way for those beyond.
            one = flood.enter_context(socket.create_connection((url.hostname or "", url.port or 0)))
            one.sendall(frame(encode(pb.BaseCommand.CONNECT, client_version="flood", protocol_version=21)))
            assert one.recv(1), "CONNECTED"
        for _ in range(LIMIT):
            with socket.create_connection((url.hostname or "", url.port or 0)) as beyond:
                beyond.settimeout(10)
                with contextlib.suppress(ConnectionResetError):
                    assert beyond.recv(1) == b"", "it is closed at once"
        with pytest.raises(urllib.error.HTTPError, match="503") as refused:
            urllib.request.urlopen(broker.http_url + "/admin/v2/brokers/ready")
        assert "fileDescriptorsReserve" in refused.value.read().decode()
        assert f'pybroker_connections_limit{{cluster="standalone"}} {SHARES.max_clients}' in broker.get("/metrics")
        assert len(client.publish(1, 200)) == 200, "the journal, checkpoints and new ledgers go on"
        flood.close()
        with connected(broker) as late:
            assert late.open_producer(TOPIC, 2)["type"] == "PRODUCER_SUCCESS"
    log = broker.log.read_text()
    assert "Traceback" not in log
    assert f"descriptors.limit limit={LIMIT}" in log, "the soft limit was raised"
    assert f"wire_core.selected implementation={core.IMPLEMENTATION} crc32c={core.CRC32C}" in log
    assert log.count("client.refused command=CONNECT cause=fileDescriptorsReserve") == 1
    assert "storage.full" not in log

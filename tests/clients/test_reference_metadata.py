"""Metadata of the reference broker and of pybroker are the same documents: each reads what the other wrote.

`tests/vectors/metadata_documents.json` has documents and answers of the reference broker (`tests/vectors/record_metadata.py`),
so most tests run without Java. `earlier_documents.json` has what the last version with metadata layout 2 stored for the same
calls. The live test repeats the recording, and starts a reference broker on documents of pybroker.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.clients.conftest import until
from tests.support.broker_process import BrokerProcess
from tests.support.earlier_metadata import write_layout_2
from tests.support.metadata_calls import CUT, DOCUMENT_ROOTS, FULL, ISOLATION, PLACED, PLAIN, QUOTA, V2, WRITES, Write
from tests.support.reference_on_zookeeper import reference_on_zookeeper, zookeeper_documents
from tests.support.rest import call
from tests.vectors.record_metadata import VECTORS, Answers, answer, answers, recorded, write_all

from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore

SETTINGS = {"acknowledgmentAtBatchIndexLevelEnabled": "true"}
OWN_CLUSTER = "/admin/clusters/standalone"
UNKNOWN = {"futureProperty": {"nested": [1, 2]}}


@pytest.fixture(scope="module")
def vectors() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(VECTORS.read_text())
    found["answers"] = {path: tuple(answer) for path, answer in found["answers"].items()}
    return found


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path, SETTINGS)
    yield process
    process.stop()


def put_documents(data: Path, documents: dict[str, str]) -> None:
    async def put_all() -> None:
        store = await SqliteMetadataStore.open(data / "metadata.db", mark=data / "metadata.end")
        for path, text in documents.items():
            await store.put(path, text.encode())
        await store.close()

    data.mkdir(parents=True)
    asyncio.run(put_all())


def documents_of(data: Path) -> dict[str, str]:
    """Return the shared documents of a stopped broker."""

    async def get_all() -> dict[str, str]:
        store = await SqliteMetadataStore.open(data / "metadata.db", mark=data / "metadata.end")
        found = {
            path: value.value.decode()
            for root in DOCUMENT_ROOTS
            for path, value in await store.values_below(root, "", 1000)
        }
        await store.close()
        return found

    return asyncio.run(get_all())


def canonical(value: Any) -> Any:
    """Return `value` with sorted lists of texts: Pulsar stores and shows sets in no order."""
    if isinstance(value, dict):
        return {key: canonical(each) for key, each in sorted(value.items())}
    if isinstance(value, list):
        return sorted(value) if all(isinstance(each, str) for each in value) else [canonical(each) for each in value]
    return value


def compare(found: Answers, expected: Answers) -> None:
    assert found.keys() == expected.keys()
    different = {
        path: (found[path], expected[path])
        for path in expected
        if canonical(list(found[path])) != canonical(list(expected[path]))
    }
    assert not different, json.dumps(different, indent=2)


def await_equal_answers(first: str, second: str, path: str) -> None:
    until(lambda: canonical(list(answer(first, path))) == canonical(list(answer(second, path))))
    assert answer(first, path)[0] == 200, path


def await_absence(http_url: str, path: str) -> None:
    until(lambda: call(http_url + path).status == 404)


def test_documents_of_the_reference_are_answered_as_the_reference_does(
    broker: BrokerProcess, vectors: dict[str, Any]
) -> None:
    put_documents(broker.data, vectors["documents"])
    broker.start()
    assert call(f"{broker.http_url}{V2}/persistent/{FULL}/orders", "PUT").status == 204
    compare(answers(broker.http_url), vectors["answers"])


def test_documents_of_the_earlier_layout_are_answered_as_the_reference_does(
    broker: BrokerProcess, vectors: dict[str, Any]
) -> None:
    earlier: dict[str, str] = json.loads(VECTORS.with_name("earlier_documents.json").read_text())["documents"]
    broker.data.mkdir(parents=True)
    write_layout_2(broker.data / "metadata.db", {path: text.encode() for path, text in earlier.items()})
    broker.start()
    assert "metadata.converted" in broker.log.read_text()
    assert call(f"{broker.http_url}{V2}/persistent/{FULL}/orders", "PUT").status == 204
    compare(answers(broker.http_url), vectors["answers"])


def test_calls_write_the_documents_of_the_reference(broker: BrokerProcess, vectors: dict[str, Any]) -> None:
    broker.start()
    write_all(broker.http_url)
    compare(answers(broker.http_url), vectors["answers"])
    broker.stop()
    found, expected = documents_of(broker.data), dict(vectors["documents"])
    # Local policies of a namespace whose bundles never changed are written by the first lookup in Pulsar.
    copied = "/admin/local-policies/documents/plain"
    assert copied not in found
    policies = json.loads(found["/admin/policies/documents/plain"])
    assert json.loads(expected.pop(copied)) == {"bundles": policies["bundles"], "migrated": False}
    del found[OWN_CLUSTER], expected[OWN_CLUSTER]  # its addresses
    assert found.keys() == expected.keys()
    different = {
        path: (found[path], expected[path])
        for path in expected
        if canonical(json.loads(found[path])) != canonical(json.loads(expected[path]))
    }
    assert not different, json.dumps(different, indent=2)


def test_rewritten_documents_keep_what_pybroker_does_not_know(broker: BrokerProcess, vectors: dict[str, Any]) -> None:
    documents = {path: json.loads(text) for path, text in vectors["documents"].items()}
    texts = {
        path: json.dumps({**document, **UNKNOWN}) for path, document in documents.items() if "onfiguration" not in path
    }
    for path in texts:
        if path.endswith("namespaceIsolationPolicies"):
            texts[path] = json.dumps({name: {**each, **UNKNOWN} for name, each in documents[path].items()})
    put_documents(broker.data, texts)
    broker.start()
    for write in WRITES:
        # What exists is refused when it is created again, but changed by the other calls.
        assert call(broker.http_url + write.path, write.method, body=write.body).status in (200, 204, 409, 412), write
    changed = call(
        f"{broker.http_url}{V2}/tenants/documents", "POST", body=json.loads(texts["/admin/policies/documents"])
    )
    assert changed.status == 204
    broker.stop()
    found = documents_of(broker.data)
    for path, text in texts.items():
        assert found[path].count("futureProperty") == text.count("futureProperty") > 0, path


@pytest.mark.java
@pytest.mark.long
def test_reference_broker_and_pybroker_read_each_others_documents(
    broker: BrokerProcess, vectors: dict[str, Any], tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
    with reference_on_zookeeper(first) as reference:
        write_all(reference.http_url)
        live = recorded(reference)
    assert live["documents"].keys() == vectors["documents"].keys()
    for path, text in live["documents"].items():
        assert canonical(json.loads(text)) == canonical(json.loads(vectors["documents"][path])), path
    compare(live["answers"], vectors["answers"])
    broker.start()
    write_all(broker.http_url)
    broker.stop()
    written = documents_of(broker.data)
    del written[OWN_CLUSTER]  # The reference broker enters its own addresses.
    with reference_on_zookeeper(second, written) as reference:
        assert call(f"{reference.http_url}{V2}/persistent/{FULL}/orders", "PUT").status == 204
        compare(answers(reference.http_url), vectors["answers"])
        after = zookeeper_documents(reference.zookeeper, DOCUMENT_ROOTS)
    for path, text in written.items():
        assert canonical(json.loads(after[path])) == canonical(json.loads(text)), path


@pytest.mark.java
@pytest.mark.long
def test_reference_broker_and_pybroker_share_one_zookeeper(tmp_path: Path) -> None:
    """Each enforces and answers what the other changes, at once."""
    namespaces = f"{V2}/namespaces"
    with reference_on_zookeeper(tmp_path) as reference:
        write_all(reference.http_url)
        settings = {**SETTINGS, "metadataStoreUrl": f"zk:{reference.zookeeper}", "ledgerStore": "local"}
        broker = BrokerProcess(tmp_path, settings)
        with broker.running():
            urls = (broker.http_url, reference.http_url)
            assert call(f"{broker.http_url}{V2}/persistent/{FULL}/orders", "PUT").status == 204
            compare(answers(broker.http_url), answers(reference.http_url))
            for number, (own, other) in enumerate((urls, urls[::-1])):
                bundle = f"0x{number << 29:08x}_0x{(number + 1) << 29:08x}"
                changes = [
                    Write("POST", f"{namespaces}/{PLAIN}/messageTTL", 90 + number),
                    Write("POST", f"{namespaces}/{PLAIN}/antiAffinity", f"group{number}".encode()),
                    Write("PUT", f"{namespaces}/{PLACED}/{bundle}/split"),
                    Write(
                        "PUT", f"{V2}/tenants/tenant{number}", {"adminRoles": ["r"], "allowedClusters": ["standalone"]}
                    ),
                    Write("PUT", f"{namespaces}/tenant{number}/ns", {"bundles": {"numBundles": 3}}),
                    Write("PUT", f"{V2}/persistent/tenant{number}/ns/a%20b/partitions", 2),
                    Write("PUT", f"{V2}/resourcegroups/group{number}", {"publishRateInMsgs": 5}),
                    Write("POST", f"{V2}/clusters/other/failureDomains/domain{number}", {"brokers": [f"b{number}"]}),
                    Write("POST", f"{V2}/clusters/standalone/namespaceIsolationPolicies/p{number}", ISOLATION),
                    Write("POST", f"{V2}/resource-quotas", {**QUOTA, "memory": 20.0 + number}),
                    Write("POST", f"{V2}/brokers/configuration/maxTenants/{100 + number}"),
                    Write("POST", f"{namespaces}/{PLAIN}/migration", number == 0),
                ]
                for change in changes:
                    assert call(own + change.path, change.method, body=change.body).status in (200, 204), change
                paths = [
                    *(f"{namespaces}/{name}" for name in (PLAIN, PLACED, f"tenant{number}/ns")),
                    f"{namespaces}/{PLAIN}/antiAffinity",
                    f"{V2}/persistent/tenant{number}/ns/partitioned",
                    f"{V2}/resourcegroups/group{number}",
                    f"{V2}/clusters/other/failureDomains",
                    f"{V2}/clusters/standalone/namespaceIsolationPolicies",
                    f"{V2}/resource-quotas",
                    f"{V2}/brokers/configuration/values",
                    f"{V2}/tenants/tenant{number}",
                ]
                for path in paths:
                    await_equal_answers(own, other, path)
                for path in (f"{namespaces}/{CUT}", f"{V2}/tenants/bare")[number : number + 1]:
                    assert call(own + path, "DELETE").status == 204
                    await_absence(other, path)
            # A Java broker can still use the schema of a topic of which pybroker has one.
            schema = {"type": "STRING", "schema": "", "properties": {}}
            for url in urls:
                assert call(f"{url}{V2}/schemas/{PLAIN}/same/schema", "POST", body=schema).status == 200

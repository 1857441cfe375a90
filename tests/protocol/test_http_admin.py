"""Clusters, tenants, namespaces, brokers and lookups over real HTTP: statuses, bodies and what they change."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.admin.fake_broker import Served, Unwell, served

from pybroker import __version__
from pybroker.model.names import NamespaceName

ADMIN = "/admin/v2"


async def test_clusters_are_created_once_changed_and_deleted(http: Served) -> None:
    data = {"serviceUrl": "http://east:8080", "brokerServiceUrl": "pulsar://east:6650"}
    assert (await http.call("GET", f"{ADMIN}/clusters")).json == ["standalone"]
    created = await http.call("PUT", f"{ADMIN}/clusters/east", data)
    assert (created.status, created.body) == (200, b"")
    assert (await http.call("PUT", f"{ADMIN}/clusters/east", data)).status == 409
    shown = await http.call("GET", f"{ADMIN}/clusters/east")
    assert shown.json == {
        **data,
        "brokerClientTlsEnabled": False,
        "tlsAllowInsecureConnection": False,
        "brokerClientTlsEnabledWithKeyStore": False,
    }
    assert (await http.call("POST", f"{ADMIN}/clusters/east", {"serviceUrl": "http://other:80"})).status == 200
    assert (await http.call("GET", f"{ADMIN}/clusters/east")).json["serviceUrl"] == "http://other:80"
    deleted = await http.call("DELETE", f"{ADMIN}/clusters/east")
    assert (deleted.status, "content-type" in deleted.headers) == (204, False)
    assert (await http.call("DELETE", f"{ADMIN}/clusters/east")).status == 404


@pytest.mark.parametrize(
    ("method", "name", "data", "status"),
    [
        ("GET", "nowhere", None, 404),
        ("POST", "nowhere", {}, 404),
        ("PUT", "no%20name", {}, 412),
        ("PUT", "east", {"serviceUrl": "ftp://east"}, 400),
        ("PUT", "east", {"serviceUrl": "east"}, 400),
        ("PUT", "east", {"brokerServiceUrl": "http://east:6650"}, 400),
        ("DELETE", "standalone", None, 412),
    ],
)
async def test_a_cluster_call_is_refused_with_pulsars_status(
    http: Served, method: str, name: str, data: object, status: int
) -> None:
    answer = await http.call(method, f"{ADMIN}/clusters/{name}", data)
    assert answer.status == status
    assert answer.reason


async def test_tenants_are_created_changed_and_deleted(http: Served) -> None:
    info = {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
    assert (await http.call("PUT", f"{ADMIN}/tenants/acme", info)).status == 204
    assert (await http.call("GET", f"{ADMIN}/tenants")).json == ["acme", "public", "pulsar"]
    assert (await http.call("GET", f"{ADMIN}/tenants/acme")).json == info
    changed = {"adminRoles": ["b", "a", "b"], "allowedClusters": ["standalone"]}
    assert (await http.call("POST", f"{ADMIN}/tenants/acme/", changed)).status == 204
    assert (await http.call("GET", f"{ADMIN}/tenants/acme/")).json == {**changed, "adminRoles": ["a", "b"]}
    assert (await http.call("DELETE", f"{ADMIN}/tenants/acme")).status == 204
    assert (await http.call("GET", f"{ADMIN}/tenants/acme")).status == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "tenants/public", {"allowedClusters": ["standalone"]}, 409),
        ("PUT", "tenants/a%20b", {"allowedClusters": ["standalone"]}, 412),
        ("PUT", "tenants/acme", {"allowedClusters": []}, 412),
        ("PUT", "tenants/acme", {"allowedClusters": ["nowhere"]}, 412),
        ("PUT", "tenants/acme", {"adminRoles": [" boss"], "allowedClusters": ["standalone"]}, 412),
        ("PUT", "tenants/acme", None, 412),
        ("POST", "tenants/acme", {"allowedClusters": ["standalone"]}, 404),
        ("DELETE", "tenants/public", None, 409),
        ("DELETE", "tenants/public?force=true", None, 405),
        ("DELETE", "tenants/acme", None, 404),
        ("GET", "namespaces/acme", None, 404),
        ("PUT", "namespaces/acme/ns", None, 404),
        ("PUT", "namespaces/public/default", None, 409),
        ("PUT", "namespaces/public/a%20b", None, 412),
        ("PUT", "namespaces/public/ns", {"replication_clusters": ["nowhere"]}, 403),
        ("GET", "namespaces/public/ns", None, 404),
        ("DELETE", "namespaces/public/ns", None, 404),
        ("DELETE", "namespaces/public/default?force=true", None, 405),
        ("GET", "namespaces/public/ns/topics", None, 404),
        ("GET", "namespaces/public/ns/bundles", None, 404),
        ("GET", "namespaces/public/ns/permissions", None, 404),
        ("POST", "namespaces/public/ns/permissions/role", ["produce"], 404),
    ],
)
async def test_a_tenant_or_namespace_call_is_refused_with_pulsars_status(
    http: Served, method: str, path: str, body: object, status: int
) -> None:
    answer = await http.call(method, f"{ADMIN}/{path}", body)
    assert answer.status == status
    assert answer.reason


async def test_a_namespace_takes_the_policies_of_its_body(http: Served) -> None:
    body = {"bundles": {"numBundles": 8}, "message_ttl_in_seconds": 60}
    assert (await http.call("PUT", f"{ADMIN}/namespaces/public/ns", body)).status == 204
    assert (await http.call("GET", f"{ADMIN}/namespaces/public")).json == ["public/default", "public/ns"]
    policies = (await http.call("GET", f"{ADMIN}/namespaces/public/ns")).json
    assert policies["message_ttl_in_seconds"] == 60
    assert policies["replication_clusters"] == ["standalone"]
    bundles = (await http.call("GET", f"{ADMIN}/namespaces/public/ns/bundles")).json
    assert bundles == policies["bundles"]
    assert (bundles["numBundles"], bundles["boundaries"][-1]) == (8, "0xffffffff")


async def test_a_namespace_without_body_gets_the_defaults(http: Served) -> None:
    for name, body in (("a", None), ("b", b"null")):
        assert (await http.call("PUT", f"{ADMIN}/namespaces/public/{name}", body)).status == 204
        assert (await http.call("GET", f"{ADMIN}/namespaces/public/{name}/bundles")).json["numBundles"] == 4


async def test_topics_are_listed_by_mode(http: Served) -> None:
    http.broker.add_topic("persistent://public/default/p")
    http.broker.add_topic("non-persistent://public/default/n")
    lists = {mode: f"{ADMIN}/namespaces/public/default/topics?mode={mode}" for mode in ("PERSISTENT", "ALL")}
    assert (await http.call("GET", lists["PERSISTENT"])).json == ["persistent://public/default/p"]
    assert len((await http.call("GET", lists["ALL"])).json) == 2
    by_domain = await http.call("GET", f"{ADMIN}/non-persistent/public/default")
    assert by_domain.json == ["non-persistent://public/default/n"]
    assert (await http.call("GET", f"{ADMIN}/namespaces/public/default/topics?mode=SOME")).status == 400


async def test_a_namespace_with_topics_is_deleted_only_by_force_where_that_is_allowed() -> None:
    async with served(force_delete_namespace_allowed=True) as http:
        http.broker.add_topic("t")
        assert (await http.call("DELETE", f"{ADMIN}/namespaces/public/default")).status == 409
        assert (await http.call("DELETE", f"{ADMIN}/namespaces/public/default?force=true")).status == 204
        assert http.broker.resources.namespace(NamespaceName("public", "default")) is None


async def test_a_forced_deletion_of_a_tenant_takes_its_namespaces_along() -> None:
    async with served(force_delete_tenant_allowed=True, force_delete_namespace_allowed=True) as http:
        assert (await http.call("DELETE", f"{ADMIN}/tenants/public?force=true")).status == 204
        assert (await http.call("GET", f"{ADMIN}/tenants")).json == ["pulsar"]


async def test_permissions_are_granted_replaced_and_revoked(http: Served) -> None:
    base = f"{ADMIN}/namespaces/public/default/permissions"
    assert (await http.call("POST", f"{base}/role", ["consume", "produce"])).status == 204
    assert (await http.call("GET", base)).json == {"role": ["produce", "consume"]}
    assert (await http.call("POST", f"{base}/role", ["consume"])).status == 204
    assert (await http.call("GET", base)).json == {"role": ["consume"]}
    assert (await http.call("DELETE", f"{base}/role")).status == 204
    assert (await http.call("DELETE", f"{base}/role")).status == 204
    assert (await http.call("GET", base)).json == {}


async def test_a_subscription_is_reserved_for_roles_one_by_one(http: Served) -> None:
    base = f"{ADMIN}/namespaces/public/default/permissions"
    assert (await http.call("POST", f"{base}/subscription/s%2F1", ["b", "a"])).status == 204
    assert (await http.call("GET", f"{base}/subscription")).json == {"s/1": ["a", "b"]}
    assert (await http.call("DELETE", f"{base}/s%2F1/a")).status == 204
    assert (await http.call("GET", f"{base}/subscription")).json == {"s/1": ["b"]}


async def test_an_action_that_does_not_exist_is_a_bad_body(http: Served) -> None:
    answer = await http.call("POST", f"{ADMIN}/namespaces/public/default/permissions/role", ["fly"])
    assert (answer.status, answer.headers["content-type"]) == (400, "text/plain; charset=utf-8")


async def test_brokers_tell_who_and_how_they_are(http: Served) -> None:
    brokers = f"{ADMIN}/brokers"
    assert (await http.call("GET", brokers)).json == ["127.0.0.1:8080"]
    assert (await http.call("GET", f"{brokers}/standalone")).json == ["127.0.0.1:8080"]
    leader = (await http.call("GET", f"{brokers}/leaderBroker")).json
    assert leader == {"serviceUrl": "http://127.0.0.1:8080", "brokerId": "127.0.0.1:8080"}
    for path, text in (("health", b"ok"), ("ready", b"ok"), ("version", __version__.encode())):
        answer = await http.call("GET", f"{brokers}/{path}")
        assert (answer.status, answer.body) == (200, text)
    assert (await http.call("GET", f"{brokers}/configuration/runtime")).json["webServicePort"] == "0"
    assert isinstance((await http.call("GET", f"{brokers}/configuration")).json, list)
    assert (await http.call("GET", f"{brokers}/configuration/values")).json == {}


async def test_a_broker_that_is_not_well_says_so(http: Served) -> None:
    http.broker.sickness = Unwell("the disk is full")
    http.broker.presence.ready = False
    health = await http.call("GET", f"{ADMIN}/brokers/health")
    assert (health.status, health.reason) == (503, "the disk is full")
    assert (await http.call("GET", f"{ADMIN}/brokers/ready")).status == 503


async def test_a_lookup_answers_the_advertised_addresses(http: Served) -> None:
    answer = await http.call("GET", "/lookup/v2/topic/persistent/public/default/never-seen")
    assert answer.json == {
        "brokerUrl": "pulsar://127.0.0.1:6650",
        "httpUrl": "http://127.0.0.1:8080",
        "nativeUrl": "pulsar://127.0.0.1:6650",
        "brokerUrlSsl": "",
    }
    assert (await http.call("GET", "/lookup/v2/topic/persistent/public/nowhere/t")).status == 404
    bundle = await http.call("GET", "/lookup/v2/topic/persistent/public/default/t/bundle")
    assert bundle.body == b"0x80000000_0xc0000000"
    nowhere = await http.call("GET", "/lookup/v2/topic/persistent/public/nowhere/t/bundle")
    assert nowhere.body == b"0x00000000_0xffffffff"


async def test_a_lookup_takes_the_listener_from_query_or_header() -> None:
    listeners = (
        "inside:pulsar://in:1",
        "outside:pulsar://out:2",
        "outside:pulsar+ssl://out:3",
        "outside:https://out:4",
    )
    async with served(advertised_listeners=listeners) as http:
        path = "/lookup/v2/topic/persistent/public/default/t"
        assert (await http.call("GET", path)).json["brokerUrl"] == "pulsar://in:1"
        for answer in (
            await http.call("GET", f"{path}?listenerName=outside"),
            await http.call("GET", path, headers={"X-Pulsar-ListenerName": "outside"}),
        ):
            assert answer.json["brokerUrl"] == "pulsar://out:2"
            assert answer.json["brokerUrlTls"] == "pulsar+ssl://out:3"
            assert answer.json["httpUrlTls"] == "https://out:4"
        unknown = await http.call("GET", f"{path}?listenerName=nobody")
        assert (unknown.status, "inside, outside" in unknown.reason) == (503, True)


async def test_odd_characters_of_a_topics_name_arrive_encoded_and_a_slash_is_none(http: Served) -> None:
    path = f"{ADMIN}/persistent/public/default/a%20b%25/partitions"
    answer = await http.call("GET", f"{path}?checkAllowAutoCreation=true")
    assert answer.json == {"partitions": 0, "deleted": False}
    assert http.broker.created == ["persistent://public/default/a b%"]
    assert (await http.call("GET", path)).status == 404
    assert (await http.call("GET", f"{ADMIN}/persistent/public/default/a%2Fb/partitions")).status == 412
    assert (await http.call("GET", f"{ADMIN}/persistent/public/default/a/b/partitions")).status == 404
    assert (await http.call("GET", f"{ADMIN}/passing/public/default/t/partitions")).status == 404
    assert (await http.call("GET", f"{ADMIN}/persistent/public/default/%00/partitions")).status == 412
    assert (await http.call("GET", f"{ADMIN}/persistent/public/default/%ff/partitions")).status == 400


async def test_the_status_page_follows_its_file(tmp_path: Path) -> None:
    path = tmp_path / "in-service"
    async with served(status_file_path=str(path)) as http:
        assert (await http.call("GET", "/status.html")).status == 404
        path.touch()
        assert (await http.call("GET", "/status.html")).body == b"OK"
        http.broker.presence.is_closing = True
        assert (await http.call("GET", "/status.html")).status == 404
        assert (await http.call("GET", "/ready")).status == 503
        assert (await http.call("GET", "/live")).body == b"ok"

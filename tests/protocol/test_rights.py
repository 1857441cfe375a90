"""What roles may do by the binary protocol, and what those who may not are told: tokens, permissions, one broker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.differential import scenarios_missing_namespaces as missing_namespaces
from tests.support import credentials
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import RawClient, Type, opened
from tests.support.secured import Secured

from pybroker.wire import pulsar_api_pb2 as pb

V2 = "/admin/v2"
NAMESPACE = "acme/ns"
ROLES: dict[str, list[str]] = {"writer": ["produce"], "both": ["produce", "consume"], "reader": ["consume"]}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("rights")
    secret_file = directory / "token.key"
    secret_file.write_bytes(credentials.secret_key())
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": "token",
        "tokenSecretKey": secret_file.as_uri(),
        "authorizationEnabled": "true",
        "superUserRoles": "admin",
    }
    with BrokerProcess(directory, settings).running_well() as process:
        found = Secured(process, credentials.CertificateAuthority(directory), secret_file.read_bytes())
        for tenant, boss in (("acme", "boss"), ("other", "otherboss")):
            document = {"adminRoles": [boss], "allowedClusters": ["standalone"]}
            assert admin(found, "PUT", f"/tenants/{tenant}", document) == 204
            assert admin(found, "PUT", f"/namespaces/{tenant}/ns") == 204
        for role, actions in ROLES.items():
            assert admin(found, "POST", f"/namespaces/{NAMESPACE}/permissions/{role}", actions) == 204
        assert admin(found, "POST", "/namespaces/other/ns/permissions/elsewhere", ["produce", "consume"]) == 204
        yield found


def admin(secured: Secured, method: str, path: str, body: object = None) -> int:
    """The status of a call by the superuser."""
    return secured.rest(method, V2 + path, "admin", body=body).status


@contextmanager
def client_of(secured: Secured, role: str) -> Iterator[RawClient]:
    with opened(secured.process) as client:
        found = client.connect(auth_method_name="token", auth_data=secured.token(role).encode())
        assert found["type"] == "CONNECTED"
        yield client


def subscriptions(secured: Secured, topic: str) -> Any:
    return secured.rest("GET", f"{V2}/persistent/{topic}/subscriptions", "admin").json


# --- subscriptions that a producer asks for ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "subscription", "is_made"),
    [("writer", "s", False), ("both", "s", True), ("both", "reserved", False), ("boss", "reserved", True)],
)
def test_a_producer_makes_its_initial_subscription_only_with_the_right_to_consume_by_it(
    secured: Secured, role: str, subscription: str, is_made: bool
) -> None:
    topic = f"{NAMESPACE}/initial-{role}-{subscription}"
    path = f"/namespaces/{NAMESPACE}/permissions/subscription/reserved"
    assert admin(secured, "POST", path, ["somebody-else"]) == 204
    assert admin(secured, "PUT", f"/persistent/{topic}") == 204
    with client_of(secured, role) as client:
        name = f"persistent://{topic}"
        found = client.request(Type.PRODUCER, topic=name, producer_id=1, initial_subscription_name=subscription)
        assert (found["type"] == "PRODUCER_SUCCESS") is is_made
        if not is_made:
            assert found["error"] == "AuthorizationError"
            assert found["message"] == "Client is not authorized to Produce"
            # The refused one is forgotten: without the subscription it may come under the same id.
            assert client.request(Type.PRODUCER, topic=name, producer_id=1)["type"] == "PRODUCER_SUCCESS"
    assert subscriptions(secured, topic) == ([subscription] if is_made else [])


# --- expiry in all subscriptions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [0, 2])
def test_who_may_not_use_one_subscription_expires_messages_in_none(secured: Secured, partitions: int) -> None:
    topic = f"{NAMESPACE}/expired-{partitions}"
    if partitions:
        assert admin(secured, "PUT", f"/persistent/{topic}/partitions", partitions) == 204
    else:
        assert admin(secured, "PUT", f"/persistent/{topic}") == 204
    single = f"{topic}-partition-1" if partitions else topic
    assert admin(secured, "PUT", f"/persistent/{topic}/subscription/a-own", {"ledgerId": -1, "entryId": -1}) == 204
    assert admin(secured, "PUT", f"/persistent/{single}/subscription/b-held", {"ledgerId": -1, "entryId": -1}) == 204
    held = f"/namespaces/{NAMESPACE}/permissions/subscription/b-held"
    assert admin(secured, "POST", held, ["somebody-else"]) == 204
    with client_of(secured, "writer") as client:
        for index in range(max(1, partitions)):
            name = f"persistent://{topic}-partition-{index}" if partitions else f"persistent://{topic}"
            client.open_producer(name, index)
            client.send_message(index, 0, metadata={"publish_time": 1})
            assert client.reply()["type"] == "SEND_RECEIPT"
    path = f"{V2}/persistent/{topic}/all_subscription/expireMessages/1"
    refused = secured.rest("POST", path, "reader")
    assert (refused.status, "b-held" in refused.text) == (401, True)
    assert backlogs(secured, topic, partitions) == {"a-own": max(1, partitions), "b-held": 1}
    assert secured.rest("POST", path, "boss").status == 204
    assert backlogs(secured, topic, partitions) == {"a-own": 0, "b-held": 0}


def backlogs(secured: Secured, topic: str, partitions: int) -> dict[str, int]:
    """What each subscription has not read, by the topic's stats, which know it at once."""
    kind = "partitioned-stats" if partitions else "stats"
    found = secured.rest("GET", f"{V2}/persistent/{topic}/{kind}?getPreciseBacklog=true", "admin").json["subscriptions"]
    return {name: stats["msgBacklog"] for name, stats in found.items()}


# --- watchers of topic lists -------------------------------------------------------------------------------------------


def test_a_watcher_whose_role_loses_its_right_is_told_nothing_more(secured: Secured) -> None:
    watched, others = f"/namespaces/{NAMESPACE}/permissions/watcher", f"/namespaces/{NAMESPACE}/permissions/other"
    pattern = {"namespace": NAMESPACE, "topics_pattern": f"persistent://{NAMESPACE}/seen-.*"}
    for path in (watched, others):
        assert admin(secured, "POST", path, ["consume"]) == 204
    with client_of(secured, "watcher") as loses, client_of(secured, "other") as stays:
        for client in (loses, stays):
            assert client.request(Type.WATCH_TOPIC_LIST, watcher_id=1, **pattern)["type"] == "WATCH_TOPIC_LIST_SUCCESS"
        assert admin(secured, "PUT", f"/persistent/{NAMESPACE}/seen-before") == 204
        assert [client.reply()["type"] for client in (loses, stays)] == ["WATCH_TOPIC_UPDATE"] * 2
        assert admin(secured, "DELETE", watched) == 204
        assert admin(secured, "PUT", f"/persistent/{NAMESPACE}/seen-after") == 204
        assert stays.reply()["new_topics"] == [f"persistent://{NAMESPACE}/seen-after"]
        # The connection goes on; what comes next on it is the answer to the next question, and no news of topics.
        refused = loses.request(Type.WATCH_TOPIC_LIST, watcher_id=1, **pattern)
        assert (refused["type"], refused["error"]) == ("ERROR", "AuthorizationError")
        assert refused["message"] == "Proxy Client is not authorized to watchTopicList"
        assert admin(secured, "POST", watched, ["consume"]) == 204
        assert loses.request(Type.WATCH_TOPIC_LIST, watcher_id=1, **pattern)["type"] == "WATCH_TOPIC_LIST_SUCCESS"


# --- REST calls on namespaces ------------------------------------------------------------------------------------------

SUPERUSERS_ONLY = re.compile(
    r"/(unload|split|migration|bookieAffinity)$|^(POST|DELETE) .*/delayedDelivery$|/resource-quotas/"
)


OF_THE_TENANT = re.compile(r"/propert|^DELETE /namespaces/{}$")
"""Refused with 401 instead of 403 where the tenant exists, as in Pulsar."""


@pytest.mark.parametrize("role", ["stranger", "elsewhere", "boss"])
def test_missing_tenant_is_not_found_before_a_right_is_refused(secured: Secured, role: str) -> None:
    found, expected = {}, {}
    for method, path, body in missing_namespaces.calls():
        call = f"{method} {path}"
        if call == "POST /namespaces/{}/resourcegroup/none":
            continue  # The group is missing as well.
        answers = [
            secured.rest(method, V2 + path.format(namespace), role, body=None if body is ... else body).status
            for namespace in ("nobody/ns", "acme/none")
        ]
        found[call] = answers
        if SUPERUSERS_ONLY.search(call):
            expected[call] = [401, 401]
        elif role == "boss":
            expected[call] = [404, 404]
        else:
            expected[call] = [404, 401 if OF_THE_TENANT.search(call) else 403]
    assert found == expected


# --- transactions ------------------------------------------------------------------------------------------------------


def test_every_role_reads_status_and_participants_of_a_transaction(secured: Secured) -> None:
    with client_of(secured, "writer") as client:
        client.request(Type.TC_CLIENT_CONNECT_REQUEST, tc_id=0)
        opened_one = client.request(Type.NEW_TXN, tc_id=0, txn_ttl_seconds=60_000)
        least = int(opened_one["txnid_least_bits"])
        added = client.request(
            Type.ADD_PARTITION_TO_TXN,
            txnid_most_bits=0,
            txnid_least_bits=least,
            partitions=[f"{NAMESPACE}/in-transaction"],
        )
        assert "error" not in added
        path = f"/admin/v3/transactions/transactionMetadata/0/{least}"
        answers = {role: secured.rest("GET", path, role) for role in ("stranger", "writer", "admin")}
        assert {role: answer.status for role, answer in answers.items()} == dict.fromkeys(answers, 200)
        for answer in answers.values():
            assert answer.json["status"] == "OPEN"
            assert answer.json["owner"] == "writer"
            assert list(answer.json["producedPartitions"]) == [f"{NAMESPACE}/in-transaction"]
        assert ["pybroker" in answer.json for answer in answers.values()] == [False, True, True]
        assert secured.rest("GET", "/admin/v3/transactions/transactionMetadata/0/99999", "stranger").status == 404
        assert secured.rest("POST", f"/admin/v3/transactions/abortTransaction/0/{least}", "stranger").status == 401


# --- what is missing, and what is refused ------------------------------------------------------------------------------

REFUSED = f"persistent://{NAMESPACE}/refused"
MISSING = {"tenant": "nobody/ns/t", "namespace": "acme/none/t", "topic": "acme/ns/none"}
NO_RIGHTS, ELSEWHERE, SUPERUSER = "stranger", "elsewhere", "admin"
METADATA: dict[tuple[str, str], str | None] = {
    (NO_RIGHTS, "tenant"): "TopicNotFound",
    (NO_RIGHTS, "namespace"): "AuthorizationError",
    (NO_RIGHTS, "topic"): "AuthorizationError",
    (ELSEWHERE, "tenant"): "TopicNotFound",
    (ELSEWHERE, "namespace"): "AuthorizationError",
    (ELSEWHERE, "topic"): "AuthorizationError",
    (SUPERUSER, "tenant"): "TopicNotFound",
    (SUPERUSER, "namespace"): "TopicNotFound",
    (SUPERUSER, "topic"): None,
}
LOOKUP = {cell: "AuthorizationError" if cell[0] != SUPERUSER else error for cell, error in METADATA.items()}


@pytest.mark.parametrize(("role", "missing"), METADATA)
def test_look_ups_of_what_is_missing(secured: Secured, role: str, missing: str) -> None:
    topic = f"persistent://{MISSING[missing]}"
    with client_of(secured, role) as client:
        metadata = client.request(Type.PARTITIONED_METADATA, topic=topic)
        assert metadata.get("error") == METADATA[role, missing]
        lookup = client.request(Type.LOOKUP, topic=topic)
        assert lookup.get("error") == LOOKUP[role, missing]
        if metadata.get("error") == "AuthorizationError":
            assert metadata["message"] == "Client is not authorized to Get Partition Metadata"
        if lookup.get("error") == "AuthorizationError":
            assert lookup["message"] == "Client is not authorized to Lookup"


@pytest.mark.parametrize(
    ("command", "fields", "text"),
    [
        (Type.PRODUCER, {"topic": REFUSED, "producer_id": 1}, "Client is not authorized to Produce"),
        (
            Type.SUBSCRIBE,
            {"topic": REFUSED, "consumer_id": 1, "subscription": "s", "subType": 1},
            "Client is not authorized to subscribe",
        ),
        (Type.GET_TOPICS_OF_NAMESPACE, {"namespace": NAMESPACE}, "Client is not authorized to GetTopicsOfNamespace"),
    ],
)
def test_refused_right_has_exactly_the_text_of_pulsar(
    secured: Secured, command: pb.BaseCommand.Type, fields: dict[str, object], text: str
) -> None:
    with client_of(secured, "stranger") as client:
        found = client.request(command, **fields)
        assert (found["error"], found["message"]) == ("AuthorizationError", text)
    assert "may not" in secured.process.log.read_text(), "the log says which right is missing"

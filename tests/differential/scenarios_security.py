"""Tokens and roles: who is let in, and what each role may do; on brokers that ask for both."""

from functools import partial
from typing import Any

import jwt
import pulsar
from tests.differential.harness import ADMIN_ROLE, Run, secured_scenario
from tests.support.raw_client import RawClient, Type

from pybroker.wire import pulsar_api_pb2 as pb

V2 = "/admin/v2"


def connect_as(run: Run, raw: RawClient, role: str) -> dict[str, Any]:
    return raw.connect(auth_method_name="token", auth_data=run.token_of(role).encode())


def with_namespace(run: Run, policies: Any = ...) -> str:
    """A tenant with an administrator of its own, a namespace in it, and what two roles may do there; its name."""
    tenant, admin = run.tenant(), run.token_of(ADMIN_ROLE)
    document = {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
    namespace = f"{tenant}/ns"
    calls: list[tuple[str, str, Any]] = [
        ("PUT", f"{V2}/tenants/{tenant}", document),
        ("PUT", f"{V2}/namespaces/{namespace}", policies),
        ("POST", f"{V2}/namespaces/{namespace}/permissions/writer", ["produce"]),
        ("POST", f"{V2}/namespaces/{namespace}/permissions/reader", ["consume"]),
    ]
    statuses = [run.http(*call, content_type="application/json", token=admin)[0] for call in calls]
    run.step("set up", statuses)
    return namespace


@secured_scenario
def security_connect(run: Run) -> None:
    """CONNECT with good, bad and missing credentials."""
    good = run.token_of("writer")
    header, payload, signature = good.split(".")
    secret = run.secret
    attempts: dict[str, dict[str, Any]] = {
        "good": {"auth_method_name": "token", "auth_data": good.encode()},
        "none at all": {},
        "no method": {"auth_data": good.encode()},
        "an empty method": {"auth_method_name": "", "auth_data": good.encode()},
        "method none": {"auth_method_name": "none"},
        "unknown method": {"auth_method_name": "nothing", "auth_data": good.encode()},
        "no token": {"auth_method_name": "token"},
        "an empty token": {"auth_method_name": "token", "auth_data": b""},
        "no token at all": {"auth_method_name": "token", "auth_data": b"nonsense"},
        "signature of another": {"auth_method_name": "token", "auth_data": f"{header}.{payload}.AAAA{signature[4:]}"},
        "another key": {"auth_method_name": "token", "auth_data": jwt.encode({"sub": "writer"}, b"x" * 32, "HS256")},
        "expired": {"auth_method_name": "token", "auth_data": jwt.encode({"sub": "writer", "exp": 1}, secret, "HS256")},
        "no subject": {"auth_method_name": "token", "auth_data": jwt.encode({"x": "writer"}, secret, "HS256")},
        "unsigned": {"auth_method_name": "token", "auth_data": jwt.encode({"sub": "writer"}, "", "none")},
    }
    for name, fields in attempts.items():
        data = fields.get("auth_data")
        if isinstance(data, str):
            fields["auth_data"] = data.encode()
        with run.raw(connected=False) as raw:
            reply = raw.connect(**fields)
            run.step(name, [reply["type"], reply.get("error"), reply.get("request_id"), *raw.replies()])


@secured_scenario
def security_commands(run: Run) -> None:
    """What each role may do by the binary protocol."""
    namespace = with_namespace(run)
    topic = f"persistent://{namespace}/t"
    for role in (ADMIN_ROLE, "boss", "writer", "reader", "stranger"):
        with run.raw(connected=False) as raw:
            connect_as(run, raw, role)
            subscribing = {"topic": topic, "subType": pb.CommandSubscribe.Shared}
            commands: list[tuple[str, dict[str, Any]]] = [
                ("PARTITIONED_METADATA", {"topic": topic}),
                ("LOOKUP", {"topic": topic}),
                ("PRODUCER", {"topic": topic, "producer_id": 1}),
                ("SUBSCRIBE", {"subscription": "sub", "consumer_id": 1, **subscribing}),
                ("GET_TOPICS_OF_NAMESPACE", {"namespace": namespace}),
                ("WATCH_TOPIC_LIST", {"namespace": namespace, "watcher_id": 1, "topics_pattern": ".*"}),
                ("UNSUBSCRIBE", {"consumer_id": 77}),
                ("SEEK", {"consumer_id": 77}),
                ("SEEK", {"consumer_id": 77, "message_publish_time": 1}),
            ]
            for name, fields in commands:
                reply = raw.request(getattr(Type, name), **fields)
                found = [reply["type"], reply.get("response"), reply.get("error"), reply.get("message")]
                run.step(f"{role}, {name}", found)
            run.step(f"{role}, PING", raw_ping(raw))


@secured_scenario
def security_missing(run: Run) -> None:
    """Look-ups of tenants, namespaces and topics that do not exist, by who has no rights, rights elsewhere, and all rights."""
    namespace = with_namespace(run)
    elsewhere = f"{run.tenant('other')}/ns"
    calls: list[tuple[str, str, Any]] = [
        ("PUT", f"{V2}/tenants/{run.tenant('other')}", {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}),
        ("PUT", f"{V2}/namespaces/{elsewhere}", ...),
        ("POST", f"{V2}/namespaces/{elsewhere}/permissions/guest", ["produce", "consume"]),
    ]
    admin = run.token_of(ADMIN_ROLE)
    run.step("set up elsewhere", [run.http(*call, "application/json", admin)[0] for call in calls])
    missing = {
        "tenant": f"{run.tenant('none')}/ns/t",
        "namespace": f"{run.tenant()}/none/t",
        "topic": f"{namespace}/none",
    }
    for role in ("stranger", "guest", ADMIN_ROLE):
        for what, name in missing.items():
            with run.raw(connected=False) as raw:
                connect_as(run, raw, role)
                for command in ("PARTITIONED_METADATA", "LOOKUP"):
                    reply = raw.request(getattr(Type, command), topic=f"persistent://{name}")
                    found = [reply["type"], reply.get("response"), reply.get("error"), reply.get("partitions")]
                    if command == "PARTITIONED_METADATA" and reply.get("error") == "AuthorizationError":
                        found.append(reply["message"])
                    run.step(f"{role}, missing {what}, {command}", found)


def raw_ping(raw: RawClient) -> list[dict[str, Any]]:
    """Whether the connection lives after what was refused."""
    raw.send(Type.PING)
    return raw.replies()


@secured_scenario
def security_prefix(run: Run) -> None:
    """Subscriptions that must begin with the role's name."""
    namespace = with_namespace(run, {"subscription_auth_mode": "Prefix"})
    topic = f"persistent://{namespace}/t"
    for role, names in (("reader", ("reader-1", "reader", "sub")), ("boss", ("sub",))):
        with run.raw(connected=False) as raw:
            connect_as(run, raw, role)
            for consumer_id, name in enumerate(names):
                reply = raw.subscribe(topic, consumer_id, subscription=name)
                run.step(f"{role} as {name}", [reply["type"], reply.get("error")])


@secured_scenario
def security_rest(run: Run) -> None:
    """What each role may do by REST, and what is answered without rights."""
    namespace = with_namespace(run)
    tenant = run.tenant()
    calls: list[tuple[str, str, Any]] = [
        ("GET", f"{V2}/clusters", ...),
        ("GET", f"{V2}/clusters/standalone", ...),
        ("PUT", f"{V2}/clusters/{run.token}", {"serviceUrl": "http://localhost:8080"}),
        ("DELETE", f"{V2}/clusters/{run.token}", ...),
        ("GET", f"{V2}/tenants", ...),
        ("GET", f"{V2}/tenants/{tenant}", ...),
        ("POST", f"{V2}/tenants/{tenant}", {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}),
        ("DELETE", f"{V2}/tenants/{tenant}", ...),
        ("PUT", f"{V2}/tenants/{tenant}-new", {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}),
        ("DELETE", f"{V2}/tenants/{tenant}-new", ...),
        ("GET", f"{V2}/namespaces/{tenant}", ...),
        ("GET", f"{V2}/namespaces/{namespace}", ...),
        ("GET", f"{V2}/namespaces/{namespace}/permissions", ...),
        ("POST", f"{V2}/namespaces/{namespace}/permissions/reader", ["consume"]),
        ("GET", f"{V2}/namespaces/{namespace}/bundles", ...),
        ("GET", f"{V2}/namespaces/{namespace}/topics", ...),
        ("GET", f"{V2}/persistent/{namespace}", ...),
        ("GET", f"{V2}/persistent/{namespace}/t/partitions?checkAllowAutoCreation=true", ...),
        ("GET", f"/lookup/v2/topic/persistent/{namespace}/t", ...),
        ("GET", f"/lookup/v2/topic/persistent/{namespace}/t/bundle", ...),
        ("GET", f"{V2}/brokers/standalone", ...),
        ("GET", f"{V2}/brokers/health", ...),
        ("PUT", f"{V2}/namespaces/{tenant}/other", ...),
        ("DELETE", f"{V2}/namespaces/{tenant}/other", ...),
        ("GET", "/metrics/", ...),
    ]
    tokens = {role: run.token_of(role) for role in (ADMIN_ROLE, "boss", "writer", "stranger")}
    tokens |= {"a bad token": "nonsense"}
    for role, token in tokens.items():
        for method, path, body in calls:
            status, headers, _ = run.http(method, path, body, "application/json", token)
            shown = path.replace(run.token, "<run>")
            run.step(f"{role}, {method} {shown}", [status, (headers.get("Content-Type") or "").split(";")[0]])


@secured_scenario
def security_client(run: Run) -> None:
    """The official client with its token."""
    namespace = with_namespace(run)
    topic = f"persistent://{namespace}/t"
    for role in ("writer", "reader", "stranger", "boss"):
        client = run.client(authentication=pulsar.AuthenticationToken(run.token_of(role)))
        run.attempt(f"{role} consumes", partial(client.subscribe, topic, "sub", pulsar.ConsumerType.Shared))
        producer = run.attempt(f"{role} produces", partial(client.create_producer, topic))
        if producer is not None:
            run.attempt(f"{role} sends", partial(producer.send, role.encode()))
    client = run.client(authentication=pulsar.AuthenticationToken("nonsense"))
    run.attempt("a bad token", partial(client.create_producer, topic))

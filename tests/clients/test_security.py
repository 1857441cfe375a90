"""TLS, three ways in, and permissions, all on at once: who gets in by which port, who may do what, and how the others are told."""

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from tests.clients.conftest import new_client
from tests.support import credentials
from tests.support.broker_process import BrokerProcess
from tests.support.credentials import CertificateAuthority
from tests.support.raw_client import CLOSED, DeadClient, RawClient, Type, all_frames, encode, frame, to_dict
from tests.support.rest import Answer, call, client_tls
from tests.support.secured import HTTP, HTTPS, PACKAGE, PLAIN, PORTS, PROVIDERS, TLS, Secured, tls_settings

from pybroker.wire import pulsar_api_pb2 as pb

NO_REQUEST = str(2**64 - 1)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    authority = CertificateAuthority(directory)
    secret_file = directory / "token.key"
    secret_file.write_bytes(credentials.secret_key())
    passwords = credentials.htpasswd(directory, alice="password of alice", bob="password of bob")
    settings = {
        **tls_settings(authority),
        "authenticationEnabled": "true",
        "authenticationProviders": PROVIDERS,
        "authenticationRefreshCheckSeconds": "1",
        "tokenSecretKey": secret_file.as_uri(),
        "basicAuthConf": str(passwords),
        "anonymousUserRole": "anonymous",
        "authorizationEnabled": "true",
        "superUserRoles": "admin,root",
    }
    process = BrokerProcess(directory, settings)
    with process.running():
        found = Secured(process, authority, secret_file.read_bytes())
        tenant = {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
        assert found.rest("PUT", "/admin/v2/tenants/acme", "admin", body=tenant).status == 204
        for name, permissions in {
            "acme/private": {"alice": ["produce", "consume"]},
            "acme/oneway": {"writer": ["produce"], "reader": ["consume"]},
            "public/default": {"anonymous": ["produce", "consume"]},
        }.items():
            path = f"/admin/v2/namespaces/{name}"
            if name.startswith("acme"):
                assert found.rest("PUT", path, "boss").status == 204
            for role, actions in permissions.items():
                assert found.rest("POST", f"{path}/permissions/{role}", "admin", body=actions).status == 204
        yield found
    log = process.log.read_text()
    assert "Traceback" not in log
    assert "password of" not in log


@pytest.fixture
def private(request: pytest.FixtureRequest) -> str:
    """A topic of the namespace that is granted to alice alone."""
    return topic_in("acme/private", request)


@pytest.fixture
def oneway(request: pytest.FixtureRequest) -> str:
    """A topic of the namespace that one role may write to and another may read."""
    return topic_in("acme/oneway", request)


def topic_in(namespace: str, request: pytest.FixtureRequest) -> str:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return f"persistent://{namespace}/{name}"


def assert_round_trip(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"here")
    assert consumer.receive(30_000).data() == b"here"


# --- right credentials -------------------------------------------------------------------------------------------------

WAYS_IN = [
    (port, method)
    for port in PORTS
    for method in ("tls", "token", "basic")
    if method != "tls" or port in (TLS, HTTPS)  # a certificate is shown in the TLS handshake only
]


@pytest.mark.parametrize(("port", "method"), WAYS_IN)
def test_the_official_client_gets_in_by_every_port_and_method(
    secured: Secured, private: str, port: str, method: str
) -> None:
    with secured.client(secured.authentication(method, "alice"), port) as client:
        assert_round_trip(client, private)


@pytest.mark.parametrize("port", [HTTP, HTTPS])
@pytest.mark.parametrize("header", ["Bearer {token}", "bearer {token}", "Basic {password}"])
def test_rest_takes_tokens_and_passwords_on_both_ports(secured: Secured, port: str, header: str) -> None:
    password = credentials.data_url(b"alice:password of alice").partition(",")[2]
    sent = header.format(token=secured.token("alice"), password=password)
    url = secured.url(port) + "/lookup/v2/topic/persistent/acme/private/t"
    found = call(url, headers={"Authorization": sent}, tls=secured.tls())
    assert (found.status, found.json["brokerUrl"]) == (200, secured.url(PLAIN))
    assert found.json["brokerUrlTls"] == secured.url(TLS)


def test_rest_takes_a_client_certificate_and_its_common_name_is_the_role(secured: Secured) -> None:
    tenants = secured.url(HTTPS) + "/admin/v2/tenants"
    assert call(tenants, tls=secured.tls("root")).json == ["acme", "public", "pulsar"]
    assert call(tenants, tls=secured.tls("alice")).status == 401
    header = {"Authorization": f"Bearer {secured.token('alice')}"}
    assert call(tenants, headers=header, tls=secured.tls("root")).status == 401, (
        "the header counts before the certificate"
    )


@pytest.mark.parametrize("size", [100, 20_000, 1_000_000])
def test_messages_of_every_size_go_by_tls_in_both_directions(secured: Secured, private: str, size: int) -> None:
    bodies = [bytes([index]) * size for index in range(40)]
    with secured.client(secured.authentication("tls", "alice"), TLS) as client:
        consumer = client.subscribe(private, "s")
        producer = client.create_producer(private, batching_enabled=False)
        for body in bodies:
            producer.send_async(body, lambda result, message_id: None)
        producer.flush()
        assert [consumer.receive(30_000).data() for _ in bodies] == bodies


# --- wrong credentials -------------------------------------------------------------------------------------------------


def expired(secured: Secured) -> bytes:
    return secured.token("alice", exp=time.time() - 10).encode()


def not_yet(secured: Secured) -> bytes:
    return secured.token("alice", nbf=time.time() + 1000).encode()


def foreign(secured: Secured) -> bytes:
    return credentials.token(credentials.secret_key(), sub="alice").encode()


def unsigned(secured: Secured) -> bytes:
    return b"eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSJ9."


def signed_by_rsa(secured: Secured) -> bytes:
    return credentials.token(credentials.rsa_key(), "RS256", sub="alice").encode()


def nothing(secured: Secured) -> bytes:
    return b""


TOKENS = [expired, not_yet, foreign, unsigned, signed_by_rsa, nothing]
PASSWORDS = [b"alice:wrong", b"nobody:password of alice", b"alice:", b"alice", b"", b"\xff:\xff"]


def assert_refused(secured: Secured, **fields: Any) -> str:
    """CONNECT is answered as documented, and the connection ends; gives the text."""
    client = RawClient(secured.url(PLAIN))
    reply = client.connect(**fields)
    end = client.reply()
    client.close()
    assert (reply["type"], reply["error"], reply["request_id"]) == ("ERROR", "AuthenticationError", NO_REQUEST)
    assert end == CLOSED
    return str(reply["message"])


@pytest.mark.parametrize("made", TOKENS, ids=lambda made: made.__name__)
def test_a_bad_token_is_refused_on_both_protocols(secured: Secured, made: Callable[[Secured], bytes]) -> None:
    token = made(secured)
    text = assert_refused(secured, auth_method_name="token", auth_data=token)
    assert not token or token.decode() not in text
    header = {"Authorization": f"Bearer {token.decode()}"}
    for port in (HTTP, HTTPS):
        answer = call(secured.url(port) + "/admin/v2/brokers/health", headers=header, tls=secured.tls())
        assert (answer.status, answer.json["reason"]) == (401, text)


@pytest.mark.parametrize("sent", PASSWORDS, ids=repr)
def test_a_bad_password_is_refused_on_both_protocols(secured: Secured, sent: bytes) -> None:
    text = assert_refused(secured, auth_method_name="basic", auth_data=sent)
    header = {"Authorization": "Basic " + credentials.data_url(sent).partition(",")[2]}
    answer = call(secured.url(HTTP) + "/admin/v2/brokers/health", headers=header)
    assert answer.status == 401
    assert answer.json["reason"] == text or not sent


def test_without_a_certificate_the_method_tls_is_refused(secured: Secured) -> None:
    assert "the client sent no certificate" in assert_refused(secured, auth_method_name="tls")


# The official client does not show the broker's reason. Refused by the binary protocol, it connects again until its
# operation times out; refused by HTTP, with whatever status, it reports that it cannot connect.
# Without HTTP in between a client asks again until then; with it the refusal is told, however long it takes to come.
PATIENCE_S = {PLAIN: 1, TLS: 1, HTTP: 20, HTTPS: 20}
REFUSED = {PLAIN: pulsar.Timeout, TLS: pulsar.Timeout, HTTP: pulsar.ConnectError, HTTPS: pulsar.ConnectError}


def wrong_authentication(secured: Secured, method: str) -> pulsar.Authentication:
    if method == "token":
        return pulsar.AuthenticationToken(foreign(secured).decode())
    if method == "basic":
        return pulsar.AuthenticationBasic("alice", "wrong")
    files = secured.certificate(None)  # without a common name, which would be the role
    return pulsar.AuthenticationTLS(str(files.certificate), str(files.key))


@pytest.mark.parametrize(
    ("port", "method"), [(PLAIN, "token"), (TLS, "tls"), (HTTP, "token"), (HTTPS, "basic"), (HTTPS, "tls")]
)
def test_the_official_client_does_not_get_in_with_wrong_credentials(
    secured: Secured, private: str, port: str, method: str
) -> None:
    with (
        secured.client(wrong_authentication(secured, method), port, timeout_s=PATIENCE_S[port]) as client,
        pytest.raises(REFUSED[port]),
    ):
        client.create_producer(private)


def connect_by_tls(secured: Secured, context: ssl.SSLContext, **fields: Any) -> list[dict[str, Any]]:
    """All that the broker answers to a CONNECT on its TLS port until it closes the connection."""
    address = ("127.0.0.1", int(secured.process.ready["broker_port_tls"]))
    with (
        socket.create_connection(address, timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall(frame(encode(Type.CONNECT, client_version="raw", protocol_version=21, **fields)))
        received = b""
        while data := connection.recv(65536):
            received += data
    return [to_dict(command, rest) for command, rest in all_frames().feed(received)]


@pytest.mark.parametrize("kind", ["token", "no common name", "no certificate"])
def test_wrong_credentials_get_the_same_answer_by_tls(secured: Secured, kind: str) -> None:
    context = client_tls(secured.authority.certificate_path, secured.certificate(None) if "name" in kind else None)
    fields: dict[str, Any] = {"auth_method_name": "tls"}
    if kind == "token":
        fields = {"auth_method_name": "token", "auth_data": foreign(secured)}
    (reply,) = connect_by_tls(secured, context, **fields)
    assert (reply["type"], reply["error"], reply["request_id"]) == ("ERROR", "AuthenticationError", NO_REQUEST)
    if kind != "token":
        assert kind in reply["message"].replace("the client sent no certificate", "no certificate")


def test_a_certificate_without_a_common_name_is_refused_by_rest(secured: Secured) -> None:
    context = client_tls(secured.authority.certificate_path, secured.certificate(None))
    answer = call(secured.url(HTTPS) + "/admin/v2/brokers/health", tls=context)
    assert answer.status == 401
    assert "no common name" in answer.json["reason"]


def test_a_certificate_of_another_authority_does_not_get_through_the_handshake(
    secured: Secured, private: str, tmp_path: Path
) -> None:
    files = CertificateAuthority(tmp_path, "other-ca").client("admin")
    with pytest.raises(OSError):  # noqa: PT011  (an alert or a reset, as it comes)
        call(
            secured.url(HTTPS) + "/admin/v2/tenants",
            tls=client_tls(secured.authority.certificate_path, files),
        )
    authentication = pulsar.AuthenticationTLS(str(files.certificate), str(files.key))
    with secured.client(authentication, TLS, timeout_s=1) as client, pytest.raises(pulsar.PulsarException):
        client.create_producer(private)


def test_a_tls_port_says_nothing_to_who_does_not_speak_tls(secured: Secured) -> None:
    client = RawClient(secured.url(TLS).replace("pulsar+ssl", "pulsar"))
    assert client.connect() == CLOSED
    client.close()


# --- permissions -------------------------------------------------------------------------------------------------------


def test_one_role_may_produce_and_not_consume_and_another_the_reverse(secured: Secured, oneway: str) -> None:
    with (
        secured.client(secured.authentication("token", "writer")) as writer,
        secured.client(secured.authentication("token", "reader"), HTTP) as reader,
    ):
        consumer = reader.subscribe(oneway, "s")
        producer = writer.create_producer(oneway)
        with pytest.raises(pulsar.AuthorizationError):
            reader.create_producer(oneway)
        with pytest.raises(pulsar.AuthorizationError):
            writer.subscribe(oneway, "s2")
        producer.send(b"one way")
        assert consumer.receive(30_000).data() == b"one way"


def test_a_role_without_a_permission_is_refused_and_its_connection_stays(secured: Secured, private: str) -> None:
    client = RawClient(secured.url(PLAIN))
    client.connect(auth_method_name="token", auth_data=secured.token("bob").encode())
    metadata = client.request(Type.PARTITIONED_METADATA, topic=private)
    assert (metadata["response"], metadata["error"]) == ("Failed", "AuthorizationError")
    lookup = client.request(Type.LOOKUP, topic=private)
    assert (lookup["response"], lookup["error"]) == ("Failed", "AuthorizationError")
    producer = client.request(Type.PRODUCER, topic=private, producer_id=1)
    assert (producer["type"], producer["error"]) == ("ERROR", "AuthorizationError")
    consumer = client.request(Type.SUBSCRIBE, topic=private, subscription="s", subType=0, consumer_id=1)
    assert (consumer["type"], consumer["error"]) == ("ERROR", "AuthorizationError")
    topics = client.request(Type.GET_TOPICS_OF_NAMESPACE, namespace="acme/private")
    assert (topics["type"], topics["error"]) == ("ERROR", "AuthorizationError")
    client.send(Type.PING)
    assert client.reply()["type"] == "PONG"
    client.close()
    path = private.replace("://", "/")
    assert secured.rest("GET", f"/lookup/v2/topic/{path}", "bob").status == 401
    assert secured.rest("GET", f"/lookup/v2/topic/{path}/bundle", "bob").status == 403


FORBIDDEN = {
    **dict.fromkeys((PLAIN, TLS), pulsar.AuthorizationError),
    **dict.fromkeys((HTTP, HTTPS), pulsar.ConnectError),
}


@pytest.mark.parametrize("port", [TLS, HTTP])
def test_the_official_client_is_told_that_its_role_may_not(secured: Secured, private: str, port: str) -> None:
    with secured.client(secured.authentication("basic", "bob"), port) as client:
        with pytest.raises(FORBIDDEN[port]):
            client.create_producer(private)
        with pytest.raises(FORBIDDEN[port]):
            client.subscribe(private, "s")


@pytest.mark.parametrize("role", ["boss", "admin"])
def test_tenant_administrators_and_super_users_may_produce_and_consume(
    secured: Secured, private: str, role: str
) -> None:
    with secured.client(secured.authentication("token", role)) as client:
        assert_round_trip(client, private)


def test_a_tenant_administrator_has_no_right_in_another_tenant(secured: Secured) -> None:
    with secured.client(secured.authentication("token", "boss")) as client, pytest.raises(pulsar.AuthorizationError):
        client.create_producer("public/default/t")


@pytest.mark.parametrize("port", PORTS)
def test_an_anonymous_client_can_use_what_is_granted_to_it_and_nothing_else(
    secured: Secured, private: str, port: str
) -> None:
    with secured.client(None, port) as client:
        assert_round_trip(client, private.replace("acme/private", "public/default"))
        with pytest.raises(FORBIDDEN[port]):
            client.create_producer(private)
        with pytest.raises(FORBIDDEN[port]):
            client.subscribe(private, "s")


def test_a_permission_counts_from_the_next_request_on_until_it_is_revoked(secured: Secured, private: str) -> None:
    permission = "/admin/v2/namespaces/acme/private/permissions/guest"
    with secured.client(secured.authentication("token", "guest")) as client:
        with pytest.raises(pulsar.AuthorizationError):
            client.create_producer(private)
        assert secured.rest("POST", permission, "boss", body=["produce"]).status == 204
        client.create_producer(private).send(b"granted")
        assert secured.rest("DELETE", permission, "boss").status == 204
        with pytest.raises(pulsar.AuthorizationError):
            client.create_producer(private)


def test_who_is_connected_loses_producer_and_consumer_with_the_right_to_them(secured: Secured, private: str) -> None:
    permission = "/admin/v2/namespaces/acme/private/permissions/leaver"
    assert secured.rest("POST", permission, "boss", body=["produce", "consume"]).status == 204
    with secured.client(secured.authentication("token", "alice")) as stays:
        theirs, mine = stays.subscribe(private, "alice"), stays.create_producer(private)
        with secured.client(secured.authentication("token", "leaver")) as client:
            producer, consumer = (
                client.create_producer(private, send_timeout_millis=500),
                client.subscribe(private, "s"),
            )
            producer.send(b"granted")
            assert consumer.receive(30_000).data() == theirs.receive(10_000).data() == b"granted"
            assert secured.rest("DELETE", permission, "boss").status == 204
            with pytest.raises(pulsar.PulsarException):
                producer.send(b"revoked")
            mine.send(b"secret")
            assert theirs.receive(30_000).data() == b"secret"
            with pytest.raises(pulsar.PulsarException):
                consumer.receive(500)


def test_a_permission_on_a_topic_holds_for_it_and_its_partitions_alone(secured: Secured, private: str) -> None:
    other, parts = f"{private}-other", f"{private}-parts"
    base = "/admin/v2/" + private.replace("://", "/")
    assert secured.rest("PUT", f"{base}-parts/partitions", "boss", body=2).status == 204
    assert secured.rest("PUT", base, "boss").status == 204
    for path in (base, f"{base}-parts"):
        assert secured.rest("POST", f"{path}/permissions/single", "alice", body=["produce"]).status == 401
        assert secured.rest("POST", f"{path}/permissions/single", "boss", body=["produce"]).status == 204
    with secured.client(secured.authentication("token", "single")) as client:
        for topic in (private, parts, f"{parts}-partition-1"):
            client.create_producer(topic).send(b"granted")
            with pytest.raises(pulsar.AuthorizationError):
                client.subscribe(topic, "s")
        with pytest.raises(pulsar.AuthorizationError):
            client.create_producer(other)
    assert secured.rest("DELETE", f"{base}/permissions/single", "boss").status == 204


def test_a_subscription_can_be_kept_for_some_roles(secured: Secured, oneway: str) -> None:
    path = "/admin/v2/namespaces/acme/oneway/permissions/subscription/kept"
    assert secured.rest("POST", path, "boss", body=["auditor"]).status == 204
    with secured.client(secured.authentication("token", "reader")) as client:
        client.subscribe(oneway, "free")
        with pytest.raises(pulsar.AuthorizationError):
            client.subscribe(oneway, "kept")
        assert secured.rest("DELETE", path.replace("subscription/", "") + "/auditor", "boss").status == 204
        client.subscribe(oneway, "kept")
    assert secured.rest("GET", path.removesuffix("/kept"), "boss").json == {}


ANYBODY = None
REST_RIGHTS = [
    # method, path, body, then the status for: anonymous, alice (permissions only), boss (tenant administrator), admin
    ("GET", "/admin/v2/clusters", None, (200, 200, 200, 200)),
    ("PUT", "/admin/v2/clusters/other", {"serviceUrl": "http://other:8080"}, (401, 401, 401, None)),
    ("GET", "/admin/v2/tenants", None, (401, 401, 401, 200)),
    ("PUT", "/admin/v2/tenants/other", {"allowedClusters": ["standalone"]}, (401, 401, 401, None)),
    ("DELETE", "/admin/v2/tenants/acme", None, (401, 401, None, None)),
    ("GET", "/admin/v2/namespaces/acme", None, (401, 401, 200, 200)),
    ("GET", "/admin/v2/namespaces/public", None, (401, 401, 401, 200)),
    ("GET", "/admin/v2/namespaces/acme/private", None, (403, 403, 200, 200)),
    ("PUT", "/admin/v2/namespaces/acme/other", None, (401, 401, None, None)),
    ("GET", "/admin/v2/namespaces/acme/private/permissions", None, (403, 403, 200, 200)),
    ("POST", "/admin/v2/namespaces/acme/private/permissions/mallory", ["consume"], (403, 403, None, None)),
    ("GET", "/admin/v2/namespaces/acme/private/topics", None, (403, 200, 200, 200)),
    ("GET", "/admin/v2/brokers/configuration/runtime", None, (401, 401, 401, 200)),
    ("PUT", "/admin/v2/persistent/acme/private/none", None, (403, 403, None, None)),
    ("GET", "/admin/v2/persistent/acme/private/none/retention", None, (403, 403, None, None)),
    ("PUT", "/admin/v2/persistent/acme/private/none/unload", None, (401, 401, None, None)),
    ("GET", "/admin/v2/persistent/acme/private/none/permissions", None, (401, 401, None, None)),
    ("GET", "/admin/v2/persistent/acme/oneway/none/subscriptions", None, (401, 401, None, None)),
]


@pytest.mark.parametrize(
    ("method", "path", "body", "statuses"), REST_RIGHTS, ids=[f"{row[0]} {row[1]}" for row in REST_RIGHTS]
)
def test_rest_answers_by_right(
    secured: Secured, method: str, path: str, body: object, statuses: tuple[int | None, ...]
) -> None:
    for role, status in zip((ANYBODY, "alice", "boss", "admin"), statuses, strict=True):
        if status is None:
            continue  # It would work, and change what the other tests find.
        answer = secured.rest(method, path, role, body=body)
        assert answer.status == status, f"{role}: {answer}"
        if status >= 400:
            assert "may not" in answer.json["reason"] or "is no" in answer.json["reason"] or "does not" in answer.text


def test_secrets_are_not_shown_to_super_users_either(secured: Secured) -> None:
    shown = secured.rest("GET", "/admin/v2/brokers/configuration/runtime", "admin").json
    assert shown["tokenSecretKey"] == "*****"


# --- credentials that expire -------------------------------------------------------------------------------------------


def challenged(secured: Secured, seconds: float = 0.3) -> RawClient:
    """A session of a client that understands challenges, with the first challenge received."""
    client = DeadClient(secured.url(PLAIN))
    token = secured.token("alice", exp=time.time() + seconds)
    features = pb.FeatureFlags(supports_auth_refresh=True)
    reply = client.connect(auth_method_name="token", auth_data=token.encode(), feature_flags=features)
    assert reply["type"] == "CONNECTED"
    assert_challenged(client)
    return client


def assert_challenged(client: RawClient) -> None:
    reply = client.reply()
    assert reply["type"] == "AUTH_CHALLENGE"
    assert reply["challenge"] == {"auth_method_name": "token", "auth_data": "UHVsc2FyQXV0aFJlZnJlc2g="}
    assert reply["protocol_version"] == 21


def answer(client: RawClient, token: str) -> None:
    data = pb.AuthData(auth_method_name="token", auth_data=token.encode())
    client.send(Type.AUTH_RESPONSE, response=data, client_version="raw", protocol_version=21)


def test_a_client_that_can_is_asked_for_new_credentials_and_goes_on(secured: Secured, private: str) -> None:
    client = challenged(secured)
    answer(client, secured.token("alice", exp=time.time() + 0.3))
    assert client.open_producer(private)["type"] == "PRODUCER_SUCCESS"
    assert_challenged(client)
    answer(client, secured.token("alice"))
    assert client.publish(1, 1)[0]["type"] == "SEND_RECEIPT"
    client.close()


def test_a_client_that_does_not_answer_is_closed(secured: Secured) -> None:
    client = challenged(secured)
    assert client.reply() == CLOSED
    client.close()


@pytest.mark.parametrize("kind", ["expired", "another role"])
def test_a_client_that_answers_with_wrong_credentials_is_closed(secured: Secured, kind: str) -> None:
    client = challenged(secured)
    if kind == "expired":
        answer(client, expired(secured).decode())
        assert_challenged(client)  # once more, because a client can renew its token at the last moment
    answer(client, expired(secured).decode() if kind == "expired" else secured.token("admin"))
    refused = client.reply()
    assert (refused["type"], refused["error"]) == ("ERROR", "AuthenticationError")
    assert client.reply() == CLOSED
    client.close()


def test_a_client_that_cannot_be_asked_is_closed(secured: Secured) -> None:
    client = RawClient(secured.url(PLAIN))
    token = secured.token("alice", exp=time.time() + 0.3)
    assert client.connect(auth_method_name="token", auth_data=token.encode())["type"] == "CONNECTED"
    assert client.reply() == CLOSED
    client.close()


def test_the_official_client_renews_its_token_while_it_works(secured: Secured, private: str) -> None:
    made: list[float] = []

    def new_token() -> str:
        made.append(time.time())
        return secured.token("alice", exp=time.time() + 0.5)

    with secured.client(pulsar.AuthenticationToken(new_token)) as client:
        producer = client.create_producer(private)
        first = len(made)
        deadline = time.monotonic() + 20
        while len(made) < first + 2:
            producer.send(b"still here")
            assert time.monotonic() < deadline, "the broker asks for no new token"


# --- other keys, and nobody anonymous ----------------------------------------------------------------------------------


def other_keys(directory: Path, kind: str) -> tuple[dict[str, str], Callable[..., str]]:
    """Settings for one kind of key, and what makes tokens for it."""
    key = credentials.rsa_key()
    if kind == "public key in a data URL":
        location = credentials.data_url(credentials.public_der(key))
    else:
        path = directory / "public.key"
        path.write_bytes(credentials.public_der(key) if "DER" in kind else credentials.public_pem(key))
        location = path.as_uri()
    return {"tokenPublicKey": location}, lambda **claims: credentials.token(key, "RS256", **claims)


@pytest.mark.parametrize("kind", ["public key in a data URL", "public key in a DER file"])
def test_tokens_by_other_keys_get_in_and_who_brings_none_does_not(tmp_path: Path, kind: str) -> None:
    settings, make = other_keys(tmp_path, kind)
    settings |= {"authenticationEnabled": "true", "authenticationProviders": PACKAGE + "AuthenticationProviderToken"}
    process = BrokerProcess(tmp_path, settings)
    with process.running():
        assert_only_tokens_get_in(Secured(process, CertificateAuthority(tmp_path), credentials.secret_key()), make)


def assert_only_tokens_get_in(found: Secured, make: Callable[..., str]) -> None:
    process = found.process
    health = process.http_url + "/admin/v2/brokers/health"
    client = new_client(process.url, authentication=pulsar.AuthenticationToken(make(sub="anybody")))
    assert_round_trip(client, "public/default/t")
    client.close()
    assert call(health, headers={"Authorization": f"Bearer {make(sub='anybody')}"}) == Answer(200, "ok")
    for token in (found.token("anybody").encode(), signed_by_rsa(found)[:-10], make(sub="a", exp=1).encode()):
        assert_refused(found, auth_method_name="token", auth_data=token)
        assert call(health, headers={"Authorization": f"Bearer {token.decode()}"}).status == 401
    assert "authentication is required" in assert_refused(found)
    assert "not configured" in assert_refused(found, auth_method_name="basic", auth_data=b"a:b")
    assert "authentication is required" in call(health).json["reason"]
    assert call(process.http_url + "/metrics").status == 200

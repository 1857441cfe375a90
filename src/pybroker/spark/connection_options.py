"""Connection options: address and credentials of the broker, for reading and writing."""

from __future__ import annotations

from urllib.parse import urlsplit

from pybroker.client.access import Access, AccessRefused, basic_secret, oauth2_of, tls_files, token_secret
from pybroker.spark.option_text import InvalidOptions, OptionValues

_USED = (
    "authPluginClassName",
    "authParams",
    "connectionTimeoutMs",
    "listenerName",
    "operationTimeoutMs",
    "tlsAllowInsecureConnection",
    "tlsCertificateFilePath",
    "tlsHostnameVerificationEnable",
    "tlsKeyFilePath",
    "tlsTrustCertsFilePath",
    "useTls",
)
# Options of the Java client that are accepted without effect: pools, threads, statistics.
_ACCEPTED = (
    "concurrentLookupRequest",
    "connectionMaxIdleSeconds",
    "connectionsPerBroker",
    "connectionTtlSeconds",
    "defaultBackoffIntervalNanos",
    "dnsLookupBindAddress",
    "enableBusyWait",
    "enableTransaction",
    "initialBackoffIntervalNanos",
    "keepAliveIntervalSeconds",
    "lookupTimeoutMs",
    "maxBackoffIntervalNanos",
    "maxLookupRedirects",
    "maxLookupRequest",
    "maxNumberOfRejectedRequestPerConnection",
    "memoryLimitBytes",
    "numIoThreads",
    "numListenerThreads",
    "readTimeoutMs",
    "requestTimeoutMs",
    "statsIntervalSeconds",
    "useTcpNoDelay",
)
_KEY_STORES = ("useKeyStoreTls", "tlsTrustStorePath", "tlsTrustStorePassword", "tlsTrustStoreType")
PREFIXES = ("pulsar.client.", "pulsar.admin.")
KEYS = (
    "service.url",
    "admin.url",
    *(prefix + name for prefix in PREFIXES for name in (*_USED, *_ACCEPTED, *_KEY_STORES)),
)
_SCHEMES = ("pulsar", "pulsar+ssl")
_ADMIN_SCHEMES = ("http", "https")
DEFAULT_OPERATION_TIMEOUT_MS = 30_000


def access_of(values: OptionValues, operation_timeout_ms: int | None = None) -> Access:
    service_url = values.text("service.url")
    if service_url is None:
        raise InvalidOptions(
            "option service.url is missing: set it to the address of the broker, such as pulsar://localhost:6650"
        )
    admin_url = values.text("admin.url")
    _check_url("service.url", service_url, _SCHEMES, "pulsar://host:6650 (the http address is option admin.url)")
    if admin_url is not None:
        _check_url("admin.url", admin_url, _ADMIN_SCHEMES, "http://host:8080")
    for name in _KEY_STORES:
        if _client_flag_is_set(values, name):
            raise InvalidOptions(
                f"option pulsar.client.{name}: Java key stores are not supported; export them as PEM and "
                "set tlsTrustCertsFilePath, tlsCertificateFilePath and tlsKeyFilePath"
            )
    token = basic = oauth2 = None
    certificate, key = _client(values, "tlsCertificateFilePath"), _client(values, "tlsKeyFilePath")
    method, parameters = _method(values), _client(values, "authParams")
    try:
        if method is not None and parameters is None and method != "tls":
            raise AccessRefused(
                "option authPluginClassName is set, but authParams is missing: set it, such as token:..., "
                "file:/path or env:NAME"
            )
        if method == "token" and parameters is not None:
            token = token_secret(parameters)
        elif method == "basic" and parameters is not None:
            basic = basic_secret(parameters)
        elif method == "oauth2" and parameters is not None:
            oauth2 = oauth2_of(parameters)
        elif method == "tls" and parameters is not None:
            certificate, key = tls_files(parameters)
        return Access(
            service_url=service_url,
            admin_url=admin_url and admin_url.rstrip("/"),
            token=token,
            oauth2=oauth2,
            basic_user=basic and basic[0],
            basic_password=basic and basic[1],
            tls_certificate_file=certificate,
            tls_key_file=key,
            tls_trust_certs_file=_client(values, "tlsTrustCertsFilePath"),
            tls_allow_insecure=_client_flag(values, "tlsAllowInsecureConnection", False),
            tls_verify_hostname=_client_flag(values, "tlsHostnameVerificationEnable", True),
            listener_name=_client(values, "listenerName"),
            connection_timeout_s=_client_ms(values, "connectionTimeoutMs", 10_000) / 1000,
            operation_timeout_s=_client_ms(
                values, "operationTimeoutMs", operation_timeout_ms or DEFAULT_OPERATION_TIMEOUT_MS
            )
            / 1000,
        )
    except AccessRefused as error:
        raise InvalidOptions(f"option pulsar.client.authParams: {error}") from error


def _method(values: OptionValues) -> str | None:
    plugin = _client(values, "authPluginClassName")
    if plugin is None:
        parameters = _client(values, "authParams") or ""
        if not parameters:
            return None
        if parameters.startswith(("token:", "file:", "env:")):
            return "token"
        raise InvalidOptions(
            "option pulsar.client.authPluginClassName is missing, although authParams is set: set it to "
            "token, oauth2, basic or tls"
        )
    name = plugin.rpartition(".")[2].lower().removeprefix("authentication")
    if name not in {"token", "oauth2", "basic", "tls"}:
        raise InvalidOptions(
            f"option pulsar.client.authPluginClassName is {plugin[:100]!r}: use token, oauth2, basic or tls, or the "
            "corresponding class name of the Java client"
        )
    return name


def _client(values: OptionValues, name: str) -> str | None:
    return next((text for prefix in PREFIXES if (text := values.text(prefix + name)) is not None), None)


def _client_flag(values: OptionValues, name: str, default: bool) -> bool:
    key = next((prefix + name for prefix in PREFIXES if prefix + name in values), PREFIXES[0] + name)
    return values.flag(key, default)


def _client_flag_is_set(values: OptionValues, name: str) -> bool:
    return (_client(values, name) or "false").lower() != "false"


def _client_ms(values: OptionValues, name: str, default: int) -> int:
    key = next((prefix + name for prefix in PREFIXES if prefix + name in values), PREFIXES[0] + name)
    return values.number(key, default, 1)


def _check_url(option: str, url: str, schemes: tuple[str, ...], example: str) -> None:
    """Raise InvalidOptions for an invalid URL, or for a URL with credentials, which the error does not show."""
    if "@" in url:
        raise InvalidOptions(f"option {option} contains a user or a password: use pulsar.client.authParams instead")
    for part in url.split(","):
        whole = part if "://" in part else f"{schemes[0]}://{part}"
        try:
            split = urlsplit(whole)
            host = split.hostname
            port_is_fine = split.port is None or 0 < split.port < 1 << 16
        except ValueError:
            host, port_is_fine = None, False
        if not host or not port_is_fine or split.scheme not in schemes:
            raise InvalidOptions(f"option {option} is {url[:100]!r}: use the form {example}")

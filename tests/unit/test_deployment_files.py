"""Files for installing a broker: container, Compose, Kubernetes, systemd, and the locked versions with hashes."""

import copy
import re
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from pybroker.config import KEYS
from pybroker.version import __version__

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
KUBERNETES_VERSIONS = ("1.25", "1.31", "1.37")
KUBERNETES = list(yaml.safe_load_all((DOCKER / "kubernetes" / "broker.yaml").read_text()))
STATEFUL_SET = next(document for document in KUBERNETES if document["kind"] == "StatefulSet")
POD = STATEFUL_SET["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]
SERVICES = {document["metadata"]["name"]: document["spec"] for document in KUBERNETES if document["kind"] == "Service"}
PREFIX = "PULSAR_PREFIX_"


def shutdown_timeout_s() -> float:
    milliseconds = KEYS["brokerShutdownTimeoutMs"].default
    assert isinstance(milliseconds, int)
    return milliseconds / 1000


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def versions_of(path: Path) -> dict[str, str]:
    found = re.findall(r"^([\w.-]+)==([^\s;]+)", path.read_text(), re.MULTILINE)
    return {normalised(name): version for name, version in found}


def requirements(*lines: str) -> set[str]:
    return {normalised(re.split(r"[\[<>=!~;\s]", line, maxsplit=1)[0]) for line in lines}


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BUILD_ONLY = requirements(*PROJECT["build-system"]["requires"])
LOCKED = versions_of(DOCKER / "requirements.lock")


def test_hashed_lock_has_versions_of_development_lock() -> None:
    development = versions_of(ROOT / "requirements-dev.lock")
    of_broker = {name: version for name, version in LOCKED.items() if name not in BUILD_ONLY}
    assert of_broker == {name: development.get(name) for name in of_broker}


def test_hashed_lock_contains_every_dependency_and_the_build_backend() -> None:
    assert requirements(*PROJECT["project"]["dependencies"]) | BUILD_ONLY <= set(LOCKED)


def test_each_locked_version_has_a_hash() -> None:
    text = (DOCKER / "requirements.lock").read_text()
    entries = re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:]
    assert len(entries) == len(LOCKED)
    assert [entry.split()[0] for entry in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}", entry)] == []


def test_container_installs_only_locked_packages_and_runs_without_root() -> None:
    installs = re.findall(r"pip install (.*)", DOCKERFILE)
    assert len(installs) == 2
    assert "--require-hashes --requirement requirements.lock" in installs[0]
    assert "--no-index --no-deps --no-build-isolation" in installs[1]
    assert re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE) == ["${BASE_IMAGE}", "${BASE_IMAGE}"]
    assert re.findall(r"^USER (.+)", DOCKERFILE, re.MULTILINE) == ["10000:10000"]


def test_build_context_contains_what_the_container_copies() -> None:
    permitted = set(re.findall(r"^!(.+)", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    assert {source.removeprefix("./") for sources in copies for source in sources.split()} == permitted


def test_compose_broker_has_read_only_root_and_time_to_stop() -> None:
    broker = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]["broker"]
    assert broker["read_only"] is True
    assert broker["tmpfs"] == ["/tmp"]
    assert broker["cap_drop"] == ["ALL"]
    assert int(broker["stop_grace_period"].removesuffix("s")) > shutdown_timeout_s()
    assert all(port.startswith("127.0.0.1:") for port in broker["ports"])


def test_cluster_brokers_have_read_only_root_time_to_stop_and_their_own_addresses() -> None:
    services = yaml.safe_load((DOCKER / "compose.cluster.yaml").read_text())["services"]
    brokers = {name: services[name] for name in services if name.startswith("broker")}
    assert len(brokers) == 3
    for name, broker in brokers.items():
        assert broker["read_only"] is True
        assert int(broker["stop_grace_period"].removesuffix("s")) > shutdown_timeout_s()
        assert all(port.startswith("127.0.0.1:") for port in broker["ports"])
        assert broker["environment"][f"{PREFIX}advertisedAddress"] == name
        (port,) = re.findall(r":(\d+):6650", " ".join(broker["ports"]))
        listeners = broker["environment"][f"{PREFIX}advertisedListeners"]
        assert listeners == f"external:pulsar://localhost:{port},internal:pulsar://{name}:6650"
    volumes = [volume for service in services.values() for volume in service.get("volumes", ())]
    assert len(volumes) == len(set(volumes)), "services share no data"


def test_systemd_unit_leaves_time_to_stop() -> None:
    unit = (DOCKER / "systemd" / "pybroker.service").read_text()
    (timeout_s,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert int(timeout_s) > shutdown_timeout_s()


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("document", KUBERNETES, ids=lambda document: document["metadata"]["name"])
def test_kubernetes_objects_match_schema(document: dict[str, Any], version: str) -> None:
    assert kubernetes_validate.validate(document, version, strict=True) == version


@pytest.mark.parametrize(
    ("path", "value"),
    [(("replicas",), "one"), (("template", "spec", "terminationGracePeriod"), 75), (("serviceNames",), "x")],
)
def test_schema_finds_wrong_type_and_unknown_field(path: tuple[str, ...], value: object) -> None:
    changed = copy.deepcopy(STATEFUL_SET)
    target = changed["spec"]
    for name in path[:-1]:
        target = target[name]
    target[path[-1]] = value
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(changed, KUBERNETES_VERSIONS[-1], strict=True)


def test_kubernetes_services_lead_to_ports_of_the_pod() -> None:
    assert set(SERVICES) == {"pybroker", STATEFUL_SET["spec"]["serviceName"]}
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert STATEFUL_SET["spec"]["selector"]["matchLabels"] == POD["metadata"]["labels"]
    for service in SERVICES.values():
        assert service["selector"] == POD["metadata"]["labels"]
        assert {port["targetPort"]: port["port"] for port in service["ports"]} == ports
    assert SERVICES["pybroker-headless"]["clusterIP"] == "None"


def test_kubernetes_probes_ask_documented_paths() -> None:
    paths = {name: CONTAINER[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"startupProbe": "/live", "livenessProbe": "/live", "readinessProbe": "/ready"}


def test_kubernetes_pod_has_least_privileges() -> None:
    (user, group), pod, container = ("10000", "10000"), POD["spec"], CONTAINER["securityContext"]
    assert f"USER {user}:{group}" in DOCKERFILE
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert str(pod["securityContext"]["runAsUser"]) == user
    assert str(pod["securityContext"]["fsGroup"]) == group
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["readOnlyRootFilesystem"] is True
    assert container["allowPrivilegeEscalation"] is False
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert pod["automountServiceAccountToken"] is False


def test_kubernetes_pod_has_time_to_stop_and_one_replica() -> None:
    assert POD["spec"]["terminationGracePeriodSeconds"] > shutdown_timeout_s()
    assert STATEFUL_SET["spec"]["replicas"] == 1


def test_kubernetes_pod_stores_data_on_the_claim_and_advertises_its_own_name() -> None:
    settings = {entry["name"]: entry.get("value", "") for entry in CONTAINER["env"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    (claim,) = STATEFUL_SET["spec"]["volumeClaimTemplates"]
    assert settings[f"{PREFIX}dataDirectory"].startswith(mounts[claim["metadata"]["name"]] + "/")
    host, service, *_ = settings[f"{PREFIX}advertisedAddress"].split(".")
    assert (host, service) == ("$(POD_NAME)", STATEFUL_SET["spec"]["serviceName"])


def test_files_and_guide_name_the_image_of_this_version() -> None:
    assert CONTAINER["image"] == f"pybroker:{__version__}"
    guide = (ROOT / "docs" / "how-to" / "install.md").read_text()
    assert set(re.findall(r"\bpybroker:(\d[\w.]*)", guide)) == {__version__}


def test_settings_in_deployment_files_are_known_keys() -> None:
    files = [DOCKER / "Dockerfile", *DOCKER.glob("compose*.yaml"), DOCKER / "kubernetes" / "broker.yaml"]
    named = {
        name for file in files for name in re.findall(rf"\b{PREFIX}(\w+)(?=[=:]|$)", file.read_text(), re.MULTILINE)
    }
    assert {"advertisedAddress", "advertisedListeners", "dataDirectory", "logFormat"} <= named
    assert named <= set(KEYS)

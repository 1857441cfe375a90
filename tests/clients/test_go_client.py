"""The official Go client and its admin client, used as an application and an operator would.

Needs the `go` command, which fetches the client when the program in `go/` is built for the first time; without it these tests
fail. Each scenario runs by itself and prints a line for each step; `go/expected.txt` has the lines that must come.
"""

import pathlib
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from cryptography.hazmat.primitives import serialization
from tests.support.broker_process import BrokerProcess
from tests.support.credentials import CertificateAuthority, data_url, public_pem, rsa_key, secret_key, token
from tests.support.secured import PACKAGE, tls_settings

pytestmark = [pytest.mark.long, pytest.mark.go]

SOURCES = pathlib.Path(__file__).with_name("go")
BUILD_TIMEOUT_S = 900  # The first time, everything is compiled.
TIMEOUT_S = 60
EXPECTED = {
    name: lines.splitlines()
    for name, _, lines in (
        section.partition("\n") for section in (SOURCES / "expected.txt").read_text().split("== ") if section
    )
}
WITH_MORE = {"encryption", "kill_and_restart", "secured"}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The compiled program."""
    path = tmp_path_factory.mktemp("go") / "scenarios"
    command = [shutil.which("go") or "go", "build", "-o", str(path), "."]
    subprocess.run(command, cwd=SOURCES, check=True, timeout=BUILD_TIMEOUT_S)
    return path


def command_of(program: pathlib.Path, scenario: str, broker: BrokerProcess, *words: str) -> list[str]:
    return [str(program), scenario, broker.url, broker.http_url, scenario.replace("_", "-") + "-", *words]


def lines_of(command: list[str]) -> list[str]:
    """What a scenario prints."""
    run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout.splitlines()


@pytest.mark.parametrize("scenario", sorted(EXPECTED.keys() - WITH_MORE))
def test_the_go_client_finds_what_it_expects(scenario: str, program: pathlib.Path, broker: BrokerProcess) -> None:
    assert lines_of(command_of(program, scenario, broker)) == EXPECTED[scenario]


def test_messages_that_the_go_client_encrypts_are_read_with_the_key_alone(
    program: pathlib.Path, broker: BrokerProcess, key_files: list[str]
) -> None:
    assert lines_of(command_of(program, "encryption", broker, *key_files)) == EXPECTED["encryption"]


@pytest.fixture
def key_files(tmp_path: pathlib.Path) -> list[str]:
    """Public and private key as the client's key reader takes them."""
    public, private = tmp_path / "public.pem", tmp_path / "private.pem"
    public.write_bytes(public_pem(rsa_key()))
    pem, traditional = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
    private.write_bytes(rsa_key().private_bytes(pem, traditional, serialization.NoEncryption()))
    return [str(public), str(private)]


def test_the_go_client_goes_on_after_the_broker_was_killed(program: pathlib.Path, own_broker: BrokerProcess) -> None:
    answers = {"? kill": own_broker.kill, "? start": own_broker.start}
    command = command_of(program, "kill_and_restart", own_broker)
    lines = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        for line in run.stdout:
            if line.strip() in answers:
                answers[line.strip()]()
                run.stdin.write("done\n")
                run.stdin.flush()
            else:
                lines.append(line.strip())
    assert run.returncode == 0
    assert lines == EXPECTED["kill_and_restart"]


@pytest.fixture
def secured(tmp_path: pathlib.Path) -> Iterator[tuple[BrokerProcess, CertificateAuthority, bytes]]:
    """A broker that knows its clients by token or certificate."""
    authority, secret = CertificateAuthority(tmp_path), secret_key()
    settings = {
        **tls_settings(authority),
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationProviders": f"{PACKAGE}AuthenticationProviderTls,{PACKAGE}AuthenticationProviderToken",
        "superUserRoles": "admin",
        "tokenSecretKey": data_url(secret),
    }
    with BrokerProcess(tmp_path, settings).running() as broker:
        yield broker, authority, secret


def test_the_go_client_gets_in_with_what_it_has(
    program: pathlib.Path, secured: tuple[BrokerProcess, CertificateAuthority, bytes]
) -> None:
    broker, authority, secret = secured
    certificate = authority.client("admin")
    words = [broker.ready["broker_url_tls"], broker.ready["http_url_tls"], str(authority.certificate_path)]
    words += [token(secret, sub="admin"), str(certificate.certificate), str(certificate.key)]
    assert lines_of(command_of(program, "secured", broker, *words)) == EXPECTED["secured"]

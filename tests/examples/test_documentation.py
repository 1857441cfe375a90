"""Blocks of code in the documentation run as a user would run them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.examples.test_example_projects import run_pytest
from tests.support.broker_process import BrokerProcess

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "how-to" / "testing.md"


def test_the_code_of_the_page_about_testing_passes(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    code = "\n\n".join(blocks)
    tests = len(re.findall(r"^ *def test_", code, re.MULTILINE))
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    )
    (tmp_path / "test_page.py").write_text(code)
    assert tests >= 15
    assert f"{tests} passed" in run_pytest(tmp_path)


def test_programs_of_the_readme_work(tmp_path: Path) -> None:
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    program, test = re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    with BrokerProcess(tmp_path).running() as broker:
        shown = _succeeds([sys.executable, "-c", program.replace("pulsar://127.0.0.1:6650", broker.url)], tmp_path)
    assert "received b'hello'" in shown
    (tmp_path / "test_readme.py").write_text(f"from datetime import timedelta\n\nimport pulsar\n\n\n{test}")
    assert "1 passed" in run_pytest(tmp_path)


def test_program_of_the_asyncio_client_works(tmp_path: Path) -> None:
    page = (DOCS / "how-to" / "client.md").read_text(encoding="utf-8")
    program = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[0]
    with BrokerProcess(tmp_path).running() as broker:
        _succeeds([sys.executable, "-c", program.replace("pulsar://localhost:6650", broker.url)], tmp_path)


def test_the_certificates_of_the_page_about_security_are_taken_by_broker_and_official_client(tmp_path: Path) -> None:
    text = (DOCS / "how-to" / "security.md").read_text(encoding="utf-8")
    section = (
        text.partition("### Create certificates\n")[2].partition("\n## ")[0].replace("/etc/pybroker", str(tmp_path))
    )
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    *creating, with_command_line = [code for kind, code in blocks if kind == "bash"]
    (configuration,) = [code for kind, code in blocks if kind == "properties"]
    (program,) = [code for kind, code in blocks if kind == "python"]
    assert len(creating) == 3
    _succeeds(["bash", "-e", "-c", "".join(creating)], tmp_path)
    assert not any((tmp_path / name).stat().st_mode & 0o077 for name in ("ca.key", "server.key", "admin.key"))
    settings = dict(line.split("=", 1) for line in configuration.splitlines())
    with BrokerProcess(
        tmp_path, {**settings, "brokerServicePortTls": "0", "webServicePortTls": "0"}
    ).running() as broker:
        ports = {"broker.example:6651": "broker_port_tls", "broker.example:8443": "http_port_tls"}
        for address, port in ports.items():
            program = program.replace(address, f"localhost:{broker.ready[port]}")
            with_command_line = with_command_line.replace(address, f"localhost:{broker.ready[port]}")
        _succeeds([sys.executable, "-c", program], tmp_path)
        shown = _succeeds(["bash", "-e", "-c", with_command_line], tmp_path)
        assert "persistent://public/default/orders" in shown


def _succeeds(command: list[str], directory: Path) -> str:
    """What the command writes to stdout; the commands of this environment come first on its PATH."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    assert shutil.which("openssl") is not None, "install openssl"
    environment = {**os.environ, "PATH": path, "PYBROKER_PROFILES": str(directory / "no profiles")}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

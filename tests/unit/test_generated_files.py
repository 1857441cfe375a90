"""What is generated and committed equals what the generators write now."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HINT = "generated file is out of date: run `make generate`"


def run_tool(name: str, *arguments: str) -> None:
    command = [sys.executable, str(ROOT / "tools" / name), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_protobuf_modules_equal_the_compiler_output(tmp_path: Path) -> None:
    run_tool("generate_proto.py", "--output", str(tmp_path))
    written = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.py*"))
    assert written == [
        "pybroker/bookkeeper/bookkeeper_pb2.py",
        "pybroker/bookkeeper/bookkeeper_pb2.pyi",
        "pybroker/bookkeeper_store/documents/ml_data_formats_pb2.py",
        "pybroker/bookkeeper_store/documents/ml_data_formats_pb2.pyi",
        "pybroker/bookkeeper_store/documents/schema_storage_pb2.py",
        "pybroker/bookkeeper_store/documents/schema_storage_pb2.pyi",
        "pybroker/wire/metadata_head_pb2.py",
        "pybroker/wire/metadata_head_pb2.pyi",
        "pybroker/wire/pulsar_api_pb2.py",
        "pybroker/wire/pulsar_api_pb2.pyi",
    ]
    for name in written:
        committed = ROOT / "src" / name
        assert (tmp_path / name).read_text(encoding="utf-8") == committed.read_text(encoding="utf-8"), HINT


def test_configuration_module_and_document_equal_what_is_made_of_broker_conf(tmp_path: Path) -> None:
    module, document = tmp_path / "broker_config.py", tmp_path / "configuration.md"
    run_tool("generate_config.py", "--module", str(module), "--document", str(document))
    committed = ROOT / "src" / "pybroker" / "config" / "broker_config.py"
    assert module.read_text(encoding="utf-8") == committed.read_text(encoding="utf-8"), HINT
    described = ROOT / "docs" / "reference" / "configuration.md"
    assert document.read_text(encoding="utf-8") == described.read_text(encoding="utf-8"), HINT

"""Generates the protobuf modules of the package, and their type stubs, from `proto/`.

The generated files are committed, so users need no protobuf compiler.
"""

import argparse
import keyword
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"

# Protobuf registers a file under this path. Our own name avoids a conflict with another Pulsar library in the
# process.
REGISTERED_NAMES = {
    "PulsarApi.proto": "pybroker/wire/pulsar_api.proto",
    "MetadataHead.proto": "pybroker/wire/metadata_head.proto",
    "BookKeeper.proto": "pybroker/bookkeeper/bookkeeper.proto",
    "MLDataFormats.proto": "pybroker/bookkeeper_store/documents/ml_data_formats.proto",
    "SchemaStorage.proto": "pybroker/bookkeeper_store/documents/schema_storage.proto",
}


def generate(target: Path) -> list[Path]:
    """Write the modules and stubs below `target`, each into its package, and return their paths."""
    with tempfile.TemporaryDirectory() as scratch:
        sources = Path(scratch) / "in"
        output = Path(scratch) / "out"
        output.mkdir()
        for name, registered in REGISTERED_NAMES.items():
            source = sources / registered
            source.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / "proto" / name, source)
        command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={sources}"]
        command += [f"--python_out={output}", f"--pyi_out={output}", *REGISTERED_NAMES.values()]
        subprocess.run(command, check=True)
        written = []
        for generated in sorted(path for path in output.rglob("*.py*") if path.is_file()):
            destination = target / generated.relative_to(output)
            destination.parent.mkdir(parents=True, exist_ok=True)
            text = generated.read_text(encoding="utf-8")
            if generated.suffix == ".pyi":
                text = without_keywords(text)
            destination.write_text(text, encoding="utf-8")
            written.append(destination)
        return written


def without_keywords(stub: str) -> str:
    """Remove names that are Python keywords, such as `None` of Schema.Type, from a type stub."""
    lines = stub.splitlines(keepends=True)
    return "".join(line for line in lines if not keyword.iskeyword(line.strip().partition(":")[0]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=SOURCE, help="directory of the packages")
    for path in generate(parser.parse_args().output):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())

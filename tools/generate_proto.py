"""Generate `pybroker/wire/pulsar_api_pb2.py` and its type stub from `proto/PulsarApi.proto`.

The generated files are committed, so that a user needs no protobuf compiler; `tests/unit/test_generated_files.py`
runs this again and compares.
"""

import argparse
import keyword
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "proto" / "PulsarApi.proto"
WIRE = ROOT / "src" / "pybroker" / "wire"

# The compiler registers the file under this path. A name of our own keeps a second Pulsar library in the same process
# from claiming it first.
REGISTERED_NAME = "pybroker/wire/pulsar_api.proto"


def generate(target: Path) -> list[Path]:
    """Write the module and its stub into the directory `target` and return their paths."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        source = root / "in" / REGISTERED_NAME
        output = root / "out"
        source.parent.mkdir(parents=True)
        output.mkdir()
        shutil.copyfile(SOURCE, source)
        command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={root / 'in'}"]
        command += [f"--python_out={output}", f"--pyi_out={output}", REGISTERED_NAME]
        subprocess.run(command, check=True)
        target.mkdir(parents=True, exist_ok=True)
        written = []
        for generated in sorted((output / REGISTERED_NAME).parent.iterdir()):
            destination = target / generated.name
            text = generated.read_text(encoding="utf-8")
            if generated.suffix == ".pyi":
                text = without_keywords(text)
            destination.write_text(text, encoding="utf-8")
            written.append(destination)
        return written


def without_keywords(stub: str) -> str:
    """The stub without the names that Python cannot say, such as `None` of Schema.Type; the compiler writes them."""
    lines = stub.splitlines(keepends=True)
    return "".join(line for line in lines if not keyword.iskeyword(line.strip().partition(":")[0]))


def main() -> int:
    """Parse the arguments, generate, and print what was written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=WIRE, help="directory to write into")
    for path in generate(parser.parse_args().output):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())

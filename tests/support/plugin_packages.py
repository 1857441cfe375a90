"""Installed Python packages with entry points, as users of the broker would install them."""

from collections.abc import Mapping
from pathlib import Path


def install(directory: Path, package: str, source: str, entry_points: Mapping[str, Mapping[str, str]]) -> Path:
    """Write the module `package` and its metadata into `directory`, which must be on the path of modules.

    `entry_points` maps a group to names and values of the form `module:Class`. Return `directory`.
    """
    directory.mkdir(exist_ok=True)
    (directory / f"{package}.py").write_text(source)
    metadata = directory / f"{package}-1.0.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = []
    for group, names in entry_points.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in names.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return directory

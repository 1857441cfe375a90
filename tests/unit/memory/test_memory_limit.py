"""The limit of a control group of either version is found anywhere in the tree; otherwise the machine's memory counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.memory.memory_limit import MemoryLimit, memory_limit

_MIB = 1 << 20
_NO_LIMIT = "9223372036854771712"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with 1 GiB, without control groups."""
    put(tmp_path, "proc/meminfo", "MemTotal:        1048576 kB\nMemFree:          100000 kB\n")
    return tmp_path


def put(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_without_a_group_the_machine_counts(machine: Path) -> None:
    assert memory_limit(machine) == MemoryLimit(1024 * _MIB, is_of_group=False)


def test_the_second_version_says_it_in_memory_max(machine: Path) -> None:
    put(machine, "proc/self/cgroup", "0::/system.slice/broker.service\n")
    put(machine, "sys/fs/cgroup/system.slice/broker.service/memory.max", f"{300 * _MIB}\n")
    put(machine, "sys/fs/cgroup/system.slice/memory.max", "max\n")
    assert memory_limit(machine) == MemoryLimit(300 * _MIB, is_of_group=True)


def test_the_first_version_says_it_in_limit_in_bytes(machine: Path) -> None:
    put(machine, "proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/jobs/one\n0::/\n")
    put(machine, "sys/fs/cgroup/memory/jobs/one/memory.limit_in_bytes", f"{200 * _MIB}\n")
    put(machine, "sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", f"{_NO_LIMIT}\n")
    assert memory_limit(machine) == MemoryLimit(200 * _MIB, is_of_group=True)


def test_a_group_above_may_leave_less(machine: Path) -> None:
    put(machine, "proc/self/cgroup", "0::/jobs/one\n")
    put(machine, "sys/fs/cgroup/jobs/one/memory.max", f"{500 * _MIB}\n")
    put(machine, "sys/fs/cgroup/jobs/memory.max", f"{400 * _MIB}\n")
    assert memory_limit(machine) == MemoryLimit(400 * _MIB, is_of_group=True)


def test_in_a_container_the_mounted_group_is_its_own(machine: Path) -> None:
    """The path that the kernel reports is the host's."""
    put(machine, "proc/self/cgroup", "4:memory:/docker/0123\n")
    put(machine, "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{256 * _MIB}\n")
    assert memory_limit(machine) == MemoryLimit(256 * _MIB, is_of_group=True)


@pytest.mark.parametrize("text", ["max", _NO_LIMIT, "", "nonsense", "0", str(4096 * _MIB)])
def test_what_is_no_limit_leaves_the_machine(machine: Path, text: str) -> None:
    put(machine, "proc/self/cgroup", "0::/\n1:memory:/\n")
    put(machine, "sys/fs/cgroup/memory.max", text)
    put(machine, "sys/fs/cgroup/memory/memory.limit_in_bytes", text)
    assert memory_limit(machine) == MemoryLimit(1024 * _MIB, is_of_group=False)


def test_where_nothing_is_known_nothing_is_said(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) == MemoryLimit(0, is_of_group=False)


def test_a_path_that_climbs_out_is_not_followed(machine: Path) -> None:
    put(machine, "proc/self/cgroup", "0::/../../outside\n")
    put(machine, "outside/memory.max", f"{_MIB}\n")
    assert not memory_limit(machine).is_of_group

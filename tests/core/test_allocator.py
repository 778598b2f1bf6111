"""While members train a process keeps the memory that it frees, and gives it back afterwards."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import basinet

TAKEN = """
import json, resource, torch
from basinet.core.allocator import freed_memory_kept

def faults():
    began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        held = [torch.zeros(size) for size in [500_000] * 20 + [10_000_000] * 3]  # 2 MB and 40 MB each
        held.clear()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - began

def held():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

with freed_memory_kept():
    faults()
    again, during = faults(), held()
print(json.dumps([again, during - held(), faults()]))
"""


def taken(**variables: str) -> list[int]:
    """Pages that are taken again inside, bytes that leaving gives back, pages that are taken again outside."""
    process = subprocess.run(
        [sys.executable, "-c", TAKEN], capture_output=True, text=True, check=True, env={**os.environ, **variables}
    )
    return json.loads(process.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other rules")
def test_freed_memory_stays_inside_and_is_given_back_outside():
    inside, back, outside = taken()
    assert inside < 2_000  # of 195,000 pages that are written
    assert back > 100e6
    assert outside > 20_000


def test_the_allocator_is_set_in_one_place():
    """Workers, too: what a user has set for the allocator holds there."""
    root = Path(basinet.__file__).parent
    assert [f.name for f in sorted(root.rglob("*.py")) if "mallopt" in f.read_text().lower()] == ["allocator.py"]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other rules")
def test_an_allocator_that_the_user_has_set_is_left_alone():
    assert taken(MALLOC_MMAP_THRESHOLD_="65536")[0] > 50_000

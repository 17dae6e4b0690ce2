import os
import subprocess
import sys
from pathlib import Path

import pytest

from dspark.cli.allocator import find_jemalloc, preloading

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="nothing is arranged elsewhere"),
]

ARRANGE = """
import os, pathlib, sys
from dspark.cli.allocator import arrange_allocator
arrange_allocator(print, [pathlib.Path(sys.argv[1])])
print(os.environ["LD_PRELOAD"], sys.argv[2])
"""
# Forty megabytes, beyond what glibc learns to keep by itself, made and dropped, also by a thread of its own.
FAULTS = """
import resource, sys, threading
from dspark.cli.allocator import tune_glibc
if sys.argv[1] == "tuned" and not tune_glibc():
    sys.exit(77)
import torch
torch.set_num_threads(1)
def churn(rounds):
    for _ in range(rounds):
        first = torch.ones(40 << 18)
        second = first * 2
        del first, second
def faults(churning):
    churning(5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    churning(30)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
def in_a_thread(rounds):
    thread = threading.Thread(target=churn, args=(rounds,))
    thread.start()
    thread.join()
print(faults(churn), faults(in_a_thread))
"""


def run_python(code: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "MALLOC_CONF")}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=clean | environ, capture_output=True, text=True, check=False)


def test_with_jemalloc_the_process_starts_again_once_with_its_arguments(tmp_path: Path) -> None:
    library = tmp_path / "libjemalloc.so.2"
    library.touch()  # the linker cannot load it and goes on without
    done = run_python(ARRANGE, str(tmp_path), "an argument")
    said, *rest = done.stdout.splitlines()
    assert said == f"starting again with {library}, which keeps the memory of dropped tensors"
    assert rest == [f"{library} an argument"]


def test_an_allocator_chosen_from_outside_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "libjemalloc.so.2").touch()
    done = run_python(ARRANGE, str(tmp_path), "x", LD_PRELOAD="libtcmalloc-of-mine.so")
    assert done.stdout == "libtcmalloc-of-mine.so x\n"


@pytest.mark.skipif(find_jemalloc() is None, reason="jemalloc is not installed")
def test_the_jemalloc_that_is_found_is_really_loaded() -> None:
    code = "from dspark.cli.allocator import arrange_allocator\narrange_allocator(print)\n"
    code += "print('jemalloc' in open('/proc/self/maps').read())"
    assert run_python(code).stdout.splitlines()[1:] == ["True"]


def test_what_else_is_preloaded_and_a_given_configuration_stay() -> None:
    environ = preloading("/lib/je.so", {"LD_PRELOAD": "mine.so", "MALLOC_CONF": "stats_print:true", "A": "b"})
    assert environ == {"LD_PRELOAD": "/lib/je.so mine.so", "MALLOC_CONF": "stats_print:true", "A": "b"}


def test_a_tuned_glibc_keeps_the_pages_of_dropped_tensors() -> None:
    tuned = run_python(FAULTS, "tuned")
    if tuned.returncode == 77:
        pytest.skip("the C library is not glibc")
    plain = run_python(FAULTS, "plain")
    for few, many in zip(tuned.stdout.split(), plain.stdout.split(), strict=True):
        assert int(few) * 10 < int(many), (tuned.stdout, plain.stdout)

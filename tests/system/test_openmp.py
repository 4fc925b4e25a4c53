"""The OpenMP wait policy while other programs compete for the cores."""

import os
import subprocess
import sys

import pytest

from nmt.system.openmp import limit_spinning, teams_needed, waited_for_cores
from nmt.system.processes import available_cores

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in (*VARIABLES, "OMP_NUM_THREADS")}


@pytest.mark.parametrize("given", VARIABLES)
def test_a_users_wait_policy_is_kept(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(given, "7")
    limit_spinning()
    assert {name: os.environ[name] for name in VARIABLES if name in os.environ} == {given: "7"}


@pytest.mark.skipif(sys.platform != "linux", reason="waiting cannot be measured elsewhere")
def test_where_waiting_can_be_measured_spinning_is_not_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    limit_spinning()
    assert "GOMP_SPINCOUNT" not in os.environ


@pytest.mark.skipif(sys.platform != "linux", reason="GNU's library")
@pytest.mark.slow
def test_where_waiting_cannot_be_measured_it_is_limited_before_torch_is_loaded() -> None:
    """As the library has read it, through the command line."""
    program = """
import sys
from pathlib import Path
from nmt.system import openmp
from nmt.cli.main import main
openmp.TASKS = Path("nowhere")
sys.argv = ["nmt", "--version"]
try:
    main()
except SystemExit:
    import torch
"""
    environment = {**ENVIRONMENT, "OMP_DISPLAY_ENV": "VERBOSE"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert "GOMP_SPINCOUNT = '1000'" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
def test_time_without_a_core_is_measured() -> None:
    """Two loops that share a core wait for it in turn."""
    program = """
import os, time
from nmt.system.openmp import waited_for_cores
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
other = os.fork()
until = time.monotonic() + 0.6
while time.monotonic() < until:
    pass
if other == 0:
    os._exit(0)
print(waited_for_cores())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 0.1
    assert waited_for_cores() is not None


@pytest.mark.parametrize("num_threads", [2, 3, 4, 16])
@pytest.mark.parametrize("cores", [1, 2, 4, 15, 16, 64])
def test_idle_teams_make_more_threads_than_cores_and_no_more_than_that(num_threads: int, cores: int) -> None:
    added = num_threads - 1  # a team's first thread is not made by the library
    count = teams_needed(num_threads, cores)
    assert num_threads + count * added > cores
    assert count == 1 or num_threads + (count - 1) * added <= cores


@pytest.mark.skipif(sys.platform != "linux" or available_cores() < 2, reason="asks Linux, on two cores")
@pytest.mark.slow
def test_threads_spin_less_while_they_wait_for_a_core_and_compute_the_same() -> None:
    """A second team of threads exists while the time without a core grows, and ends afterwards."""
    program = """
import time
import torch
from nmt.system import openmp

def wait_for(number):
    for _ in range(200):
        if len(list(openmp.TASKS.iterdir())) == number:
            return
        time.sleep(0.05)
    raise SystemExit(f"not {number} threads, but {len(list(openmp.TASKS.iterdir()))}")

openmp.waited_for_cores = lambda: 0.5 * time.perf_counter()  # half of the time
openmp.POLL_SECONDS = 0.05
numbers = torch.randn(512, 512)
torch.set_num_threads(1)
openmp.start_monitor.__wrapped__()
alone = len(list(openmp.TASKS.iterdir()))  # one thread does not wait
torch.set_num_threads(2)
before = numbers @ numbers
wait_for(alone + 1)
openmp.start_monitor()
openmp.start_monitor()
wait_for(alone + 1 + 1 + 2)  # the monitor and the team
assert torch.equal(numbers @ numbers, before)
openmp.waited_for_cores = lambda: 0.0
wait_for(alone + 1 + 1)
assert torch.equal(numbers @ numbers, before)
"""
    done = subprocess.run([sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


ENDS_MEANWHILE = """
import time, torch
import nmt.system.openmp as openmp

zeros = torch.zeros
torch.zeros = lambda size: zeros(1 << 27)  # the start of a team takes long
openmp.BUSY, openmp.POLL_SECONDS = -1, 0.001
torch.set_num_threads(2)
openmp.start_monitor()
time.sleep(0.02)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="waiting cannot be measured elsewhere")
def test_a_process_that_ends_while_a_team_starts_is_not_aborted() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS_MEANWHILE], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")

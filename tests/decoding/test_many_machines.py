"""A corpus translated by several workers, of which one is killed: by shards, and by Ray Data as the page shows it."""

import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "several-gpus.md").read_text(encoding="utf-8")
(RAY,) = re.findall(r"```python\n(import ray\n.*?)```", PAGE, re.DOTALL)
LINES = int(os.environ.get("NMT_LINES", "60000"))
CORPUS = """
import sys, pyarrow, pyarrow.parquet
lines = open("corpus.txt", encoding="utf-8").read().splitlines()
for part in range(0, len(lines), 10_000):
    end = min(part + 10_000, len(lines))
    table = pyarrow.table({"text": lines[part:end], "line": list(range(part, end))})
    pyarrow.parquet.write_table(table, f"corpus/{part:06}.parquet")
"""
TEXT = """
import pyarrow.parquet
table = pyarrow.parquet.read_table("translated").sort_by("line")
with open("translated.txt", "w", encoding="utf-8") as file:
    file.writelines(f"{line}\\n" for line in table["translation"].to_pylist())
"""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(solved: Path) -> bytes:
    """The translations of a corpus by one worker."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(solved)
        random = Random(0)
        lines = [" ".join(random.choices("0123456789", k=random.choice((0, 2, 4, 6, 8)))) for _ in range(LINES)]
        Path("corpus.txt").write_text("".join(f"{line}\n" for line in lines))
        assert nmt("export", "ctranslate2", "--quantization", "float32").wait() == 0
        assert nmt("translate", "--input", "corpus.txt", "--output", "whole.txt").wait() == 0
        return Path("whole.txt").read_bytes()


def nmt(*arguments: str) -> "subprocess.Popen[bytes]":
    """Start a command with one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", "nmt", *arguments], env=environment)


def killed_when(ready: Callable[[], int | None]) -> None:
    """Kill the process as soon as it is there."""
    for _ in range(600):
        if pid := ready():
            os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.1)
    pytest.fail("nothing to kill after a minute")


def test_shards_of_which_one_is_killed_and_started_again(whole: bytes, in_solved: Path) -> None:
    commands = [
        ("translate", "--input", "corpus.txt", "--output", f"part.{shard}", "--shard", f"{shard}/2", "--continue")
        for shard in (1, 2)
    ]
    first, second = (nmt(*command) for command in commands)
    part = Path("part.2.part")
    killed_when(lambda: second.pid if part.exists() and part.stat().st_size > 3 * LINES // 10 else None)
    assert second.wait() == -signal.SIGKILL
    assert nmt(*commands[1]).wait() == first.wait() == 0
    assert Path("part.1").read_bytes() + Path("part.2").read_bytes() == whole


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with Ray, which also finds the packages of this one."""
    folder = tmp_path_factory.mktemp("ray")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "ray[data]"], check=True)
    get = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(get, check=True, capture_output=True, text=True).stdout.strip()
    paths = [Path(__file__).parents[2], sysconfig.get_path("purelib")]
    Path(packages, "beside.pth").write_text("".join(f"{path}\n" for path in paths))
    return python


def test_the_pages_ray_data_of_which_a_worker_is_killed(whole: bytes, ray: Path, in_solved: Path) -> None:
    Path("corpus").mkdir()
    subprocess.run([ray, "-c", CORPUS], check=True)
    script = RAY.replace("/models/en-de", str(in_solved / "runs" / "copy"))
    for page, here in (
        (r"import ray\n", "import ray\nray.init(num_cpus=4)\n"),
        (r"per_block=[\d_]+", "per_block=2000"),
        (r"Strategy\(size=\d+", "Strategy(size=2"),
        (r"num_cpus=\d+, batch", "num_cpus=1, batch"),
    ):
        script, count = re.subn(page, here, script)
        assert count == 1, page
    with subprocess.Popen([ray, "-c", script + TEXT]) as running:
        killed_when(translating_worker)
    assert running.returncode == 0
    assert Path("translated.txt").read_bytes() == whole


def translating_worker() -> int | None:
    """A worker of Ray's that has translated for two seconds."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_worker = process.joinpath("cmdline").read_bytes().startswith(b"ray::MapWorker(MapBatches(Translate)")
            used = process.joinpath("stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if is_worker and int(used[11]) > 2 * os.sysconf("SC_CLK_TCK"):
            return int(process.name)
    return None

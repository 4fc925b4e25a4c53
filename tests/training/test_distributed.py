"""Several processes on one machine, with Gloo: the losses of a single process, one log, one exit."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import ForkServer
from safetensors.torch import load_file

from nmt.config.reading import load_config
from nmt.errors import ConfigError
from nmt.runs.folder import RunFolder, checkpoint_steps, run_named
from nmt.runs.weights import check_checkpoint
from nmt.system.distributed import ALONE, Ranks
from nmt.training.start import train

# As torchrun starts processes, but torch is loaded once, without supervision. `{patch}` runs in each process.
RUNNER = """
import json, os, signal, socket, sys, time
import torch
import nmt.training.trainer as t
from nmt.cli.main import main
from nmt.system.distributed import process_group
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
children = []
for rank in range(2):
    child = os.fork()
    if child == 0:
        os.environ |= dict(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                           MASTER_PORT=str(port))
{patch}
        main()
        os._exit(0)
    children.append(child)
print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))
"""

# Every process saves its weights and their moving average when it ends.
KEEP_WEIGHTS = """
run = t.Trainer.run
def run_and_keep(self):
    run(self)
    averages = (self.averaged or {}).values()
    torch.save([*(parameter.detach() for parameter in self.model.parameters()), *averages], f"weights{rank}.pt")
t.Trainer.run = run_and_keep
"""

# `happening` at step 5 of rank 1.
AT_STEP_5 = """
update = t.Trainer.update
def update_or_not(self, share, num_tokens):
    if self.progress.step == 5 and rank == 1:
        open("failed", "w").close()
        {happening}
    if self.progress.step == 5 and rank == 0:
        {elsewhere}
    update(self, share, num_tokens)
t.Trainer.update = update_or_not
"""


def command(name: str, *overrides: str) -> list[str]:
    return ["train", "copy.yaml", "--name", name, *(part for setting in overrides for part in ("--set", setting))]


class Two:
    """Runs commands in two ranks."""

    def __init__(self, forks: ForkServer) -> None:
        self._forks = forks

    def run(self, arguments: list[str], patch: str = "") -> tuple[list[int], str]:
        """The exit codes and standard error."""
        indented = "".join(f"        {line}\n" for line in patch.splitlines())
        process = self._forks.start(RUNNER.format(patch=indented), *arguments, new_session=True)
        try:
            stdout, stderr = process.communicate(timeout=300)
        finally:
            with contextlib.suppress(ProcessLookupError):  # as expected: the whole group has ended
                os.killpg(process.pid, signal.SIGKILL)
        assert stdout, stderr
        return json.loads(stdout.splitlines()[-1]), stderr

    def trained(self, name: str, *overrides: str, patch: str = "") -> RunFolder:
        codes, stderr = self.run(command(name, *overrides), patch)
        assert codes == [0, 0], stderr
        return run_named(name)


@pytest.fixture
def two(forks: ForkServer, monkeypatch: pytest.MonkeyPatch) -> Two:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return Two(forks)


def trained_by_one(config: Path, name: str, *overrides: str) -> RunFolder:
    run = run_named(name)
    train(load_config(config, overrides), run)
    return run


def records(run: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.metrics_file.read_text(encoding="utf-8").splitlines()]


def assert_same_curve(ours: RunFolder, theirs: RunFolder) -> None:
    """The logs agree record by record, to 1e-5; so do the newest matrices.

    Times are left out, and the planned end, which a part of a training has earlier.
    """
    for of_ours, of_theirs in zip(records(ours), records(theirs), strict=True):
        for key in ("kind", "validation_key", "example"):
            assert of_ours.pop(key, None) == of_theirs.pop(key, None)
        for key in {"seconds", "seconds_left", "total_steps", "tgt_tokens_per_second"} & of_ours.keys():
            del of_ours[key], of_theirs[key]
        assert of_ours == pytest.approx(of_theirs, rel=1e-5, abs=1e-5)
    steps = checkpoint_steps(ours.checkpoints)
    assert steps == checkpoint_steps(theirs.checkpoints)
    places = [check_checkpoint(run.checkpoints / str(steps[-1])) for run in (ours, theirs)]
    assert (places[0].epoch, places[0].batch, places[0].tgt_tokens) == (
        places[1].epoch,
        places[1].batch,
        places[1].tgt_tokens,
    )
    weights = [load_file(run.checkpoints / str(steps[-1]) / "model.safetensors") for run in (ours, theirs)]
    for name, weight in weights[0].items():
        if weight.ndim > 1:  # a key's bias has no effect: its gradient is a rounding error, which Adam amplifies
            torch.testing.assert_close(weight, weights[1][name], rtol=1e-5, atol=1e-5)


# An epoch has 21 batches, so its last update has one, and rank 1 none. With 5, rank 0 has one more in each update.
@pytest.mark.parametrize(
    ("batches", "dropout", "others"),
    [
        (2, 0.0, ["training.batch_parts=2", "training.ema_decay=0.9", "augmentation.fragments=0.3"]),
        pytest.param(5, 0.3, ["training.r_drop=1"], marks=pytest.mark.slow),
    ],
)
def test_two_processes_follow_the_curve_of_one(
    two: Two, copy_task: Path, batches: int, dropout: float, others: list[str]
) -> None:
    settings = [f"training.batches_per_update={batches}", f"model.dropout={dropout}", "training.max_steps=24", *others]
    settings += ["training.validate_every=8", "training.log_every=1"]
    one = trained_by_one(copy_task, "one", *settings)
    ours = two.trained("two", *settings, patch=KEEP_WEIGHTS)
    assert records(one)[-1]["epoch"] > 2
    assert_same_curve(ours, one)
    for first, second in zip(torch.load("weights0.pt"), torch.load("weights1.pt"), strict=True):
        assert torch.equal(first, second)


def test_an_update_in_parts_is_the_same_update(copy_task: Path) -> None:
    settings = ["model.dropout=0", "training.max_steps=12", "training.log_every=1"]
    whole = trained_by_one(copy_task, "whole", *settings)
    parts = trained_by_one(copy_task, "parts", *settings, "training.batch_parts=20")  # some batches have fewer pairs
    assert_same_curve(parts, whole)


@pytest.mark.parametrize("scaler", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_update_that_is_not_finite_in_one_process_is_skipped_by_all(two: Two, copy_task: Path, scaler: bool) -> None:
    patch = KEEP_WEIGHTS + AT_STEP_5.format(
        happening="self.objective.register_forward_hook(lambda module, batch, sums: "
        "sums._replace(smoothed=sums.smoothed * (torch.inf if self.progress.step == 5 else 1)))",
        elsewhere="pass",
    )
    if scaler:
        patch += "t.torch.amp.GradScaler = lambda device, enabled: torch.GradScaler('cpu', init_scale=8)\n"
    run = two.trained("run", "training.batches_per_update=2", patch=patch)
    assert [record["skipped_updates"] for record in records(run) if record["kind"] == "train"] == [0, 1, 0, 0]
    for first, second in zip(torch.load("weights0.pt"), torch.load("weights1.pt"), strict=True):
        assert torch.equal(first, second)
        assert first.isfinite().all()


@pytest.mark.slow
def test_a_run_resumes_with_fewer_and_with_more_processes(two: Two, copy_task: Path) -> None:
    settings = ["training.batches_per_update=2", "training.max_steps=24"]  # step 12 is inside the second epoch
    first_half = "training.max_steps=12"
    straight = trained_by_one(copy_task, "straight", *settings)
    two.trained("fewer", *settings, first_half)
    assert_same_curve(trained_by_one(copy_task, "fewer", *settings), straight)
    trained_by_one(copy_task, "more", *settings, first_half)
    assert_same_curve(two.trained("more", *settings), straight)


@pytest.mark.slow
def test_a_run_of_one_process_and_one_batch_an_update_resumes_on_two(two: Two, copy_task: Path) -> None:
    settings = ["training.batch_tokens=2000", "training.max_steps=24", "model.dropout=0"]
    straight = trained_by_one(copy_task, "straight", *settings)
    trained_by_one(copy_task, "cut", *settings, "training.max_steps=12")
    resumed = two.trained("cut", *settings)
    assert resumed.config().training.batch_parts == 2
    assert_same_curve(resumed, straight)
    again = trained_by_one(copy_task, "cut", *settings, "training.max_steps=30")  # with the recorded parts
    assert again.config().training.batch_parts == 2


@pytest.mark.parametrize(
    ("happening", "elsewhere", "codes", "message"),
    [
        ("raise t.TrainingError('enough')", "pass", [3, 3], "nmt: process 1 of 2: enough"),
        ("raise t.TrainingError('enough')", "time.sleep(90)", [3, 3], "nmt: process 1 of 2: enough"),
        ("raise ValueError('a bug')", "pass", [1, 1], "ValueError: a bug"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "pass", [3, -9], "nmt: another process died without an error message"),
    ],
)
@pytest.mark.slow
def test_a_process_that_fails_ends_all_with_its_message(
    two: Two, copy_task: Path, happening: str, elsewhere: str, codes: list[int], message: str
) -> None:
    patch = AT_STEP_5.format(happening=happening, elsewhere=elsewhere)
    found, stderr = two.run(command("run", "training.batches_per_update=2"), patch)
    assert time.time() - Path("failed").stat().st_mtime < 60
    assert found == codes, stderr
    assert stderr.count(message) == 1
    assert stderr.count("Traceback") == (1 if "bug" in message else 0)


def test_a_mistake_of_the_user_is_reported_once(two: Two, copy_task: Path) -> None:
    codes, stderr = two.run(command("run", "training.batches_per_update=2", "training.precision=fp16"))
    assert codes == [2, 2]
    assert stderr.count("nmt: training.precision: fp16 is for GPUs") == stderr.count("nmt: ") == 1
    assert not Path("runs/run/metrics.jsonl").exists()


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all_and_is_saved(two: Two, copy_task: Path) -> None:
    settings = ["training.batches_per_update=2"]
    patch = AT_STEP_5.format(happening="os.kill(os.getpid(), signal.SIGTERM)", elsewhere="pass")
    codes, stderr = two.run(command("run", *settings), patch)
    assert codes == [143, 143]
    assert stderr.count("stopped by SIGTERM at step 6; saved") == 1
    assert checkpoint_steps(Path("runs/run/checkpoints")) == [6]
    assert check_checkpoint(Path("runs/run/checkpoints/6")).validated_step == 0  # a validation is due, and takes long
    assert_same_curve(trained_by_one(copy_task, "run", *settings), trained_by_one(copy_task, "straight", *settings))


@pytest.mark.slow
def test_torchrun_forwards_a_signal(copy_task: Path) -> None:
    arguments = command("run", "training.batches_per_update=2", "training.max_steps=5000")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "nmt"]
    process = subprocess.Popen([*launcher, *arguments], stderr=subprocess.PIPE, text=True)
    metrics = Path("runs/run/metrics.jsonl")
    while process.poll() is None and not (metrics.exists() and '"step": 9' in metrics.read_text()):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=300)
    assert stderr.count("stopped by SIGTERM") == 1, stderr
    saved = checkpoint_steps(Path("runs/run/checkpoints"))[-1]
    assert 9 <= saved < 5000
    run = trained_by_one(copy_task, "run", "training.batches_per_update=2", f"training.max_steps={saved + 3}")
    assert records(run)[-1]["step"] == saved + 3
    steps = [record["step"] for record in records(run) if record["kind"] == "train"]
    assert steps == sorted(set(steps))


@pytest.mark.slow
def test_two_machines_follow_the_curve_of_one_process(copy_task: Path) -> None:
    """Each launcher is a machine's; both meet at the first one's port, as in a Slurm job."""
    settings = ["training.batches_per_update=2", "model.dropout=0", "training.max_steps=12", "training.log_every=1"]
    one = trained_by_one(copy_task, "one", *settings)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", "--rdzv-id=job", "--local-addr=localhost"]
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes=2",
        "--nproc-per-node=1",
        *meeting,
        "-m",
        "nmt",
    ]
    machines = [subprocess.Popen([*launcher, *command("two", *settings)], stderr=subprocess.PIPE) for _ in range(2)]
    messages = [machine.communicate(timeout=300)[1].decode() for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], messages
    spoken = "".join(messages)  # one speaks for both; a launcher that ends last may warn that the other has left
    assert spoken.count("step 12  epoch") == spoken.count("finished: ") == 1, messages
    assert_same_curve(run_named("two"), one)


@pytest.mark.slow
def test_all_stop_together_by_patience_and_by_the_clock_of_the_first(two: Two, copy_task: Path) -> None:
    run = two.trained(
        "patience", "training.batches_per_update=2", "training.max_steps=1000", "training.validate_every=2",
        "training.patience=3", "training.learning_rate=0.3", "training.schedule=constant", "training.warmup_steps=0",
    )  # fmt: skip
    values = [record["bleu"] for record in records(run) if record["kind"] == "validation"]
    assert len(values) == values.index(max(values)) + 4 < 500
    faster = "clock = time.perf_counter\nt.time.perf_counter = lambda: clock() * (1 + 99 * rank)\n"
    limits = ["training.batches_per_update=2", "training.max_steps=null", "training.max_minutes=0.02"]
    clock = two.trained("clock", *limits, patch=faster)
    progress = check_checkpoint(clock.checkpoints / str(checkpoint_steps(clock.checkpoints)[-1]))
    assert progress.seconds >= 1.2


def test_exchanges_between_processes(two: Two, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = """
with process_group() as ranks:
    items = [f"item {number}" for number in range(5)]
    assert ranks.share(items) == items[rank::2]
    assert ranks.gather(ranks.share(items)) == items
    assert ranks.gather([]) == []
    assert ranks.sum([1.0, rank]) == [2.0, 1.0]
    assert ranks.from_main(lambda: {"made by": rank}) == {"made by": 0}
    with ranks.main_first():
        assert (rank == 0) != os.path.exists("made")
        if rank == 0:
            time.sleep(0.3)
            open("made", "w").close()
os._exit(0)
"""
    codes, stderr = two.run([], program)
    assert codes == [0, 0], stderr


def test_one_process_exchanges_nothing() -> None:
    assert ALONE.is_main
    assert ALONE.gather(ALONE.share([1, 2, 3])) == [1, 2, 3]
    assert ALONE.sum([2.0]) == [2.0]
    assert ALONE.from_main(lambda: 5) == 5
    assert ALONE.device(torch.device("cuda:3")) == torch.device("cuda:3")
    module = torch.nn.Linear(1, 1)
    assert ALONE.synchronised(module, torch.device("cpu")) is module
    assert not torch.distributed.is_initialized()


def test_an_update_needs_a_batch_for_every_process(copy_task: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"batches_per_update \(2\) .* 3 processes.* set training\.batches_per_update=3"
    ):
        train(load_config(copy_task, ["training.batches_per_update=2"]), run_named("run"), ranks=Ranks(0, 3))
    assert not Path("runs").exists()


def test_each_process_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert Ranks(5, 8, local_rank=1).device(torch.device("cuda")) == torch.device("cuda:1")
    assert chosen == [torch.device("cuda:1")]
    assert Ranks(1, 2, local_rank=1).device(torch.device("cpu")) == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"has 2 GPUs .* --nproc-per-node=2"):
        Ranks(2, 3, local_rank=2).device(torch.device("cuda"))
    for shared in ("cuda:0", "mps"):
        with pytest.raises(ConfigError, match=r"set training\.device=cuda or cpu"):
            Ranks(1, 2, local_rank=1).device(torch.device(shared))


def test_half_an_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from nmt.system.distributed import process_group

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match="RANK is not set; start with torchrun"), process_group():
        pass


# A program with a loader of 40 batches that a worker makes; what it does with them follows.
LOADER = """
import multiprocessing, multiprocessing.forkserver, os, signal, time
import numpy as np, torch
import nmt.batches.batches as batches
from nmt.tokenizers.vocabulary import OWN_SPECIAL_IDS

class Side:
    special = OWN_SPECIAL_IDS

    def gather(self, pairs):
        return np.array([4]), np.array([1])

class Corpus:
    src = tgt = Side()

def unchanged(number, src, tgt):
    return batches.Augmented(src, tgt, tgt[0])

corpus = Corpus()

def loader():
    return iter(batches.batch_loader(corpus, [np.array([0])] * 40, torch.device("cpu"), augmentation=unchanged))
"""


@pytest.mark.slow
def test_a_signal_to_the_whole_group_does_not_end_the_loaders(tmp_path: Path) -> None:
    program = """
def main():
    signal.signal(signal.SIGTERM, lambda number, frame: print("signalled"))
    batches = loader()
    next(batches)
    os.killpg(0, signal.SIGTERM)
    time.sleep(0.3)
    server = multiprocessing.forkserver._forkserver._forkserver_pid
    print(os.waitpid(server, os.WNOHANG)[0])  # 0: it is running; otherwise the workers would end within seconds
    print(sum(1 for batch in batches))
    corpus.src = None
    next(loader())  # raises an error

if __name__ == "__main__":
    main()
"""
    (tmp_path / "program.py").write_text(LOADER + program, encoding="utf-8")
    result = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, start_new_session=True, timeout=60
    )
    assert result.stdout.split() == ["signalled", "0", "39"], result.stderr
    assert "'NoneType' object has no attribute 'gather'" in result.stderr


@pytest.mark.slow
def test_the_workers_of_a_trainer_that_is_killed_end_too(tmp_path: Path) -> None:
    """They hold the other end of its output, which closes when the last of them has ended."""
    program = """
if __name__ == "__main__":
    batches = loader()
    next(batches)
    print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    (tmp_path / "program.py").write_text(LOADER + program, encoding="utf-8")
    with subprocess.Popen([sys.executable, tmp_path / "program.py"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        closed = threading.Thread(target=process.stdout.read, daemon=True)
        closed.start()
        closed.join(timeout=20)
        ended = not closed.is_alive()
        if not ended:
            os.kill(worker, signal.SIGKILL)
    assert ended
    assert process.returncode == -signal.SIGKILL

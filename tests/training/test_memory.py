"""Memory: counts against sums by hand, trying the worst batch, and fitting the batch size to the free memory."""

import os
import re
import subprocess
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import cpu_flags
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import nmt.system.processes
import nmt.training.preflight
from nmt.batches.augmentation import MaxBatchShape, max_batch_shape
from nmt.batches.batches import Batch, plan_epoch
from nmt.batches.dataset import EncodedCorpus
from nmt.config.inference import TransformerConfig
from nmt.config.reading import load_config
from nmt.config.training import AugmentationConfig, Config
from nmt.errors import RunError, TrainingError
from nmt.models.factory import build_model
from nmt.runs.folder import RunFolder, run_named
from nmt.system.devices import keep_freed_memory
from nmt.training.loss import LossSums, Objective, chunk_rows, logits_bytes
from nmt.training.memory import USABLE, fit_batch_tokens, free_memory, try_batch, try_worst_batch, worst_batch
from nmt.training.start import train

FP32 = torch.float32


def corpus_of(*lengths: tuple[int, int]) -> EncodedCorpus:
    """A corpus as the memory estimate sees it: the lengths of both sides."""
    src, tgt = np.array(lengths).T
    return SimpleNamespace(src=SimpleNamespace(lengths=src, features=0), tgt=SimpleNamespace(lengths=tgt))


def limits_of(*lengths: tuple[int, int]) -> MaxBatchShape:
    return max_batch_shape(corpus_of(*lengths), AugmentationConfig(), max_length=1000)


def small_objective(dropout: float = 0.1) -> Objective:
    config = TransformerConfig(
        d_model=32, num_heads=4, d_ff=64, num_encoder_layers=2, num_decoder_layers=2, dropout=dropout
    )
    return Objective(build_model(config, 300, 300), 0.1)


class OfOneParameter(Objective):
    """sum(exp(w x)) over the target positions: the product saves x, exp its result, the sum nothing."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.model = nn.Module()  # type: ignore[assignment]
        self.model.output = nn.Linear(1, 100, bias=False)
        self.model.output.weight.data.fill_(0.01)

    def forward(self, batch: Batch) -> LossSums:
        x = batch.tgt_out.float()
        value = (x * self.model.output.weight[0, 0]).exp().sum()
        return LossSums(value, value.detach())


def test_the_account_is_a_sum_by_hand() -> None:
    batch = worst_batch(limits_of((4, 9)), 1000)  # 100 pairs of 10
    account = try_batch(OfOneParameter(), batch, FP32)
    assert account.batch == "100 pairs of 10 pieces"
    assert account.parameters == account.gradients == 400
    assert account.optimizer == 800
    assert account.activations == 2 * 1000 * 4
    assert account.logits == 1000 * 100 * 4
    assert account.total == 400 + 400 + 800 + round(1.25 * 8000) + account.logits


class KeepsOneThingTwice(OfOneParameter):
    def forward(self, batch: Batch) -> LossSums:
        x, weight = batch.tgt_out.float(), self.model.output.weight[0, 0]
        value = (x * weight).sum() + (x * weight * 2).sum()
        return LossSums(value, value.detach())


def test_a_tensor_kept_by_several_operations_counts_once() -> None:
    batch = worst_batch(limits_of((4, 9)), 1000)
    assert try_batch(KeepsOneThingTwice(), batch, FP32).activations == 1000 * 4


def test_logits_are_those_of_a_chunk() -> None:
    cpu = torch.device("cpu")
    assert logits_bytes(10, 8000, cpu) == 10 * 8000 * 4
    assert logits_bytes(10**6, 8000, cpu) == chunk_rows(8000, cpu) * 8000 * 4 < 20e6


@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=60),
    batch_tokens=st.integers(41, 400),
    epoch=st.integers(0, 2),
)
def test_no_batch_of_a_plan_is_worse_than_the_worst(
    lengths: list[tuple[int, int]], batch_tokens: int, epoch: int
) -> None:
    batch = worst_batch(limits_of(*lengths), batch_tokens)
    rows, width = batch.tgt_out.shape
    assert batch.source.values.shape == batch.tgt_in.shape == (rows, width)
    assert batch.source.mask.all()
    assert len(batch.tgt_positions) == rows * width <= batch_tokens
    src, tgt = np.array(lengths).T
    for pairs in plan_epoch(src, tgt, batch_tokens, 0, epoch):
        widest = 1 + max(src[pairs].max(), tgt[pairs].max())
        assert widest <= width
        assert len(pairs) * widest < (rows + 1) * width  # another row of the widest would not have fitted


def test_twice_the_pairs_keep_twice_the_activations() -> None:
    objective, batches = small_objective(), limits_of((9, 9))
    half, whole = (try_batch(objective, worst_batch(batches, size), FP32).activations for size in (500, 1000))
    assert whole == pytest.approx(2 * half, rel=0.02)  # except the table of positions and the masks


def test_trying_the_worst_batch_changes_no_state() -> None:
    objective = small_objective()
    before = [parameter.clone() for parameter in objective.parameters()]
    try_batch(objective, worst_batch(limits_of((9, 9)), 200), FP32)
    assert all(map(torch.equal, before, objective.parameters()))
    assert all(parameter.grad is None for parameter in objective.parameters())


@pytest.mark.parametrize("free", [4_000_000, 20_000_000])
def test_the_size_found_fits_and_little_more_would(free: int) -> None:
    objective, batches = small_objective(), limits_of((9, 9), (3, 2))
    found = fit_batch_tokens(objective, batches, FP32, free, update_tokens=10**6)
    assert USABLE * 0.8 * free < try_worst_batch(objective, batches, found, FP32, free).total < free
    with pytest.raises(TrainingError, match=r"does not fit into the .* of free memory; lower training\.batch_tokens"):
        try_worst_batch(objective, batches, round(1.3 * found), FP32, free)


def test_an_update_that_fits_is_not_split() -> None:
    assert fit_batch_tokens(small_objective(), limits_of((9, 9)), FP32, 10**9, update_tokens=997) == 997
    assert fit_batch_tokens(small_objective(), limits_of((9, 9)), FP32, None, update_tokens=997) == 997


class Limited(Objective):
    """Runs out of memory above some number of positions, like a GPU that other programs use too."""

    limit = 500

    def forward(self, batch: Batch) -> LossSums:
        if batch.tgt_out.numel() > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")
        return super().forward(batch)


def test_a_size_that_fails_is_made_smaller_until_one_does_not() -> None:
    objective = Limited(small_objective().model, 0.1)
    found = fit_batch_tokens(objective, limits_of((9, 9)), FP32, 10**12, update_tokens=5000)
    assert 0.75 * objective.limit < found < objective.limit + 10
    with pytest.raises(TrainingError, match=r"500 pairs of 10 pieces, does not fit into the memory of cpu; lower"):
        try_worst_batch(objective, limits_of((9, 9)), 5000, FP32, None)


def test_if_not_even_one_pair_fits_the_model_is_too_large() -> None:
    with pytest.raises(TrainingError, match=r"1 pairs of 10 pieces.*or use a smaller model"):
        fit_batch_tokens(small_objective(), limits_of((9, 9)), FP32, 200_000, update_tokens=5000)


def test_other_errors_are_not_reported_as_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Objective, batch: Batch) -> LossSums:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(Objective, "forward", fails)
    with pytest.raises(RuntimeError, match="shapes"):
        try_batch(small_objective(), worst_batch(limits_of((9, 9)), 100), FP32)


def trained(config: Path, *overrides: str) -> RunFolder:
    run = run_named("run")
    train(load_config(config, overrides), run)
    return run


AUTO = ("training.batch_tokens=auto", "training.update_tokens=600", "training.max_steps=4")


def test_a_run_finds_its_batches_and_a_resume_keeps_them(
    copy_task: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nmt.training.preflight, "fit_batch_tokens", lambda *arguments: 250)
    found: Config = trained(copy_task, *AUTO).config()  # 600 in two batches would be 300 each
    assert (found.training.batch_tokens, found.training.batches_per_update) == (200, 3)
    assert "memory " in capsys.readouterr().err

    def not_again(*arguments: object) -> int:
        raise AssertionError("a resumed run was fitted again")

    monkeypatch.setattr(nmt.training.preflight, "fit_batch_tokens", not_again)
    assert trained(copy_task, *AUTO, "training.max_steps=6").config().training.batch_tokens == 200
    with pytest.raises(RunError, match=r"  training\.batch_tokens: 200, not auto"):
        trained(copy_task, *AUTO, "training.update_tokens=700", "training.max_steps=8")


def test_too_little_memory_is_reported_before_the_first_step(copy_task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nmt.training.preflight, "free_memory", lambda device: 300_000)
    with pytest.raises(TrainingError, match=r"the worst batch, \d+ pairs of \d+ pieces, does not fit into the 300 kB"):
        trained(copy_task)
    assert not (Path("runs/run") / "metrics.jsonl").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
def test_free_memory_is_the_kernels_figure() -> None:
    free = free_memory(torch.device("cpu"))
    assert free is not None
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    assert 0 < free < 1024 * int(total.split()[1])
    assert limits_of((3, 7), (5, 2)).width == 8


@pytest.mark.parametrize(
    ("own", "group", "files"),
    [
        ("0::/", "", ("memory.max", "memory.current", "inactive_file")),
        ("0::/app.slice/job.scope", "app.slice", ("memory.max", "memory.current", "inactive_file")),
        ("0::/docker/4f1", "", ("memory.max", "memory.current", "inactive_file")),  # a path on the host
        (
            "4:cpu,memory:/jobs/7\n0::/",
            "memory/jobs/7",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
)
def test_a_containers_page_cache_is_free_memory(
    own: str, group: str, files: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 MB, 15.9 of them in use, but 14.8 as the cache of files; emulated."""
    (tmp_path / "own").write_text(f"9:name=systemd:/\n{own}\n")
    (tmp_path / group).mkdir(parents=True, exist_ok=True)
    limit, used, cache = files
    for name, text in ((limit, "16000000"), (used, "15900000"), ("memory.stat", f"anon 1100000\n{cache} 14800000")):
        (tmp_path / group / name).write_text(f"{text}\n")
    monkeypatch.setattr(nmt.system.processes, "GROUPS", tmp_path)
    monkeypatch.setattr(nmt.system.processes, "OWN_GROUPS", tmp_path / "own")
    assert free_memory(torch.device("cpu")) == 14_900_000


PAGE_FAULTS = """
import resource, sys, torch
from nmt.system.devices import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
x = torch.ones(16_000_000)
faults = []
for _ in range(20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    x + 1
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sum(count > 1000 for count in faults))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
def test_freed_memory_is_kept() -> None:
    def times_mapped(how: str) -> int:
        return int(subprocess.run([sys.executable, "-c", PAGE_FAULTS, how], capture_output=True, check=True).stdout)

    # If kept, 64 MB are new memory until the heap has a free block of that size.
    assert times_mapped("keep") <= 10
    assert times_mapped("leave") == 20


# Started by a small process: a new one counts the memory of the process that starts it.
MAXIMUM_MEMORY = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or "avx512_bf16" not in cpu_flags(), reason="slow without bf16")
def test_a_training_in_bf16_takes_the_memory_that_it_announces(copy_task: Path) -> None:
    """The most that the kernel has seen of a process whose batches have 100 shapes, against its line."""
    random = Random(1)
    lines = [" ".join(random.choices("0123456789", k=random.randint(2, 50))) for _ in range(3000)]
    for side in ("en", "de"):
        Path(f"train.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    keys = ["precision=bf16", "batch_tokens=4000", "validate_every=1000", "max_steps=80"]
    sets = ["--set", "data.max_length=60", "--set", "model.d_model=64"]
    command = [sys.executable, "-m", "nmt", "train", "copy.yaml", *sets]
    for key in keys:
        command += ["--set", f"training.{key}"]
    ours = {"LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"}
    environment = {key: value for key, value in os.environ.items() if key not in ours}
    done = subprocess.run(
        [sys.executable, "-c", MAXIMUM_MEMORY, *command], capture_output=True, text=True, env=environment
    )
    announced = re.search(r"^memory +([\d.]+) ([MG])B: program \d+ MB", done.stderr, re.MULTILINE)
    assert announced, done.stderr
    assert done.returncode == 0
    size = float(announced[1]) * {"M": 1e6, "G": 1e9}[announced[2]]
    assert size / 1.3 < 1024 * int(done.stdout) < 1.3 * size


class Glibc:
    """The thresholds of glibc's malloc, and which sizes of a mapping its `mallopt` accepts."""

    def __init__(self, largest: int) -> None:
        self.largest, self.is_dynamic = largest, True
        self.trim = self.mmap = 128 << 10

    def mallopt(self, option: int, value: int) -> int:
        if option == -3 and value > self.largest:
            return 0
        self.is_dynamic = False
        setattr(self, {-1: "trim", -3: "mmap"}[option], value)
        return 1


@pytest.mark.skipif(sys.platform != "linux", reason="GNU's library")
@pytest.mark.parametrize(
    ("largest", "dynamic", "mmap"),
    [(2**62, False, 2**30), (2**25, False, 2**25), (2**16, True, 2**17)],  # glibc now; before 2.35; none known
)
def test_an_older_glibc_keeps_freed_memory_or_its_own_rule(
    largest: int, dynamic: bool, mmap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Emulated: with its own rule switched off and 128 KB left as the limit, every tensor would be mapped anew."""
    library = Glibc(largest)
    monkeypatch.setattr("nmt.system.devices.ctypes.CDLL", lambda name: library)
    keep_freed_memory()
    assert (library.is_dynamic, library.mmap) == (dynamic, mmap)
    assert library.trim == (2**17 if dynamic else 2**30)


def test_half_precision_keeps_fewer_bytes() -> None:
    objective: Objective = small_objective(dropout=0.0)
    batch = worst_batch(limits_of((9, 9)), 1000)
    full: Tensor | int = try_batch(objective, batch, FP32).activations
    assert try_batch(objective, batch, torch.bfloat16).activations < full

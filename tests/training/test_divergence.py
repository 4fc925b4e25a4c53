"""Detected problems of a training: before its first step, at each logging interval, and when memory runs out."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import nmt.training.trainer
from nmt.config.reading import load_config
from nmt.errors import DataError, NmtError, TrainingError, is_out_of_memory
from nmt.runs.folder import RunFolder, checkpoint_steps, run_named
from nmt.runs.weights import check_checkpoint
from nmt.system.devices import bf16_slowdown
from nmt.tokenizers.tokenizer import load_tokenizers
from nmt.training.feeding import Share
from nmt.training.start import train
from nmt.training.trainer import Trainer
from tests.conftest import Cli, cpu_flags


def trained(config: Path, name: str, *overrides: str, dry_run: bool = False) -> RunFolder:
    run = run_named(name)
    train(load_config(config, overrides), run, dry_run=dry_run)
    return run


def records(run: RunFolder, kind: str) -> list[dict[str, Any]]:
    lines = run.metrics_file.read_text(encoding="utf-8").splitlines()
    return [record for line in lines if (record := json.loads(line))["kind"] == kind]


def with_infinite_gradients(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> dict[int, Share]:
    """The updates `steps` get a gradient that is not finite; returns the source lines of every update."""
    shares: dict[int, Share] = {}
    update, take = nmt.training.trainer.clip_and_step, Trainer.update

    def infinite(optimizer: torch.optim.Optimizer, *arguments: Any) -> torch.Tensor:
        if len(shares) in steps:
            gradient = optimizer.param_groups[0]["params"][0].grad
            gradient[0, 0] = math.inf
        return update(optimizer, *arguments)  # type: ignore[arg-type]

    def taking(self: Trainer, share: Share, num_tokens: int) -> None:
        shares[len(shares) + 1] = share
        take(self, share, num_tokens)

    monkeypatch.setattr(nmt.training.trainer, "clip_and_step", infinite)
    monkeypatch.setattr(Trainer, "update", taking)
    return shares


def put_empty_lines(copy_task: Path) -> list[str]:
    """Some pairs are left out, so that pair and line numbers differ; returns the source's lines."""
    lines = copy_task.with_name("train.en").read_text().splitlines()
    for index in (0, 3, 4, 100, 101, 700):
        lines.insert(index, "")
    for side in ("en", "de"):
        copy_task.with_name(f"train.{side}").write_text("".join(f"{line}\n" for line in lines))
    return lines


def sources(share: Share, run: RunFolder) -> list[str]:
    """The source lines of all of a share's batches, decoded from their ids."""
    tokenizer = load_tokenizers(run.tokenizer).src
    return sorted(tokenizer.decode(row) for batch in share.batches for row in batch.source.values.tolist())


def test_a_skipped_update_is_reported_with_its_lines(
    copy_task: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = put_empty_lines(copy_task)
    shares = with_infinite_gradients(monkeypatch, {4})
    run = trained(copy_task, "run", "training.batches_per_update=2")
    (record,) = records(run, "skipped")
    ((path, numbers),) = record["lines"].items()
    assert (record["step"], path) == (4, str(copy_task.with_name("train.en")))
    assert sorted(lines[number - 1] for number in numbers) == sources(shares[4], run)
    assert [of_one["skipped_updates"] for of_one in records(run, "train")] == [0, 1, 0, 0]
    err = capsys.readouterr().err
    assert f"step 4: skipped, its gradient is not finite; its pairs: {path}: lines {numbers[0]}, {numbers[1]}," in err
    assert f" and {len(numbers) - 10:,} more\n" in err


def test_n_skipped_updates_in_a_row_end_a_training_with_a_diagnosis(
    copy_task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["training.max_steps=100", "training.log_every=2"]
    monkeypatch.setattr("nmt.training.divergence.MAX_SKIPPED", 4)
    with_infinite_gradients(monkeypatch, {1, 2, 3, *range(8, 100)})
    with pytest.raises(TrainingError, match=r"gradients of the last 5 updates are not finite") as error:
        trained(copy_task, "run", *settings)  # it is checked at logging intervals: after 12, not after 11
    run = run_named("run")
    assert error.value.exit_code == 3
    assert "runs/run/diagnosis.json" in str(error.value)
    assert "--name run-2" in str(error.value)
    assert checkpoint_steps(run.checkpoints) == [6, 12][:1]
    diagnosis = json.loads(run.diagnosis_file.read_text())
    assert [skipped["step"] for skipped in records(run, "skipped")] == [1, 2, 3, 8, 9, 10, 11, 12]
    assert diagnosis["step"] == records(run, "train")[-1]["step"] == 12
    assert diagnosis["weights"]["src_embedding.weight"]["not_finite"] == 0
    # The cause has not been removed, so the same command ends the same way.
    with pytest.raises(TrainingError, match="gradients of the last"):
        trained(copy_task, "run", *settings)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_an_interval_whose_updates_were_all_skipped_has_no_loss(
    copy_task: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_terminal: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    with_infinite_gradients(monkeypatch, {4, 5, 6, 8})
    run = trained(copy_task, "run")
    first, skipped, partly, last = records(run, "train")  # an interval of three updates each
    assert [skipped[key] for key in ("loss", "smoothed_loss", "grad_norm")] == [None, None, None]
    assert (skipped["updates"], skipped["skipped_updates"], skipped["step"]) == (3, 3, 6)
    assert all(0 < record["loss"] < 2 * math.log(14) for record in (first, partly, last))
    err = capsys.readouterr().err
    assert ", loss -, tokens/s " in err if is_terminal else "\nstep 6  epoch 1  loss -  lr 6" in err
    assert "0.000" not in err
    progress = check_checkpoint(run.checkpoints / "12")
    assert progress.lowest_loss == min(record["loss"] for record in (first, partly, last))


def test_skipped_updates_in_a_row_are_counted_across_a_resume(copy_task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ["training.log_every=20"]
    monkeypatch.setattr("nmt.training.divergence.MAX_SKIPPED", 5)
    shares = with_infinite_gradients(monkeypatch, set(range(4, 100)))
    trained(copy_task, "run", *settings, "training.max_steps=6")
    assert len(shares) == 6
    with pytest.raises(TrainingError, match=r"gradients of the last 17 updates"):  # 3 before, 14 after
        trained(copy_task, "run", *settings, "training.max_steps=100")


def test_a_loss_that_explodes_ends_a_training(copy_task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Trainer.update

    def exploding(self: Trainer, *arguments: Any) -> None:
        if self.progress.step == 9:
            with torch.no_grad():
                self.model.output.weight *= 100
        original(self, *arguments)

    monkeypatch.setattr(Trainer, "update", exploding)
    with pytest.raises(TrainingError, match="the loss has exploded") as error:
        trained(copy_task, "run", "training.max_steps=30")
    run = run_named("run")
    before, after = (record["loss"] for record in records(run, "train")[-2:])
    assert after > before + math.log(14) / 2
    assert f"{after:.2f}, where it was {before:.2f} before, at step 12" in str(error.value)
    assert checkpoint_steps(run.checkpoints) == [6]
    assert json.loads(run.diagnosis_file.read_text())["weights"]["src_embedding.weight"]["largest"] > 10


@pytest.mark.parametrize(
    "message",
    [
        "MPS backend out of memory (MPS allocated: 15.72 GiB, other allocations: 2.41 MiB, max allowed: 18.13 GiB). "
        "Tried to allocate 5.81 GiB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit "
        "for memory allocations (may cause system failure).",
        "MPS backend out of memory (MPS allocated: 15.72 GiB, other allocations: 2.41 MiB). Tried to allocate 5.81 GiB "
        "on shared pool.",
        "Invalid buffer size: 19.45 GiB",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA failed with error out of memory",
        "[enforce fail at alloc_cpu.cpp:127] data. DefaultCPUAllocator: not enough memory: you tried to allocate "
        "4503599627370496 bytes.",
        "std::bad_alloc",
    ],
)
def test_out_of_memory_is_recognised_by_torchs_and_ctranslate2s_messages(message: str) -> None:
    """Messages of Apple's GPU, NVIDIA's (two of its libraries, CTranslate2), and of a CPU under Windows and in C++."""
    assert is_out_of_memory(RuntimeError(message))


def test_out_of_memory_is_recognised_on_this_machine_and_other_errors_are_not() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**50)
    assert is_out_of_memory(error.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("tried to allocate 5 TB"))
    for other in ("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)", "could not create a primitive"):
        assert not is_out_of_memory(RuntimeError(other))


def test_memory_that_runs_out_names_shapes_lines_and_the_setting(
    copy_task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = put_empty_lines(copy_task)
    shares = with_infinite_gradients(monkeypatch, set())
    original = Trainer._forward_backward

    def full(self: Trainer, *arguments: Any) -> Any:
        if self.progress.step == 4:

            def no_memory(batch: object, scale: object) -> None:
                raise torch.OutOfMemoryError("tried to allocate 5 TB")

            monkeypatch.setattr(self, "synchronised", no_memory)
        return original(self, *arguments)

    monkeypatch.setattr(Trainer, "_forward_backward", full)
    with pytest.raises(TrainingError, match=r"out of memory in step 5") as error:
        trained(copy_task, "run")
    (batch,) = shares[5].batches
    rows, length = batch.source.values.shape
    message = str(error.value)
    assert f"{rows} pairs of {length} and {batch.tgt_in.shape[1]} pieces" in message
    assert "lower training.batch_tokens (400)" in message
    first = int(message.partition("train.en: lines ")[2].partition(",")[0])
    assert lines[first - 1] in sources(shares[5], run_named("run"))


# Before the first step -----------------------------------------------------------------------------------------------


def snapshot() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def test_a_dry_run_tries_everything_and_trains_nothing(copy_task: Path, cli: Cli) -> None:
    code, out, err = cli("train", "copy.yaml", "--dry-run")
    assert (code, out) == (0, "")
    assert "dry run: everything works; nothing was trained" in err
    assert "model       21,952 parameters" in err
    assert sorted(path.name for path in Path("runs/copy").iterdir()) == ["tokenizer"]
    assert cli("train", "copy.yaml")[0] == 0
    before = snapshot()
    assert cli("train", "copy.yaml", "--dry-run", "--set", "training.max_steps=24")[0] == 0
    assert snapshot() == before
    assert cli("train", "copy.yaml", "--dry-run", "--fresh")[0] == 2
    assert cli("train", "copy.yaml", "--dry-run", "--set", "model.d_model=64")[0] == 2
    assert snapshot() == before


def test_all_problems_are_reported_at_once(copy_task: Path) -> None:
    copy_task.with_name("val.de").write_text("1 2\n")
    with pytest.raises(NmtError) as error:
        trained(
            copy_task, "run", "training.device=cuda:7", "data.test={one: {src: no.en, tgt: no.de}}",
            "data.train=[{src: train.en, tgt: test.de}, {src: absent.en, tgt: train.de}]",
        )  # fmt: skip
    lines = str(error.value).splitlines()
    assert len(lines) == 5
    for line, part in zip(
        lines,
        ("cuda:7", "val.en has 50 lines", "no.en: no such file", "the two sides differ", "absent.en"),
        strict=True,
    ):
        assert part in line
    assert error.value.exit_code == 2
    assert [path.name for path in Path("runs").iterdir()] == [".run.lock"]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("nmt.training.preflight.evaluate", "translating fails"),
        ("nmt.training.preflight.save_checkpoint", "saving fails"),
        ("nmt.training.preflight.try_worst_batch", "the worst batch fails"),
    ],
)
def test_later_failures_are_found_before_the_first_step(
    copy_task: Path, monkeypatch: pytest.MonkeyPatch, what: str, message: str
) -> None:
    def failing(*arguments: object) -> None:
        raise DataError(message)

    monkeypatch.setattr(what, failing)
    with pytest.raises(DataError, match=f"^{message}$"):
        trained(copy_task, "run")
    assert not run_named("run").metrics_file.exists()


def warnings(copy_task: Path, capsys: pytest.CaptureFixture[str], *overrides: str) -> list[str]:
    trained(copy_task, "run", *overrides, dry_run=True)
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]


def reversed_targets(copy_task: Path) -> None:
    """Targets that differ from their sources, so that there are no warnings."""
    for name in ("train", "val", "test"):
        lines = copy_task.with_name(f"{name}.en").read_text().splitlines()
        copy_task.with_name(f"{name}.de").write_text("".join(f"x {line[::-1]}\n" for line in lines))


QUIET = ["training.warmup_steps=2", "tokenizer.vocab_size=20"]


def test_a_sound_corpus_is_not_warned_of(copy_task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reversed_targets(copy_task)
    assert warnings(copy_task, capsys, *QUIET) == []


def test_copied_pairs_are_warned_of(copy_task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reversed_targets(copy_task)
    sources = copy_task.with_name("train.en").read_text().splitlines()
    targets = copy_task.with_name("train.de").read_text().splitlines()
    copy_task.with_name("train.de").write_text("".join(f"{line}\n" for line in [*sources[:50], *targets[50:]]))
    (warning,) = warnings(copy_task, capsys, *QUIET)
    assert f"in 50 of {len(sources):,} training pairs (4.0%) source and target are the same text" in warning


def test_test_text_in_the_training_text_is_warned_of(copy_task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reversed_targets(copy_task)
    for side in ("en", "de"):
        test = copy_task.with_name(f"test.{side}").read_text().splitlines()
        with copy_task.with_name(f"train.{side}").open("a") as file:
            file.write("".join(f"{line}\n" for line in test[:7]))
    (warning,) = warnings(copy_task, capsys, *QUIET)
    assert "test: 7 of 50 pairs (14.0%) also occur in the training text" in warning


def test_long_sentences_are_warned_of(copy_task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reversed_targets(copy_task)
    for side, line in (("en", "1 2 " * 10 + "3\n"), ("de", "x 3\n")):
        with copy_task.with_name(f"train.{side}").open("a") as file:
            file.write(line * 20)
        with copy_task.with_name(f"test.{side}").open("a") as file:
            file.write(line.replace("3", "4") * 20)
    train, test = warnings(copy_task, capsys, *QUIET)
    assert "20 of 1,282 training pairs (1.6%) are longer than data.max_length (20 pieces)" in train
    assert "test: 20 sources are longer than data.max_length (20 pieces)" in test
    assert "the longest has 21" in test


def test_text_that_the_vocabulary_was_not_made_for_is_warned_of(
    copy_task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reversed_targets(copy_task)
    copy_task.with_name("test.en").write_text("你好世界\n" * 50)
    found = warnings(copy_task, capsys, "tokenizer.type=bpe", "tokenizer.vocab_size=280", QUIET[0])
    assert "test: 92.3% of the src pieces are bytes" in found[0]


def test_a_warm_up_that_never_ends_is_warned_of(copy_task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reversed_targets(copy_task)
    (warning,) = warnings(copy_task, capsys, QUIET[1], "training.max_steps=null", "training.max_epochs=1")
    assert "training.warmup_steps is 50, of 25 steps" in warning
    assert warnings(copy_task, capsys, QUIET[1], "training.max_steps=51") == []
    limits = ["training.max_steps=null", "training.max_minutes=0.01", "training.warmup_steps=100000"]
    trained(copy_task, "run", *limits, QUIET[1])  # the number of steps is estimated after the first ones
    assert "warning: the learning rate never reaches its peak" in capsys.readouterr().err


def test_bf16_is_warned_of_on_a_cpu_without_it(
    copy_task: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reversed_targets(copy_task)
    options = (*QUIET, "training.max_steps=51", "training.precision=bf16")
    monkeypatch.setattr("nmt.training.preparation.bf16_slowdown", lambda: 71.4)
    (warning,) = warnings(copy_task, capsys, *options)
    assert "a matrix product takes 71 times as long as in fp32" in warning
    assert "--set training.precision=fp32 --fresh" in warning
    assert warnings(copy_task, capsys, *options[:-1]) == []  # in fp32
    monkeypatch.setattr("nmt.training.preparation.bf16_slowdown", lambda: 0.3)
    assert warnings(copy_task, capsys, *options) == []


@pytest.mark.skipif("avx2" not in cpu_flags(), reason="needs the flags of an x86 CPU, as Linux lists them")
def test_how_slow_bf16_is_agrees_with_the_instructions_of_this_cpu() -> None:
    flags = cpu_flags()
    if flags & {"avx512_bf16", "amx_bf16"}:
        assert bf16_slowdown() < 2
    elif not flags & {"avx512f", "avx_ne_convert"}:  # which may be used to emulate it quickly
        assert bf16_slowdown() > 2

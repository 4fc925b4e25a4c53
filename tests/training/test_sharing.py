"""The number of processes that share an update, and their shares."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmt.config.training import TrainingConfig
from nmt.errors import ConfigError
from nmt.system import processes
from nmt.training.feeding import cut
from nmt.training.launching import choose_processes, shared


def settings(**values: object) -> TrainingConfig:
    return TrainingConfig.model_validate({"max_steps": 9, "device": "cpu", **values})


@pytest.mark.parametrize(
    ("cores", "values", "count", "parts"),
    [
        (2, {"batch_tokens": 4096}, 2, 2),  # 2,048 positions each
        (2, {"batch_tokens": 1000}, 1, 1),  # 500 would be too few
        (2, {"batch_tokens": 1024, "batches_per_update": 2}, 2, 1),  # nothing to cut
        (2, {"batch_tokens": 500, "batches_per_update": 4}, 2, 1),
        (2, {"batch_tokens": 500, "batches_per_update": 3}, 1, 1),  # not evenly
        (2, {"batch_tokens": 4096, "threads": 2}, 1, 1),  # one process has both cores
        (8, {"batch_tokens": 4096}, 4, 4),
        (8, {"batch_tokens": 4096, "threads": 4}, 2, 2),
        (6, {"batch_tokens": 4096, "batches_per_update": 2}, 6, 3),
        (4, {"batch_tokens": 4096, "batch_parts": 2}, 4, 4),
        (4, {"batch_tokens": "auto", "update_tokens": 3500}, 3, 1),
        (1, {"batch_tokens": 100_000}, 1, 1),
        (2, {"batch_tokens": 100, "processes": 1}, 1, 1),
    ],
)
def test_auto_is_the_most_processes_that_share_an_update_evenly(
    monkeypatch: pytest.MonkeyPatch, cores: int, values: dict[str, object], count: int, parts: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", str(cores))
    assert choose_processes(settings(**values)) == count
    chosen = shared(settings(**values), count)
    assert (chosen.processes, chosen.parts) == (count, parts)


def test_a_process_for_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert choose_processes(settings(device="auto", batch_tokens=24_000)) == 3
    assert choose_processes(settings(device="cuda", batch_tokens=2_500)) == 2  # parts of 833 would be too small
    assert choose_processes(settings(device="cuda:1", batch_tokens=24_000)) == 1


def test_requested_processes_have_enough_work() -> None:
    with pytest.raises(
        ConfigError, match=r"batches_per_update \(1\) is less than the 4 .* training.batches_per_update=4"
    ):
        shared(settings(batch_tokens=3999), 4)
    assert shared(settings(batch_tokens=4000), 4).parts == 4
    assert shared(settings(batch_tokens=500, batches_per_update=5), 2).parts == 1  # one process has one batch more


def test_recorded_parts_are_kept_where_they_suit() -> None:
    assert shared(settings(batch_tokens=4096, batch_parts=4), 1).parts == 4
    assert shared(settings(batch_tokens=4096, batch_parts=4), 2).parts == 4


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 6))
def test_parts_have_the_pairs_of_their_batch_and_similar_lengths(sizes: list[int], parts: int) -> None:
    ends = np.cumsum(sizes)
    plan = [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    pieces = cut(plan, parts)
    assert len(pieces) == len(plan) * parts
    for number, batch in enumerate(plan):
        of_batch = pieces[number * parts : (number + 1) * parts]
        assert sorted(np.concatenate(of_batch)) == batch.tolist()
        lengths = [len(piece) for piece in of_batch]
        assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("group", ["", "jobs/7"])
def test_a_containers_quota_is_less_than_its_cores(group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulated; a group around the process's own may limit it, too."""
    (tmp_path / "own").write_text(f"0::/{group}\n")
    (tmp_path / group).mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(processes, "GROUPS", tmp_path)
    monkeypatch.setattr(processes, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(processes.os, "sched_getaffinity", lambda _: set(range(8)))
    for quota, cores in (("100000", 1), ("350000", 4), ("max", 8)):
        (tmp_path / group / "cpu.max").write_text(f"{quota} 100000\n")
        assert processes.available_cores() == cores
    (tmp_path / "cpu.max").write_text("200000 100000\n")
    assert processes.available_cores() == 2

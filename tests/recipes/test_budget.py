"""`nmt init --time`: the settings for a time, from the measured speed of updates."""

import re
from pathlib import Path

import pytest
from conftest import Cli, refused
from hypothesis import given
from hypothesis import strategies as st

from nmt.config.reading import load_config
from nmt.config.training import Config
from nmt.errors import ConfigError
from nmt.recipes.budget import fit, seconds_of
from nmt.recipes.starter import RECOMMENDED, Recommended, TimedRow, recommended
from nmt.runs.folder import RunFolder
from nmt.training.preparation import TrainingInputs
from nmt.training.trial import Speed


def plan_for(
    pairs: int, seconds: float | None, an_update: float, pairs_an_update: float = 150, device: str = "cpu"
) -> tuple[TimedRow, list[int]]:
    """The plan on a machine where an update of d_model 192 takes `an_update` seconds; the widths that were tried."""
    tried = []

    def trial(row: Recommended) -> Speed:
        assert row.r_drop == 0
        tried.append(row.d_model)
        work = row.d_model**2 * row.layers * row.batch_tokens * row.batches_per_update
        per_update = an_update * work / (192**2 * 3 * 2048)
        scale = row.batch_tokens * row.batches_per_update / 2048
        return Speed(per_update, device, "auto", 1.0, pairs_an_update * scale)

    return fit(pairs, seconds, trial), tried


@pytest.mark.parametrize(
    ("text", "seconds"), [("20m", 1200), ("1h", 3600), ("1h30m", 5400), ("1.5h", 5400), ("90 min", 5400)]
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "20", "0m", "1d", "m", "1h-5m", "1..5h", "-1h"])
def test_other_text_is_no_time(text: str) -> None:
    with refused(ConfigError, "--time", "such as 20m, 1h or 1h30m"):
        seconds_of(text)


def test_with_enough_time_the_settings_are_those_of_the_size() -> None:
    plan, tried = plan_for(29_000, 3 * 3600, 0.3)
    assert plan.row == recommended(29_000)
    assert plan.whole_seconds == 0
    assert plan.seconds == pytest.approx(15_000 * 0.3 * 1.8)
    assert tried == [192]


def test_twenty_minutes_of_captions_have_no_r_drop_and_little_dropout() -> None:
    plan, _ = plan_for(29_000, 1200, 0.27)
    row = plan.row
    assert (row.max_steps, row.r_drop, row.dropout, row.d_model) == (3_900, 0, 0.1, 192)  # 20 epochs
    assert (row.warmup_steps, row.validate_every, row.ema_decay) == (325, 487, 0.9987)
    assert plan.seconds == pytest.approx(3_900 * 0.27)
    assert plan.whole_seconds == pytest.approx(15_000 * 0.27 * 1.8 / 0.9)


def test_r_drop_begins_where_the_time_allows_thirty_epochs_with_it() -> None:
    an_epoch = 29_000 / 150 * 0.27 * 1.8 / 0.9  # seconds, with R-Drop
    assert plan_for(29_000, 29.9 * an_epoch, 0.27)[0].row.r_drop == 0
    row = plan_for(29_000, 30.1 * an_epoch, 0.27)[0].row
    assert (row.r_drop, row.dropout) == (3, 0.1 if row.max_steps * 150 < 30 * 29_000 else 0.2)


def test_a_model_too_large_for_the_time_is_replaced_by_a_smaller_one() -> None:
    plan, tried = plan_for(1_000_000, 7200, 0.3)
    assert tried == [512, 256]
    assert plan.row.d_model == 256
    assert plan.row.max_steps >= RECOMMENDED[4].max_steps / 10
    an_update = 0.3 * 256**2 * 4 * 2 / (192**2 * 3)  # with d_model 256
    for share, width in ((0.11, 256), (0.09, 192)):
        assert plan_for(100_000, share * 40_000 * an_update / 0.9, 0.3)[0].row.d_model == width
    plan, tried = plan_for(1_000_000, 600, 0.3)
    assert tried == [512, 256, 192]
    assert plan.row.vocab_size == 5_000
    assert plan_for(29_000, 60, 3.0)[1] == [192, 128]


def test_a_gpu_gets_one_hour_and_a_cpu_two() -> None:
    on_cpu, on_gpu = (plan_for(150_000, None, 0.5, device=device)[0] for device in ("cpu", "cuda:0"))
    assert on_cpu.seconds == pytest.approx(0.9 * 7200, rel=0.05)
    assert on_gpu.seconds == pytest.approx(0.9 * 3600, rel=0.05)


@given(
    pairs=st.integers(1, 3_000_000),
    seconds=st.floats(60, 1e6),
    an_update=st.floats(0.01, 10),
    pairs_an_update=st.floats(20, 1_000),
)
def test_a_training_ends_in_time(pairs: int, seconds: float, an_update: float, pairs_an_update: float) -> None:
    plan, tried = plan_for(pairs, seconds, an_update, pairs_an_update)
    row, own = plan.row, recommended(pairs)
    assert plan.seconds <= 0.9 * seconds or row.max_steps == 1
    assert row == own if plan.whole_seconds == 0 else plan.whole_seconds > seconds
    assert row.max_steps <= own.max_steps or row.d_model < own.d_model
    assert 0 <= row.warmup_steps < row.max_steps
    assert 0 < row.validate_every <= row.max_steps
    assert 0 <= row.ema_decay < 1
    assert row.dropout <= max(other.dropout for other in RECOMMENDED)
    epochs = row.max_steps * plan.speed.pairs / pairs
    rounding = 100 * plan.speed.pairs / pairs
    assert row == own or not row.r_drop or epochs >= 30 - rounding or row.max_steps == own.max_steps
    assert tried == sorted(set(tried), reverse=True)


@pytest.fixture
def captions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for side in ("en", "de"):
        lines = [f"{side} line {number} of {number % 7} words and {number % 11} more" for number in range(2_500)]
        Path(f"train.{side}").write_text("\n".join(lines) + "\n")


@pytest.mark.usefixtures("captions")
def test_the_file_has_the_settings_and_the_output_says_what_more_time_would_give(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With made-up seconds an update; everything else is real."""
    tried = []

    def seconds(config: Config, run: RunFolder, prepared: TrainingInputs, limit: float) -> float:
        assert config.training.r_drop == 0
        tried.append((config.model.d_model, config.tokenizer.vocab_size))
        return 2.0

    monkeypatch.setattr("nmt.training.trial.bf16_slowdown", lambda: 10.0)
    monkeypatch.setattr("nmt.training.trial._seconds_of_an_update", seconds)
    code, out, err = cli("init", "train.en", "train.de", "--time", "20m")
    assert code == 0, err
    assert [width for width, _ in tried] == [192]
    config = load_config(Path("en-de.yaml"))
    assert (config.training.max_steps, config.training.r_drop, config.model.dropout) == (500, 0, 0.1)
    assert "about 16:40 on this machine (500 updates of 2 s on cpu), and validations" in out
    assert "recommended for this many pairs: 5,000 updates with R-Drop, d_model 192 (--time 6h)" in out
    assert "without --time" not in out
    text = Path("en-de.yaml").read_text()
    assert "its values for up to 10,000 pairs and 16:40 of training" in text
    assert re.search(r"max_steps: 500 +# updates of 2 s on the machine where this was written: about 16:40", text)


@pytest.mark.usefixtures("captions")
def test_a_time_needs_a_trial(cli: Cli) -> None:
    code, _, err = cli("init", "train.en", "train.de", "--time", "1h", "--no-trial")
    assert code == 2
    assert "--time needs the trial that --no-trial skips" in err
    assert cli("init", "train.en", "train.de", "--time", "soon")[0] == 2
    assert not Path("en-de.yaml").exists()

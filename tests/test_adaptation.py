"""`nmt adapt`: what is written, what is chosen, what is kept, and what becomes of the old run (nothing)."""

import functools
import hashlib
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from conftest import Cli
from marian_models import sentences, write_folder
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from safetensors.torch import load_file

import nmt
from nmt.adaptation import choosing
from nmt.adaptation.frontier import Drop, Point, choose, read_frontier
from nmt.adaptation.outcome import read_tests
from nmt.adaptation.planning import Wish, write_plan
from nmt.checkpoint import Progress, interpolated_weights, write_weights
from nmt.config.file import load_config
from nmt.config.guard import GuardConfig
from nmt.config.training import Config
from nmt.errors import ConfigError, RunError
from nmt.evaluation.significance import corpus_score, line_statistics, paired_difference
from nmt.history import read_history
from nmt.inheritance import load_run_config
from nmt.insight.report_page import write_report
from nmt.runs import RunFolder
from nmt.training.guarding import Verdict, judge, remember, save_models

FAST = [part for setting in (
    "training.max_steps=10", "training.validate_every=5", "training.log_every=5", "training.batch_tokens=400",
    "training.warmup_steps=1", "training.threads=1", "training.processes=1", "training.device=cpu",
    "evaluation.report=false", "export.after_training=[]", "guard.alphas=[0.5]",
    "training.best_metric=loss", "decoding.beam_size=1", "decoding.max_length=12",
) for part in ("--set", setting)]  # fmt: skip


def reversed_digits(count: int, seed: int = 5) -> list[tuple[str, str]]:
    """Pairs of digits and the same digits in reverse: another task than that of the base, which copies."""
    generator = random.Random(seed)
    lines = {" ".join(generator.choices("0123456789", k=generator.randint(3, 6))) for _ in range(2 * count)}
    pairs = [(line, " ".join(reversed(line.split()))) for line in sorted(lines)]
    return [pair for pair in pairs if pair[0] != pair[1]][:count]


@pytest.fixture
def here(solved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with runs/copy, which copies digits, and new text in new.tsv; the base's own text is in another one."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(solved / "runs" / "copy", tmp_path / "runs" / "copy", ignore=shutil.ignore_patterns("checkpoints"))
    Path("new.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in reversed_digits(120)))
    return tmp_path


def content(folder: Path) -> dict[str, str]:
    """The hash of every file in a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def without_training(run: RunFolder) -> None:
    """Leave a run what an imported one has: weights, tokenizer, and the inference sections."""
    sections = yaml.safe_load(run.config_file.read_text())
    sections["data"] = {key: sections["data"][key] for key in ("src_lang", "tgt_lang", "max_length")}
    kept = {key: sections[key] for key in ("data", "source", "tokenizer", "model", "decoding")}
    run.config_file.write_text(yaml.safe_dump(kept))
    run.record_file.unlink()


# ------------------------------------------------------------------------------------------- interpolation


def test_interpolated_weights_are_numpys_and_one_files_to_the_bit_at_the_ends(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    old = {name: torch.randn(5, 4, generator=generator) * scale for name, scale in (("a", 1e-3), ("b", 1e4))}
    new = {name: torch.randn(5, 4, generator=generator) for name in old}
    old["a"][0, 0], new["a"][0, 0] = 0.5, -0.0  # a zero whose sign a sum would lose
    old["b"][1:3] = new["b"][1:3]  # frozen
    old["b"][2] = new["b"][2] = 0.0  # padding
    files = [tmp_path / "old.safetensors", tmp_path / "new.safetensors"]
    for file, weights in zip(files, (old, new), strict=True):
        write_weights(weights, file)
    for alpha in (0.0, 0.125, 0.3, 0.9, 1.0):
        found = interpolated_weights(files[0], files[1], alpha)
        for name, value in found.items():
            first, second = old[name].numpy().astype(np.float64), new[name].numpy().astype(np.float64)
            expected = ((1 - alpha) * first + alpha * second).astype(np.float32)
            if alpha in (0.0, 1.0):
                exact = (new if alpha else old)[name].numpy()
                assert value.numpy().tobytes() == exact.tobytes()
            np.testing.assert_array_equal(value.numpy(), expected)
        assert torch.equal(found["b"][1:3], new["b"][1:3])
        assert not found["b"][2].any()
    write_weights({"a": old["a"]}, files[1])
    with pytest.raises(RunError, match=r"new\.safetensors: not the weights of this model: b does not fit"):
        interpolated_weights(files[0], files[1], 0.5)


# ------------------------------------------------------------------------------------------- the choice


def point(alpha: float, gain: float, drop: float | None, high: float = 0.0, weights: str = "tuned") -> Point:
    found = None if drop is None else Drop(value=drop, low=drop - 1, high=high)
    values = {"bleu": 0.0, "chrf": 0.0, "loss": 0.0}
    return Point.model_validate(
        {"weights": weights, "step": 5, "alpha": alpha, "new": values, "general": None, "gain": gain,
         "drop": found and found.model_dump()}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        # The drop itself is within the budget at 0.6, too, but not surely.
        ([point(0.2, 1, 0.1, 0.3), point(0.4, 2, 0.2, 0.5), point(0.6, 3, 0.4, 0.6), point(1, 4, 9, 10)], 2),
        ([point(0.2, 1, 0.1, 0.51), point(1, 4, 9, 10)], 0),  # none keeps it
        ([point(0.2, -1, -0.1, 0.1), point(1, 0, 0.0, 0.2)], 0),  # none gains
        ([point(0.5, 2, 0.3, 0.5), point(1, 2, 0.2, 0.4, "kept")], 2),  # a tie: the smaller drop
        ([point(0.5, 2, 0.2, 0.4), point(0.25, 2, 0.2, 0.4)], 2),  # and then the smaller alpha
        ([point(0.2, 1, None), point(0.5, 2, None)], 2),  # no general text
        ([point(0.2, 1, -3, -2)], 1),  # better on both
        ([], 0),
    ],
)
def test_the_best_point_that_surely_keeps_the_budget_is_chosen(points: list[Point], expected: int) -> None:
    base = point(0, 0, None if any(one.drop is None for one in points) else 0.0, 0.0, "base")
    assert choose([base, *points], GuardConfig(max_drop=0.5), lambda best, other: 0.0) == expected


@pytest.mark.parametrize(("error", "expected"), [(0.5, 2), (0.7, 1), (1.0, 3)])
def test_of_gains_that_few_lines_cannot_tell_apart_the_one_that_loses_least_is_chosen(
    error: float, expected: int
) -> None:
    """Gain, the drop's upper end, and the loss on general text; number 4 is over the budget, and 2 the best within."""
    figures = [(0, 0, 1.0), (9.4, 0.1, 1.2), (10, 0.4, 1.3), (9.1, 0.3, 1.1), (9.6, 0.9, 1.0), (5, 0.0, 0.9)]
    points = [
        point(number / 10, gain, high - 0.3, high).model_copy(update={"general": {"loss": loss}})
        for number, (gain, high, loss) in enumerate(figures)
    ]

    def standard_error(best: int, other: int) -> float:
        assert best == 2
        return error if other != best else 0.0

    assert choose(points, GuardConfig(max_drop=0.5), standard_error) == expected


def test_the_alphas_that_are_tried() -> None:
    assert GuardConfig().tried == (0.4, 0.6, 0.8, 0.9, 1.0)
    assert GuardConfig(alphas=(0.7, 0.3), max_alpha=0.5).tried == (0.3, 0.5)


def test_validations_are_judged_on_both_sets() -> None:
    """A made-up training: new text gets better, and general text falls from 40 BLEU; the budget is 1."""
    data = {"train": {"src": "a.en", "tgt": "a.de"}, "validation": {"src": "v.en", "tgt": "v.de"}}
    guard = {"max_drop": 1.0, "validation": {"src": "g.en", "tgt": "g.de"}}
    sections = {"data": {**data, "src_lang": "en", "tgt_lang": "de"}, "training": {"max_steps": 9, "init_from": "old"}}
    config = Config.model_validate({**sections, "guard": guard})
    progress, seen = Progress(validated_step=0), []
    for step, (new, general) in enumerate([(5, 40), (7, 39.5), (6, 40), (9, 38.9), (10, 36), (11, 35.9), (8, 39.1)]):
        progress.step = step
        values = {"bleu": float(new), "general_bleu": float(general)}
        verdict = judge(config, progress, values)
        remember(config, progress, values, verdict)
        seen.append((verdict.is_tuned, verdict.is_kept, progress.validations_since_best))
    assert seen == [
        (True, True, 0),
        (True, True, 0),
        (False, False, 1),
        (True, False, 0),  # over the budget
        (True, False, 0),  # four times the budget
        (True, False, 1),  # and more
        (False, True, 0),  # the best within the budget
    ]
    assert (progress.best_step, progress.kept_step, progress.general_before) == (5, 6, 40.0)


def test_the_best_the_best_within_the_budget_and_the_last_model_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, guard, model = RunFolder(tmp_path), GuardConfig(max_drop=1.0, alphas=(0.5,)), torch.nn.Linear(2, 3)
    (run.checkpoints / "30").mkdir(parents=True)
    for number, verdict in enumerate(
        (Verdict(True, True, True), Verdict(True, False, True), Verdict(False, False, False))
    ):
        torch.nn.init.constant_(model.weight, number)
        save_models(model, run, guard, verdict)
    weights = {file.stem: float(load_file(file)["weight"][0, 0]) for file in run.adaptation.iterdir()}
    assert weights == {"kept": 0, "tuned": 1, "last": 2}
    write_weights(load_file(run.model_file), run.adaptation / "base.safetensors")
    found = {}
    for last in (30, 20):  # 20: the last one is the best, too
        progress = Progress(kept_step=10, best_step=20, validated_step=last)
        monkeypatch.setattr(choosing, "check_checkpoint", lambda _, progress=progress: progress)
        found[last] = list(choosing.candidates_of(run, guard))
    both = [("tuned", 20, 0.5), ("tuned", 20, 1.0), ("kept", 10, 0.5), ("kept", 10, 1.0)]
    assert found[20] == [("base", 0, 0.0), *both]
    assert found[30] == [*found[20], ("last", 30, 0.5), ("last", 30, 1.0)]


@pytest.mark.parametrize(
    ("guard", "init_from", "message"),
    [
        (
            "{max_drop: 1}",
            "null",
            "guard.max_drop compares with the run that training.init_from names, and it names none",
        ),
        ("{max_drop: -1}", "old", "guard.max_drop is -1; "),
        ("{max_drop: 1, validation: {pairs: g.tsv}}", "old", "guard.validation: name src_column and tgt_column, too"),
        ("{max_drop: 1, alphas: [1]}", "old", "guard.alphas.0 is 1; "),
    ],
)
def test_a_guard_that_cannot_work_is_refused(tmp_path: Path, guard: str, init_from: str, message: str) -> None:
    text = "data: {train: {src: a.en, tgt: a.de}, validation: {src: v.en, tgt: v.de}}\n"
    (tmp_path / "a.yaml").write_text(f"{text}training: {{max_steps: 1, init_from: {init_from}}}\nguard: {guard}\n")
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(tmp_path / "a.yaml")


def test_a_damaged_frontier_is_reported_and_not_used(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert read_frontier(run) is None
    run.adaptation.mkdir()
    (run.adaptation / "frontier.json").write_text('{"max_drop": 1}')
    with pytest.raises(RunError, match=r"frontier\.json: drop_metric: Field required; remove the file"):
        read_frontier(run)


# ------------------------------------------------------------------------------------------- the interval


def test_the_interval_of_a_difference_is_that_of_resampled_corpora() -> None:
    """Against corpora that are resampled line by line, with other random numbers, and scored by sacreBLEU."""
    generator = random.Random(3)
    words = ["the", "a", "cat", "dog", "sits", "runs", "on", "under", "mat", "tree", "red", "old"]
    truth = [" ".join(generator.choices(words, k=generator.randint(5, 12))) for _ in range(20)]

    def worse(share: float) -> list[str]:
        return [
            " ".join(generator.choice(words) if generator.random() < share else word for word in line.split())
            for line in truth
        ]

    systems = [worse(0.1), worse(0.2)]
    for metric in (BLEU(), CHRF()):
        figures = [line_statistics(metric, lines, [truth]) for lines in systems]
        found = paired_difference(figures[0], figures[1], functools.partial(corpus_score, metric))
        scores = [metric.corpus_score(lines, [truth]).score for lines in systems]
        assert found.value == pytest.approx(scores[1] - scores[0], abs=1e-9)
        differences = []
        for _ in range(160):
            drawn = generator.choices(range(20), k=20)
            one, other = (
                metric.corpus_score([lines[index] for index in drawn], [[truth[index] for index in drawn]]).score
                for lines in systems
            )
            differences.append(other - one)
        differences.sort()
        width = differences[155] - differences[4]
        assert found.low == pytest.approx(differences[4], abs=0.2 * width)
        assert found.high == pytest.approx(differences[155], abs=0.2 * width)
        assert found.error == pytest.approx(np.std(differences), rel=0.2)


def test_the_interval_of_a_mean_is_the_normal_one_and_of_equal_systems_nothing() -> None:
    values = np.random.default_rng(2).normal(1.0, 2.0, 900)
    ones = np.ones(900)
    zero, other = np.stack([np.zeros(900), ones], axis=1), np.stack([values, ones], axis=1)
    found = paired_difference(zero, other, lambda sums: float(sums[0] / sums[1]))
    error = values.std() / 30
    assert found.low == pytest.approx(values.mean() - 1.96 * error, abs=0.2 * error)
    assert found.high == pytest.approx(values.mean() + 1.96 * error, abs=0.2 * error)
    same = paired_difference(other, other, lambda sums: float(sums[0] / sums[1]))
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)


# ------------------------------------------------------------------------------------------- the command


def test_a_run_is_adapted_within_a_budget(here: Path, cli: Cli) -> None:
    old, new = RunFolder(here / "runs" / "copy"), RunFolder(here / "runs" / "small")
    before = content(old.path)
    command = ["adapt", "--model", "copy", "--data", "new.tsv", "--max-drop", "3", "--drop-metric", "loss",
               "--name", "small", *FAST]  # fmt: skip
    code, out, messages = cli(*command, "--json")
    assert code == 0, messages
    assert content(old.path) == before
    found = json.loads(out)
    weights = {name: load_file(new.adaptation / f"{name}.safetensors") for name in ("base", "tuned")}
    assert (new.adaptation / "base.safetensors").read_bytes() == old.model_file.read_bytes()
    chosen = found["points"][found["chosen"]]
    assert chosen["gain"] > 0
    assert chosen["drop"]["high"] <= 3
    assert chosen["weights"] == "tuned"
    for name, value in load_file(new.model_file).items():
        first, second = (weights[which][name].double() for which in ("base", "tuned"))
        expected = ((1 - chosen["alpha"]) * first + chosen["alpha"] * second).float()
        assert torch.equal(value, expected)
    # The points at the ends are what the training measured, apart from the order of its sums.
    history = [json.loads(line) for line in new.metrics_file.read_text().splitlines()]
    measured = {line["step"]: line for line in history if line["kind"] == "validation"}
    for one in (found["points"][0], found["points"][2]):
        assert (one["alpha"], one["step"]) in ((0.0, 0), (1.0, 10))
        for metric in ("bleu", "chrf", "loss"):
            line = measured[one["step"]]
            assert one["new"][metric] == pytest.approx(line[metric], rel=1e-4)
            assert one["general"][metric] == pytest.approx(line[f"general_{metric}"], rel=1e-4, abs=1e-5)
    # Text that chose nothing.
    assert [(test["name"], test["is_new"], test["lines"]) for test in found["tests"]] == [
        ("new", True, 12),
        ("test", False, 50),
    ]
    assert found["tests"][1]["scores"]["bleu"]["before"] == pytest.approx(100, abs=5)
    texts = [set(Path(f"small.{name}.en").read_text().splitlines()) for name in ("validation", "new")]
    assert not texts[0] & texts[1]
    # It is an ordinary configuration, and nothing is left to do.
    config = new.config()
    assert (config.guard.drop_metric, config.training.best_metric) == ("loss", "loss")
    assert [files.replayed for files in config.data.train] == [False, True]
    model = new.model_file.read_bytes()
    for again in (["train", "small.yaml"], command):
        code, out, messages = cli(*again)
        assert code == 0
        assert "this run is finished" in messages
        assert "choosing" not in messages
        assert new.model_file.read_bytes() == model
    assert "chosen" in out
    code, _, messages = cli(*command, "--set", "training.seed=3")
    assert code == 2
    assert "small.yaml exists, and says something else than these options" in messages


def test_a_budget_that_nothing_keeps_leaves_the_old_weights(here: Path, cli: Cli) -> None:
    Path("general.tsv").write_text("".join(f"{line}\t{line}\n" for line, _ in reversed_digits(400, seed=8)))
    old = RunFolder(here / "runs" / "copy")
    without_training(old)
    command = ["adapt", "--model", "copy", "--data", "new.tsv", "--keep", "general.tsv", "--max-drop", "0",
               "--drop-metric", "loss", *FAST, "--set", "data.cleaning.identical=false"]  # fmt: skip
    code, out, messages = cli(*command)
    assert code == 3, messages
    run = RunFolder(here / "runs" / "copy-adapted")
    assert run.model_file.read_bytes() == old.model_file.read_bytes()
    last = messages.splitlines()[-1].removeprefix("nmt: runs/copy-adapted: the model is the old one, unchanged: ")
    assert last.startswith("no candidate with a better loss on the new text surely loses at most 0 loss")
    assert "the old model" in out
    frontier, tests = read_frontier(run), read_tests(run)
    assert frontier is not None
    assert frontier.is_base_kept
    assert tests is not None
    assert {test.name: test.scores["loss"].change for test in tests} == {"new": 0.0, "general": 0.0}
    kept = [set(Path(f"copy-adapted.general-{name}.en").read_text().splitlines()) for name in ("validation", "test")]
    assert [len(lines) for lines in kept] == [80, 80]
    assert not kept[0] & kept[1]


def test_without_general_text_the_model_stays_near_the_old_one(here: Path, cli: Cli) -> None:
    old = RunFolder(here / "runs" / "copy")
    without_training(old)
    code, out, messages = cli("adapt", "--model", "copy", "--data", "new.tsv", "--drop-metric", "loss", "--json", *FAST)
    assert code == 0, messages
    assert "warning: there is no general text" in messages
    found = json.loads(out)
    assert [one["alpha"] for one in found["points"]] == [0.0, 0.5]
    assert found["points"][1]["drop"] is None
    before, after = (load_file(here / "runs" / name / "model.safetensors") for name in ("copy", "copy-adapted"))
    assert torch.equal(before["src_embedding.weight"], after["src_embedding.weight"])
    assert any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(("pairs", "updates"), [(200, 2000), (18_000, 5000), (40_000, 10_000)])
def test_much_new_text_has_more_updates(here: Path, pairs: int, updates: int) -> None:
    new = Path("much.tsv")
    new.write_text("en\tde\n" + "".join(f"{number}\t{number}\n" for number in range(pairs)))
    wish = Wish(RunFolder(here / "runs" / "copy"), [new], [], None, 0.5, "bleu", [])
    write_plan(wish, Path("much.yaml"), False, lambda line: None)
    training = yaml.safe_load(Path("much.yaml").read_text())["training"]
    assert (training["max_steps"], training["validate_every"]) == (updates, updates // 20)


def test_general_text_on_one_side_is_translated_by_the_old_model(here: Path) -> None:
    old = RunFolder(here / "runs" / "copy")
    without_training(old)
    lines = [src for src, _ in reversed_digits(200, seed=8)]
    Path("general.txt").write_text("\n".join(["", *lines, ""]) + "\n")
    said: list[str] = []
    wish = Wish(old, [Path("new.tsv")], [], Path("general.txt"), 0.5, "bleu", ["training.max_steps=5"])
    assert write_plan(wish, Path("own.yaml"), False, said.append)
    assert Path("own.general.src.en").read_text().splitlines() == lines
    assert Path("own.general.tgt.de").read_text().splitlines() == nmt.load(old.path).translate(lines)
    config = load_run_config(Path("own.yaml"), (), RunFolder(here / "runs" / "own"), is_fresh=True)
    assert [files.replayed for files in config.data.train] == [False, True]
    assert config.guard.validation is not None
    held_out = config.guard.validation.src_file.read_text().splitlines()
    assert len(held_out) == 40
    assert set(held_out) < set(lines)
    assert config.guard.validation in config.data.exclude
    assert any("references are the translations of" in line for line in said)
    assert not write_plan(wish, Path("own.yaml"), False, said.append)
    assert sum(line.startswith("translating the 200 lines") for line in said) == 1
    Path("own.yaml").write_text(Path("own.yaml").read_text() + "# mine\n")
    with pytest.raises(ConfigError, match=r"own\.yaml exists, and says something else"):
        write_plan(wish, Path("own.yaml"), False, said.append)
    assert write_plan(wish, Path("own.yaml"), True, said.append)
    Path("general.txt").write_text("1 2 3\n")
    with pytest.raises(ConfigError, match=r"own\.general\.src\.en: was made from other text than general\.txt"):
        write_plan(wish, Path("own.yaml"), False, said.append)


@pytest.mark.parametrize(
    ("base", "keep", "rate"),
    [
        ("own", ["general.tsv"], 2.0e-3),  # 0.4 times the 5e-3 that the base was trained with
        ("own", [], 2.0e-3),  # its own training text is mixed in
        ("moved", [], 5.0e-4),  # nothing is: a tenth
        ("imported", ["general.tsv"], 1.0e-4),
        ("imported", [], 1.0e-4),
    ],
)
def test_the_learning_rate_follows_that_of_the_base(here: Path, base: str, keep: list[str], rate: float) -> None:
    Path("general.tsv").write_text("".join(f"{line}\t{line}\n" for line, _ in reversed_digits(400, seed=8)))
    old = RunFolder(here / "runs" / "copy")
    if base == "imported":
        without_training(old)
    elif base == "moved":
        sections = yaml.safe_load(old.config_file.read_text())
        sections["data"]["train"][0] |= {"src": "gone.en", "tgt": "gone.de"}
        old.config_file.write_text(yaml.safe_dump(sections))
    wish = Wish(old, [Path("new.tsv")], [Path(path) for path in keep], None, 0.5, "bleu", [])
    said: list[str] = []
    assert write_plan(wish, Path("plan.yaml"), False, said.append)
    written = yaml.safe_load(Path("plan.yaml").read_text())
    assert written["training"]["learning_rate"] == rate
    assert ("replay" in written["data"]) == bool(keep or base == "own")
    assert any("so none is mixed in" in line for line in said) == (base == "moved")


@pytest.mark.parametrize(("new", "general", "share"), [(20, 60, 0.65), (60, 20, 0.94), (30, 30, 0.85)])
def test_85_percent_of_the_text_are_general(here: Path, new: int, general: int, share: float) -> None:
    """By hand: with 65 pairs of 60 characters to 35 of 20, 3,900 of 4,600 characters are general, 85%."""
    for name, length in (("long.tsv", new), ("general.tsv", general)):
        Path(name).write_text("".join(f"line {number}\t{number:0{length}d}\n" for number in range(100)))
    wish = Wish(RunFolder(here / "runs" / "copy"), [Path("long.tsv")], [Path("general.tsv")], None, 0.5, "bleu", [])
    write_plan(wish, Path("plan.yaml"), False, lambda _: None)
    assert yaml.safe_load(Path("plan.yaml").read_text())["data"]["replay"] == share


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "new.tsv", "--keep", "few.tsv", "--keep-src", "few.tsv"], "--keep names general pairs, --keep-src"),
        (["--data", "new.tsv", "--max-drop", "-1"], "--max-drop -1: should be 0 or more"),
        (["--data", "new.tsv", "--max-drop", "nan"], "--max-drop nan: should be 0 or more"),
        ([], "name the new text: --data FILE"),
        (["--model", "", "--data", "new.tsv"], "no run can have this name"),
        (["--data", "new.tsv", "--name", "copy"], "runs/copy is the folder of the new run, too"),
        (["--data", "few.tsv"], "--data: 20 pairs are too few"),
        (["--data", "new.tsv", "--model", "nothing"], "nothing: no such run"),
        (["--data", "new.tsv", "--keep", "few.tsv"], "general text: "),
        (["--data", "new.tsv", "--set", "guard.max_dropp=1"], "unknown key guard.max_dropp"),
        (["--data", "new.tsv", "--set", "data.exclude=[{src: no.en, tgt: no.de}]"], "no.en: no such file"),
    ],
)
def test_mistakes_are_one_plain_message(here: Path, cli: Cli, options: list[str], message: str) -> None:
    Path("few.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in reversed_digits(20)))
    model = [] if "--model" in options else ["--model", "copy"]
    code, out, messages = cli("adapt", *model, *options)
    assert (code, out) == (2, "")
    assert f"nmt: {message}" in messages or message in messages
    assert not Path("runs", "copy-adapted").exists()
    assert not Path("copy-adapted.yaml").exists()  # or the corrected command would be refused


@pytest.mark.slow
def test_a_kill_and_a_resume_give_the_same_bits(here: Path, cli: Cli) -> None:
    """Killed in the training, and while the model is chosen; and stopped by Ctrl-C."""
    command = ["adapt", "--model", "runs/copy", "--data", "new.tsv", "--max-drop", "3", "--drop-metric", "loss",
               *FAST, "--set", "training.max_steps=40"]  # fmt: skip
    code, _, messages = cli(*command, "--name", "straight")
    assert code == 0, messages
    straight = RunFolder(here / "runs" / "straight")
    page = write_report(straight).read_text()
    assert "best for the new text, alpha 0.5" in page
    assert "From the old weights to the new ones. Allowed: 3. Chosen: general text: drop of loss" in page
    assert (straight.report / "frontier.png").is_file()
    for name, line, number in (
        ("killed", "step 15  validation", signal.SIGKILL),
        ("late", "choosing among", signal.SIGKILL),
        ("stopped", "step 15  validation", signal.SIGINT),
    ):
        run = RunFolder(here / "runs" / name)
        program = [sys.executable, "-m", "nmt", *command, "--name", name]
        with subprocess.Popen(program, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
            assert process.stderr is not None
            for said in process.stderr:
                if said.startswith(line):
                    time.sleep(0.05)
                    process.send_signal(number)
            assert process.wait() == (130 if number == signal.SIGINT else -number)
        assert read_frontier(run) is None
        assert cli(*command, "--name", name)[0] == 0
        assert run.model_file.read_bytes() == straight.model_file.read_bytes()
        assert [one.values for one in read_history(run).validations] == [
            one.values for one in read_history(straight).validations
        ]
        found, wanted = read_frontier(run), read_frontier(straight)
        assert found is not None
        assert wanted is not None
        assert found.points == wanted.points


@pytest.mark.slow
def test_an_imported_model_is_adapted_and_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    """A Marian model with random weights; between two zero rows of padding is a zero row, as exporters assume."""
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "opus-mt-en-zh")
    assert cli("import", "opus-mt-en-zh")[0] == 0
    before = content(tmp_path / "runs" / "opus-mt-en-zh")
    texts = [sentences(side, 300) for side in ("source", "target")]
    for name, begin, end in (("new", 0, 100), ("general", 100, 300)):
        pairs = zip(*(text[begin:end] for text in texts), strict=True)
        Path(f"{name}.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs), encoding="utf-8")
    code, out, messages = cli("adapt", "--model", "opus-mt-en-zh", "--data", "new.tsv", "--keep", "general.tsv",
                              "--drop-metric", "loss", "--max-drop", "9", "--json", *FAST,
                              "--set", "training.learning_rate=1e-2", "--set", "guard.alphas=[0.5]",
                              "--set", "guard.max_alpha=0.5", "--set", "training.batch_tokens=1000")  # fmt: skip
    assert code == 0, messages
    assert content(tmp_path / "runs" / "opus-mt-en-zh") == before
    assert json.loads(out)["chosen"] == 1
    weights = load_file(tmp_path / "runs" / "opus-mt-en-zh-adapted" / "model.safetensors")
    old = load_file(tmp_path / "runs" / "opus-mt-en-zh" / "model.safetensors")
    assert not weights["src_embedding.weight"][-1].any()
    assert not torch.equal(weights["src_embedding.weight"], old["src_embedding.weight"])
    code, out, messages = cli("export", "ctranslate2", "--quantization", "float32", "--json")
    assert code == 0, messages
    assert all(one["same_lines"] == one["lines"] for one in json.loads(out)["comparisons"])

"""`nmt adapt`: its configuration, model and report; the base model stays as it is."""

import hashlib
import json
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from conftest import Cli, refused
from marian_models import sentences, write_folder
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from safetensors.torch import load_file

import nmt
from nmt.errors import ConfigError, RunError
from nmt.evaluation.metrics import Score
from nmt.evaluation.significance import paired_interval
from nmt.recipes import adapt
from nmt.recipes.adapt import average_with_base, verdict, write_plan
from nmt.runs.folder import RunFolder
from nmt.runs.history import read_history
from nmt.runs.weights import write_weights
from nmt.training.fine_tuning import Forgetting, read_forgetting

FAST = [part for setting in (
    "training.max_steps=10", "training.validate_every=5", "training.log_every=5", "training.batch_tokens=400",
    "training.warmup_steps=1", "training.threads=1", "training.processes=1", "training.device=cpu",
    "evaluation.report=false", "export.after_training=[]", "decoding.beam_size=1", "decoding.max_length=12",
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
        low, high = paired_interval(metric, *systems, [truth])
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
        assert low == pytest.approx(differences[4], abs=0.2 * width)
        assert high == pytest.approx(differences[155], abs=0.2 * width)
        assert paired_interval(metric, systems[0], systems[0], [truth]) == (0.0, 0.0)


def changed(name: str, low: float, high: float) -> Forgetting:
    before, after = ({"bleu": Score("BLEU", value, "")} for value in (40.0, 40 + (low + high) / 2))
    return Forgetting(name, 100, before, after, {"bleu": (low, high)})


@pytest.mark.parametrize(
    ("general", "max_drop", "is_warning", "says"),
    [
        (
            ("captions", "news"),
            1.0,
            True,
            "may have lost more than 1 BLEU (--max-drop): captions -0.25 (-1.50 to +1.00)",
        ),
        (("captions",), 1.5, False, "kept within 1.5 BLEU (--max-drop): captions -0.25 (-1.50 to +1.00)"),
        (("news",), 0.0, False, "kept within 0 BLEU"),  # it surely gained
        (("gone",), 0.0, True, "--max-drop is not checked: gone could not be scored"),
        (("news", "gone"), 9.0, True, "--max-drop is not checked: gone could not be scored"),
        ((), 0.0, False, "the mean of the base model's weights and the fine-tuned ones"),
    ],
)
def test_the_upper_end_of_the_drop_decides(
    general: tuple[str, ...], max_drop: float, is_warning: bool, says: str
) -> None:
    changes = [changed("new", -9, -8), changed("captions", -1.5, 1.0), changed("news", 0.5, 1.0)]
    line, found = verdict(changes, general, max_drop)
    assert found == is_warning
    assert line.startswith("warning: ") == is_warning
    assert says in line


# ------------------------------------------------------------------------------------------- the mean


def test_the_mean_with_the_base_is_numpys_and_a_kill_changes_nothing(
    here: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, run = RunFolder(here / "runs" / "copy"), RunFolder(here / "runs" / "tuned")
    Path("tuned.yaml").write_text(
        "data: {train: {pairs: new.tsv, src_column: 1, tgt_column: 2}, src_lang: en, tgt_lang: de, validation: "
        "{holdout: 10}}\ntraining: {max_steps: 1, init_from: copy}\nevaluation: {report: false}\n"
        "export: {after_training: []}\n"
    )
    assert cli("train", "tuned.yaml", "--set", "training.processes=1")[0] == 0
    generator = torch.Generator().manual_seed(1)
    old = load_file(base.model_file)
    new = {name: value + torch.randn(value.shape, generator=generator) for name, value in old.items()}
    frozen = next(iter(old))
    new[frozen] = old[frozen]
    write_weights(new, run.model_file)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(adapt, "write_weights", killed)
        with pytest.raises(KeyboardInterrupt):
            average_with_base(base, run)
    run.report.mkdir()
    run.report_page.touch()  # as several processes make it of the weights that are not averaged
    for is_new in (True, False):
        assert average_with_base(base, run) == is_new
        assert not run.report_page.exists()
        mean = load_file(run.model_file)
        assert torch.equal(mean[frozen], old[frozen])
        for name, value in mean.items():
            expected = (old[name].numpy().astype(np.float64) + new[name].numpy().astype(np.float64)) / 2
            np.testing.assert_array_equal(value.numpy(), expected.astype(np.float32))
        assert torch.equal(load_file(run.fine_tuned_file)[name], new[name])
    write_weights(new, run.model_file)
    write_weights(new, base.model_file)
    with pytest.raises(RunError, match=r"runs.copy: its model has changed"):
        average_with_base(base, run)


# ------------------------------------------------------------------------------------------- the command


def test_a_run_is_adapted(here: Path, cli: Cli) -> None:
    old, new = RunFolder(here / "runs" / "copy"), RunFolder(here / "runs" / "small")
    before = content(old.path)
    command = ["adapt", "--model", "copy", "--data", "new.tsv", "--max-drop", "100", "--name", "small", *FAST]
    code, out, messages = cli(*command, "--json")
    assert code == 0, messages
    assert content(old.path) == before
    found = json.loads(out)
    # The last weights are the model, or rather their moving average.
    assert new.model_file.read_bytes() == (new.checkpoints / "10" / "average.safetensors").read_bytes()
    assert not new.fine_tuned_file.exists()
    assert "best so far" not in messages
    assert [(test["name"], test["is_general"], test["lines"]) for test in found["tests"]] == [
        ("new", False, 12),
        ("test", True, 50),
    ]
    for test in found["tests"]:  # against sacreBLEU's own corpus scores
        source, target = (
            Path(name).read_text().splitlines()
            for name in ([f"small.new.{side}" for side in ("en", "de")] if test["name"] == "new" else
                         [old.config().data.test["test"].src_file, old.config().data.test["test"].tgt_file])
        )  # fmt: skip
        for side, run in (("before", old), ("after", new)):
            translations = nmt.load(run.path, engine="torch").translate(source)
            assert test[side]["bleu"]["value"] == pytest.approx(BLEU().corpus_score(translations, [target]).score)
        change = test["after"]["bleu"]["value"] - test["before"]["bleu"]["value"]
        low, high = test["intervals"]["bleu"]
        assert low <= change <= high
    texts = [set(Path(f"small.{name}.en").read_text().splitlines()) for name in ("validation", "new")]
    assert not texts[0] & texts[1]
    # It is an ordinary configuration, and nothing is left to do.
    config = new.config()
    assert (config.training.best_metric, config.training.patience) == (None, None)
    assert [files.replayed for files in config.data.train] == [False, True]
    for again in (["train", "small.yaml"], command):
        written = content(new.path)
        code, out, messages = cli(*again)
        assert code == 0
        assert "this run is finished" in messages
        assert "scoring" not in messages
        assert content(new.path) == written
    assert out.startswith("General text has kept within 100 BLEU")
    code, _, messages = cli(*command, "--set", "training.seed=3")
    assert code == 2
    assert "small.yaml exists with other settings than these options" in messages
    code, out, _ = cli("show", "--model", "small")
    assert code == 0
    assert "best" not in out


def test_general_text_that_may_have_lost_too_much_is_the_first_line(here: Path, cli: Cli) -> None:
    Path("general.tsv").write_text("".join(f"{line}\t{line}\n" for line, _ in reversed_digits(400, seed=8)))
    without_training(RunFolder(here / "runs" / "copy"))
    command = ["adapt", "--model", "copy", "--data", "new.tsv", "--keep", "general.tsv", "--max-drop", "0", *FAST,
               "--set", "data.cleaning.identical=false", "--set", "training.learning_rate=0.1"]  # fmt: skip
    code, out, messages = cli(*command)
    assert code == 3, messages
    first, *table = out.splitlines()
    assert first.startswith("warning: general text may have lost more than 0 BLEU (--max-drop): general -")
    assert [line.split()[:3] for line in table[1:] if "BLEU" in line] == [
        ["new", "12", "BLEU"],
        ["general", "80", "BLEU"],
    ]
    run = RunFolder(here / "runs" / "copy-adapted")  # it is kept
    assert run.model_file.read_bytes() == (run.checkpoints / "10" / "average.safetensors").read_bytes()
    trained = {line.partition("\t")[0] for line in Path("general.tsv").read_text().splitlines()}
    held_out = set(Path("copy-adapted.general.en").read_text().splitlines())
    assert len(held_out) == 80
    assert held_out < trained
    assert json.loads(run.record_file.read_text())["pairs"]["overlap"] >= 80
    assert cli(*command)[:2] == (3, out)


def test_without_general_text_the_model_is_the_mean(here: Path, cli: Cli) -> None:
    old, run = RunFolder(here / "runs" / "copy"), RunFolder(here / "runs" / "copy-adapted")
    without_training(old)
    command = ["adapt", "--model", "copy", "--data", "new.tsv", *FAST, "--set", "evaluation.report=true"]
    code, out, messages = cli(*command)
    assert code == 0, messages
    assert "warning: there is no general text to measure" in messages
    assert out.startswith(
        "There was no general text to measure forgetting with (--keep FILE), so the model is the mean"
    )
    before, tuned, after = (load_file(file) for file in (old.model_file, run.fine_tuned_file, run.model_file))
    assert torch.equal(before["src_embedding.weight"], after["src_embedding.weight"])
    for name, value in after.items():
        assert torch.equal(value, ((before[name].double() + tuned[name].double()) / 2).float())
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert run.fine_tuned_file.read_bytes() == (run.checkpoints / "10" / "average.safetensors").read_bytes()
    page = run.report_page.read_text()
    assert "The model is the mean of the weights of" in page
    assert "the same nmt adapt command repeats it" in page
    assert "Its weights are the mean of" in (run.report / "README.md").read_text()
    written = content(run.path)
    assert cli(*command)[:2] == (0, out)
    assert content(run.path) == written
    shutil.rmtree(run.report)  # as after a kill before it was made
    assert cli(*command)[0] == 0
    assert run.report.exists()
    # A training that goes on does so without the mean.
    code, _, messages = cli("train", "copy-adapted.yaml", "--name", run.name, "--set", "training.max_steps=12",
                            "--set", "evaluation.report=false", "--set", "evaluation.metrics=[bleu,ter]")  # fmt: skip
    assert code == 0, messages
    assert not run.fine_tuned_file.exists()
    average = (run.checkpoints / "12" / "average.safetensors").read_bytes()
    assert run.model_file.read_bytes() == average
    assert [list(one.before) for one in read_forgetting(run)] == [["bleu", "ter"]]
    assert average_with_base(old, run)
    assert run.fine_tuned_file.read_bytes() == average
    assert run.model_file.read_bytes() != average


def test_a_mean_needs_as_many_layers(here: Path, cli: Cli) -> None:
    old = RunFolder(here / "runs" / "copy")
    without_training(old)
    sections = yaml.safe_load(old.config_file.read_text())
    sections["model"]["num_decoder_layers"] = 2
    old.config_file.write_text(yaml.safe_dump(sections))
    code, _, messages = cli("adapt", "--model", "copy", "--data", "new.tsv", "--set", "model.num_decoder_layers=1")
    assert code == 2
    assert "model.num_decoder_layers: 2 in runs/copy, 1 here" in messages
    assert not Path("copy-adapted.yaml").exists()


def planned(here: Path, new: Path, keep: list[Path]) -> dict[str, dict[str, object]]:
    assert write_plan(RunFolder(here / "runs" / "copy"), [new], keep, [], Path("plan.yaml"), False).is_written
    found: dict[str, dict[str, object]] = yaml.safe_load(Path("plan.yaml").read_text())
    return found


@pytest.mark.parametrize(("pairs", "updates"), [(200, 2000), (18_000, 5000), (40_000, 10_000)])
def test_much_new_text_has_more_updates(here: Path, pairs: int, updates: int) -> None:
    new = Path("much.tsv")
    new.write_text("en\tde\n" + "".join(f"{number}\t{number}\n" for number in range(pairs)))
    training = planned(here, new, [])["training"]
    assert (training["max_steps"], training["validate_every"]) == (updates, updates // 20)


def test_the_test_sets_of_an_earlier_adaptation_keep_their_names(here: Path) -> None:
    old = RunFolder(here / "runs" / "copy")
    sections = yaml.safe_load(old.config_file.read_text())
    sections["data"]["test"] |= dict.fromkeys(("new", "general"), sections["data"]["test"]["test"])
    old.config_file.write_text(yaml.safe_dump(sections))
    Path("general.tsv").write_text("".join(f"{line}\t{line}\n" for line, _ in reversed_digits(400, seed=8)))
    asked = old, [Path("new.tsv")], [Path("general.tsv")], list[str]()
    plan = write_plan(*asked, Path("plan.yaml"), False)
    assert (plan.new, plan.general[0], set(plan.general[1:])) == ("new2", "general2", {"new", "general", "test"})
    plan = write_plan(old, asked[1], [], [], Path("other.yaml"), False)
    assert (plan.new, set(plan.general)) == ("new2", {"new", "general", "test"})
    assert not write_plan(*asked, Path("plan.yaml"), False).is_written
    Path("plan.yaml").write_text(Path("plan.yaml").read_text() + "# mine\n")
    with pytest.raises(ConfigError, match=r"plan\.yaml exists with other settings"):
        write_plan(*asked, Path("plan.yaml"), False)
    assert write_plan(*asked, Path("plan.yaml"), True).is_written
    sections["data"]["test"] |= {key: {"src": "gone.en", "tgt": "gone.de"} for key in ("new", "general")}
    old.config_file.write_text(yaml.safe_dump(sections))
    plan = write_plan(*asked, Path("third.yaml"), False)
    assert (plan.new, plan.general) == ("new2", ("general2", "test"))


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
def test_the_learning_rate_follows_that_of_the_base(
    here: Path, capsys: pytest.CaptureFixture[str], base: str, keep: list[str], rate: float
) -> None:
    Path("general.tsv").write_text("".join(f"{line}\t{line}\n" for line, _ in reversed_digits(400, seed=8)))
    old = RunFolder(here / "runs" / "copy")
    if base == "imported":
        without_training(old)
    elif base == "moved":
        sections = yaml.safe_load(old.config_file.read_text())
        sections["data"]["train"][0] |= {"src": "gone.en", "tgt": "gone.de"}
        old.config_file.write_text(yaml.safe_dump(sections))
    written = planned(here, Path("new.tsv"), [Path(path) for path in keep])
    assert written["training"]["learning_rate"] == rate
    assert ("replay" in written["data"]) == bool(keep or base == "own")
    assert ("so no general text is mixed in" in capsys.readouterr().err) == (base == "moved")


@pytest.mark.parametrize(("new", "general", "share"), [(20, 60, 0.65), (60, 20, 0.94), (30, 30, 0.85)])
def test_85_percent_of_the_text_are_general(here: Path, new: int, general: int, share: float) -> None:
    """By hand: with 65 pairs of 60 characters to 35 of 20, 3,900 of 4,600 characters are general, 85%."""
    for name, length in (("long.tsv", new), ("general.tsv", general)):
        Path(name).write_text("".join(f"line {number}\t{number:0{length}d}\n" for number in range(100)))
    assert planned(here, Path("long.tsv"), [Path("general.tsv")])["data"]["replay"] == share


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "new.tsv", "--max-drop", "-1"], "Invalid value for '--max-drop'"),
        (["--data", "new.tsv", "--max-drop", "nan"], "Invalid value for '--max-drop'"),
        ([], "Missing option '--data'"),
        (["--model", "", "--data", "new.tsv"], "no run can have this name"),
        (["--data", "new.tsv", "--name", "copy"], "runs/copy is the folder of the new run, too"),
        (["--data", "few.tsv"], "--data: 20 pairs are too few"),
        (["--data", "new.tsv", "--model", "nothing"], "nmt: --model nothing: no such run"),
        (["--data", "new.tsv", "--keep", "new.tsv"], "--keep new.tsv: is --data, too"),
        (["--data", "new.tsv", "--keep", "fewer.tsv"], "general text: "),
        (["--data", "new.tsv", "--set", "training.max_stepss=1"], "unknown key training.max_stepss"),
        (["--data", "new.tsv", "--set", "training.patience=3"], "training.patience needs a training.best_metric"),
        (["--data", "new.tsv", "--set", "evaluation.metrics=[chrf]"], "evaluation.metrics: add bleu"),
        (["--data", "new.tsv", "--set", "data.exclude=[{src: no.en, tgt: no.de}]"], "no.en: no such file"),
    ],
)
def test_mistakes_are_one_plain_message(here: Path, cli: Cli, options: list[str], message: str) -> None:
    for name, count in (("few", 20), ("fewer", 15)):
        Path(f"{name}.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in reversed_digits(count)))
    model = [] if "--model" in options else ["--model", "copy"]
    code, out, messages = cli("adapt", *model, *options)
    assert (code, out) == (2, "")
    assert f"nmt: {message}" in messages or message in messages
    assert not Path("runs", "copy-adapted").exists()
    assert not list(Path().glob("copy-adapted.*"))  # or the corrected command would be refused


def test_held_out_sets_of_other_text_are_not_used(here: Path) -> None:
    base, plan = RunFolder(here / "runs" / "copy"), Path("plan.yaml")
    for name, seed in (("general", 8), ("other", 9)):
        lines = [line for line, _ in reversed_digits(100, seed)]
        Path(f"{name}.tsv").write_text("".join(f"{line}\t{line}\n" for line in lines))
    write_plan(base, [Path("new.tsv")], [Path("general.tsv")], [], plan, False)
    Path("plan.new.en").write_text("drawn\n")
    files = content(here)
    for is_fresh, message in (
        (False, "plan.yaml exists with other settings"),
        (True, "plan.new.en, plan.general.en, "),
    ):
        with refused(ConfigError, message, "another --name"):
            write_plan(base, [Path("new.tsv")], [Path("other.tsv")], [], plan, is_fresh)
        assert content(here) == files
    write_plan(base, [Path("new.tsv")], [Path("general.tsv")], ["data.replay=0.5"], plan, True)  # the same text
    assert Path("plan.general.en").exists()
    for path in Path().glob("plan.*.*"):
        path.unlink()
    write_plan(base, [Path("new.tsv")], [Path("other.tsv")], [], plan, True)
    lines = Path("plan.general.en").read_text().splitlines()
    assert {*lines} <= {line.split("\t")[0] for line in Path("other.tsv").read_text().splitlines()}


@pytest.mark.slow
@pytest.mark.parametrize("has_general_text", [True, False])
def test_a_kill_and_the_same_command_give_the_same_bits(here: Path, cli: Cli, has_general_text: bool) -> None:
    """Killed in the training and while test sets are scored after it, and stopped by Ctrl-C."""
    if not has_general_text:
        without_training(RunFolder(here / "runs" / "copy"))
    command = ["adapt", "--model", "runs/copy", "--data", "new.tsv", "--max-drop", "100", *FAST,
               "--set", "training.max_steps=20"]  # fmt: skip
    code, wanted, messages = cli(*command, "--name", "straight")
    assert code == 0, messages
    straight = RunFolder(here / "runs" / "straight")
    for name, line, number in (
        ("killed", "step 15  validation", signal.SIGKILL),
        ("late", "scoring new.*to compare", signal.SIGKILL),
        ("stopped", "step 15  validation", signal.SIGINT),
    ):
        run = RunFolder(here / "runs" / name)
        program = [sys.executable, "-m", "nmt", *command, "--name", name]
        with subprocess.Popen(program, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
            assert process.stderr is not None
            for said in process.stderr:
                if re.match(line, said):
                    process.send_signal(number)
            assert process.wait() == (130 if number == signal.SIGINT else -number)
        code, out, _ = cli(*command, "--name", name)
        assert (code, out) == (0, wanted)
        assert run.model_file.read_bytes() == straight.model_file.read_bytes()
        assert run.fine_tuned_file.exists() == (not has_general_text)
        assert [one.values for one in read_history(run).validations] == [
            one.values for one in read_history(straight).validations
        ]


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
                              "--max-drop", "100", *FAST, "--set", "training.learning_rate=1e-2",
                              "--set", "training.batch_tokens=1000")  # fmt: skip
    assert code == 0, messages
    assert content(tmp_path / "runs" / "opus-mt-en-zh") == before
    assert "general" in out
    weights = load_file(tmp_path / "runs" / "opus-mt-en-zh-adapted" / "model.safetensors")
    old = load_file(tmp_path / "runs" / "opus-mt-en-zh" / "model.safetensors")
    assert not weights["src_embedding.weight"][-1].any()
    assert not torch.equal(weights["src_embedding.weight"], old["src_embedding.weight"])
    code, out, messages = cli("export", "ctranslate2", "--quantization", "float32", "--json")
    assert code == 0, messages
    assert all(one["same_lines"] == one["lines"] for one in json.loads(out)["comparisons"])

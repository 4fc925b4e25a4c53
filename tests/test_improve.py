"""`nmt improve`: the plan and its Makefile, configurations, decisions, no leakage, and what a kill leaves."""

import hashlib
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from conftest import Cli

from nmt.cli.data import data as data_command
from nmt.config.file import load_config
from nmt.config.training import TrainingConfig
from nmt.errors import ConfigError, DataError, TargetError
from nmt.improving import configuring, running
from nmt.improving.beginning import begin
from nmt.improving.deciding import decide
from nmt.improving.drafting import Improvement, Wish
from nmt.improving.manifest import add_manifest
from nmt.improving.plan import BestRun, Command, Plan, Target
from nmt.improving.running import carry_out
from nmt.improving.steps import draft_of

TINY = Path(__file__).parent.parent / "data" / "tiny"
CONFIG = """\
data:
  train: {src: train.en, tgt: train.zh}
  validation: {src: val.en, tgt: val.zh}
  test: {src: test.en, tgt: test.zh}
  cleaning: {duplicates: pair}
tokenizer: {vocab_size: 600}
model: {num_encoder_layers: 1, num_decoder_layers: 1, d_model: 32, num_heads: 2, d_ff: 64}
training: {max_steps: 60, batch_tokens: 500, learning_rate: 5.0e-3, schedule: cosine, warmup_steps: 10,
           validate_every: 20, threads: 1, processes: 1, device: cpu}
decoding: {beam_size: 2, max_length: 30}
"""
FOLDER = Path("tiny.improve")
MONO = Wish(Path("../tiny.yaml"), mono_tgt=Path("../mono.zh"), mono_src=Path("../mono.en"))


def lines_of(path: Path, start: int = 0, stop: int | None = None) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines(keepends=True)[start:stop]


def write_tiny(folder: Path, pairs: int = 80) -> None:
    """A cut of the tiny corpus; the monolingual texts have lines of the validation and test sets among their own."""
    for side in ("en", "zh"):
        mono = lines_of(TINY / f"train.{side}", 500, 530)
        for name, start, stop in (("train", 0, pairs), ("val", 0, 10), ("test", 0, 10)):
            lines = lines_of(TINY / f"{name}.{side}", start, stop)
            (folder / f"{name}.{side}").write_text("".join(lines), encoding="utf-8")
            mono += lines[:2] if name != "train" else []
        (folder / f"mono.{side}").write_text("".join(mono), encoding="utf-8")
    (folder / "tiny.yaml").write_text(CONFIG, encoding="utf-8")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path)
    return tmp_path


class Pretended:
    """Takes the place of the processes: cleans text as `nmt data` does, and trains, translates and scores nothing."""

    def __init__(self, bleu: dict[str, float] | None = None) -> None:
        self.bleu = bleu or {}
        """Of runs, by name; 0 of others."""
        self.commands: list[list[str]] = []
        self.stop_at = 0
        """The command, counted from 1, at which everything is killed."""

    def __call__(self, command: Command, folder: Path) -> int:
        words = list(running._words(command, folder))
        self.commands.append(words)
        if len(self.commands) == self.stop_at:
            raise KeyboardInterrupt
        option = {word: words[number + 1] for number, word in enumerate(words[:-1]) if word.startswith("--")}
        match words[0]:
            case "data":
                folds = int(option["--folds"]) if "--folds" in option else None
                before = Path.cwd()
                os.chdir(folder)
                try:
                    data_command(config=Path(option["--config"]), write=Path(option["--write"]), folds=folds)
                finally:
                    os.chdir(before)
            case "filter":
                (folder / option["--write"]).mkdir()
                for text in words[1:3]:
                    lines = lines_of(folder / text)[:-5]
                    (folder / option["--write"] / Path(text).name).write_text("".join(lines), encoding="utf-8")
            case "train":
                load_config(folder / words[1])  # raises for one that cannot be trained with
                self._model(folder, Path(words[1]).stem)
            case "average":
                self._model(folder, option["--name"])
                (folder / "runs" / option["--name"] / "average.json").write_text("{}", encoding="utf-8")
            case "translate":
                lines = lines_of(folder / option["--input"])
                made = "".join(f"{option['--model']} {line}" for line in lines)
                (folder / option["--output"]).write_text(made, encoding="utf-8")
            case "eval":
                assert command.output is not None
                value = self.bleu.get(Path(command.output).stem, 0.0)
                scores = {"scores": {"bleu": {"value": value}, "chrf": {"value": 2 * value}}}
                (folder / command.output).write_text(json.dumps(scores), encoding="utf-8")
        return 0

    def _model(self, folder: Path, run: str) -> None:
        (folder / "runs" / run).mkdir()
        (folder / "runs" / run / "model.safetensors").write_text(run, encoding="utf-8")


def drafted(wish: Wish = MONO) -> Improvement:
    draft = draft_of(wish, load_config(Path("tiny.yaml"), wish.overrides))
    add_manifest(draft)
    return draft


def improved(
    monkeypatch: pytest.MonkeyPatch, pretended: Pretended, wish: Wish = MONO, folder: Path = FOLDER
) -> Improvement:
    """The draft, carried out with pretended trainings."""
    monkeypatch.setattr(running, "_run", pretended)
    draft = drafted(wish)
    begin(draft, folder)
    carry_out(draft.plan(), draft.makers, folder, lambda line: None)
    return draft


def hashes(folder: Path) -> dict[str, str]:
    """Of all files that are to be the same: not those that say when and where a training ran."""
    logs = {"metrics.jsonl", "training.json", "config.yaml", "latest", "files.json"}
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in logs and not {"cache", "checkpoints", "evaluation"} & set(path.parts)
        and path.suffix != ".lock"
    }  # fmt: skip


# ------------------------------------------------------------------------------------------- the plan as a Makefile

STUB = """#!/bin/sh
# Stands in for nmt: makes what a command makes, and fails if what it reads is not there.
set -e
command=$1; config=$2
while [ $# -gt 0 ]; do
  case $1 in
    --make) mkdir -p "$(dirname "$2")"; case $2 in *.best) printf baseline > "$2";; *) touch "$2";; esac; exit;;
    --config) test "$command" = improve || test -f "$2";;
    --model) test -f "$2/model.safetensors";;
    --input|--src|--ref) here=$(dirname "$2"); test -f "$2" -o -f "$here/pairs.json" -o -f "$here/cleaning.tsv";;
    --output) touch "$2";;
    --write) mkdir "$2"; touch "$2/cleaning.tsv" "$2/$(basename "$config")";;
    --forward|--backward) test -f "$2/model.safetensors";;
  esac
  shift
done
case $command in
  train) test -f "$config"; name=$(basename "$config" .yaml); mkdir "runs/$name"; touch "runs/$name/model.safetensors";;
  average) mkdir runs/averaging; touch runs/averaging/average.json runs/averaging/model.safetensors;;
esac
"""


def test_make_lists_every_command_of_the_plan(here: Path) -> None:
    plan = drafted().plan()
    (here / "Makefile").write_text(plan.to_makefile(), encoding="utf-8")
    made = subprocess.run(["make", "-n", "NMT=nmt"], capture_output=True, text=True, check=True)
    shown = [line.split()[1] for line in made.stdout.splitlines() if line.startswith("nmt ")]
    assert sorted(shown) == sorted(command.arguments[0] for target in plan.targets for command in target.commands)


def test_make_carries_the_plan_out_in_parallel_and_again_does_nothing(here: Path) -> None:
    plan = drafted().plan()
    FOLDER.mkdir()
    (FOLDER / "Makefile").write_text(plan.to_makefile(), encoding="utf-8")
    stub = here / "stub"
    stub.write_text(STUB, encoding="utf-8")
    stub.chmod(0o755)
    command = ["make", "-C", str(FOLDER), "-j8", f"NMT={shlex.quote(str(stub))}"]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert all((FOLDER / target.file).exists() for target in plan.targets)
    again = subprocess.run([*command, "-q"], capture_output=True, text=True)
    assert again.returncode == 0  # all is up to date


def test_a_training_waits_for_all_that_its_configuration_names(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best = {"bidirectional": 1.0, "diversification": 2.0, "back_translation": 3.0, "student": 4.0}
    draft = improved(monkeypatch, Pretended(best))
    waits_for: dict[str, set[str]] = {}
    for target in draft.targets:
        waits_for[target.file] = set(target.needs).union(*(waits_for[need] for need in target.needs))
    for target in draft.targets:
        if target.file.startswith("runs/") and target.is_stamp:
            sections = yaml.safe_load((FOLDER / "configs" / f"{Path(target.file).stem}.yaml").read_text())
            texts = {draft.made[Path(one["src"]).parent.name] for one in sections["data"]["train"]}
            start = sections["training"].get("init_from")
            runs = {f"runs/{start}.done"} if start else set()
            assert waits_for[target.file] >= texts | runs
    assert waits_for["runs/fine_tuning.done"] >= {"runs/student.done", "runs/bidirectional_start.done"}


def test_names_reach_the_shell_as_they_are(tmp_path: Path) -> None:
    odd = "it's $HOME #1.txt"
    (tmp_path / "name").write_text("best", encoding="utf-8")
    command = Command(("translate", "--input", odd, "--model", BestRun("name")), "out/put")
    makefile = Plan((Target("out/put", "step", (), (command,)),)).to_makefile()
    (tmp_path / "Makefile").write_text(makefile, encoding="utf-8")
    print_arguments = f"{shlex.quote(sys.executable)} -c 'import sys; print(sys.argv[1:])'"
    subprocess.run(["make", "-s", "-C", str(tmp_path), f"NMT={print_arguments}"], check=True)
    assert (tmp_path / "out/put").read_text() == f"{['translate', '--input', odd, '--model', 'runs/best']}\n"


def test_a_name_that_no_makefile_can_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="line end"):
        Plan((Target("a", "step", (), (Command(("translate", "a\nb")),)),))


def test_printing_the_plan_writes_nothing(here: Path, cli: Cli) -> None:
    before = sorted(here.rglob("*"))
    code, out, _ = cli("improve", "--config", "tiny.yaml", "--plan", "--mono-tgt", "mono.zh", "--mono-src", "mono.en")
    assert (code, out) == (0, drafted().plan().to_makefile())
    assert sorted(here.rglob("*")) == before


# ------------------------------------------------------------------------------------------- decisions


@pytest.mark.parametrize(
    ("scores", "gain", "best"),
    [
        ((30.0, 30.3), 0.3, "candidate"),  # in binary numbers, 30.3 - 30.0 is less than 0.3
        ((30.0, 30.29), 0.29, "baseline"),
        ((30.0, 29.0), -1.0, "baseline"),
        ((30.0, 31.5), 1.5, "candidate"),
    ],
)
def test_a_candidate_is_kept_if_it_gains_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: tuple[float, float], gain: float, best: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scores").mkdir()
    for name, value in zip(("baseline", "candidate"), scores, strict=True):
        Path(f"scores/{name}.json").write_text(json.dumps({"scores": {"bleu": {"value": value}}}), encoding="utf-8")
    first = decide("baseline", "baseline", None, 0.3)
    assert (first.best, first.kept, first.gain) == ("baseline", True, None)
    second = decide("step", "candidate", first, 0.3)
    assert (second.gain, second.best) == (gain, best)
    assert second.best_scores["bleu"] == scores[0 if best == "baseline" else 1]


def test_each_candidate_is_compared_with_the_best_so_far_and_built_on_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bleu = {"baseline": 30, "bidirectional": 31, "cutoff": 31.2, "diversification": 32, "back_translation": 29,
            "self_training": 32.5, "filtering": 32.6, "student": 32.7, "averaging": 32.7,
            "fine_tuning": 33}  # fmt: skip
    improved(monkeypatch, pretended := Pretended({name: float(value) for name, value in bleu.items()}))
    found = {path.stem: json.loads(path.read_text()) for path in (FOLDER / "decisions").glob("*.json")}
    assert {step for step, one in found.items() if one["kept"]} == {
        "baseline", "bidirectional", "diversification", "self_training", "fine_tuning"}  # fmt: skip
    assert found["averaging"]["previous"] == "self_training"
    assert (FOLDER / "decisions/averaging.best").read_text() == "self_training"
    assert (FOLDER / "decisions/fine_tuning.best").read_text() == "fine_tuning"
    configs = {path.stem: yaml.safe_load(path.read_text()) for path in (FOLDER / "configs").glob("*.yaml")}
    texts = {name: {one["src"].split("/")[2] for one in configs[name]["data"]["train"]} for name in configs}
    assert texts["student"] == {"student"}
    taught = configs["student"]["training"]  # half of the 40 updates after the start in both directions
    assert {key: taught[key] for key in ("init_from", "max_steps", "schedule", "r_drop")} == {
        "init_from": "self_training", "max_steps": 20, "schedule": "cosine", "r_drop": 0.0}  # fmt: skip
    assert (taught["learning_rate"], configs["student"]["model"]["dropout"]) == (pytest.approx(2e-3), 0.05)
    assert texts["fine_tuning"] == {"real"}
    assert configs["fine_tuning"]["training"]["init_from"] == "self_training"
    assert configs["self_training"]["training"]["init_from"] == "bidirectional_start"
    assert texts["filtering"] == {"real", "diversification", "filtered_back_translation", "filtered_self_training"}
    back, own = (configs[name]["data"]["train"][-1] for name in ("back_translation", "self_training"))
    assert (back["tag"], back["weight"], "noise" in back) == ("bt", 1.0, False)
    assert (own["noise"], "tag" in own) == (0.1, False)
    assert all(configs[name]["tokenizer"]["tags"] == ["bt"] for name in ("baseline", "student"))
    assert "token_cutoff" not in configs["student"]["model"]  # it was left out
    seeds = [configs[name]["training"].get("seed", 1) for name in ("self_training", "teacher_2", "teacher_3")]
    assert seeds == [1, 2, 3]
    ensemble = ["runs/self_training", "runs/teacher_2", "runs/teacher_3"]
    (teaching,) = [words for words in pretended.commands if words[0] == "translate" and words.count("--model") == 3]
    assert [teaching[number + 1] for number, word in enumerate(teaching) if word == "--model"] == ensemble


# ------------------------------------------------------------------------------------------- configurations


def test_the_backward_model_reads_what_the_forward_one_writes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    improved(monkeypatch, Pretended())
    there, back = (load_config(FOLDER / f"configs/{name}.yaml") for name in ("baseline", "backward"))
    assert (back.data.src_lang, back.data.tgt_lang) == ("zh", "en") == (there.data.tgt_lang, there.data.src_lang)
    for key in ("train", "exclude"):
        sides = [[(one.src, one.tgt) for one in getattr(config.data, key)] for config in (there, back)]
        assert sides[0] == [(tgt, src) for src, tgt in sides[1]] != []
    assert (there.data.validation.src, there.data.validation.tgt) == (
        back.data.validation.tgt,
        back.data.validation.src,
    )
    sections, _ = _read("baseline")
    assert configuring.swapped(configuring.swapped(sections)) == sections


def _read(name: str) -> tuple[configuring.Sections, object]:
    before = Path.cwd()
    os.chdir(FOLDER)
    try:
        return configuring.read_sections(name)
    finally:
        os.chdir(before)


def test_both_directions_are_learned_for_a_third_of_the_updates(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    improved(monkeypatch, Pretended())
    start, rest = (load_config(FOLDER / f"configs/{name}.yaml") for name in ("bidirectional_start", "bidirectional"))
    assert [(one.src.name, one.tgt.name) for one in start.data.train if one.src and one.tgt] == [
        ("train.en", "train.zh"), ("train.zh", "train.en")]  # fmt: skip
    assert {one.src.name for one in start.data.exclude if one.src} == {
        "test.test.en", "test.test.zh", "validation.zh"}  # fmt: skip
    assert (start.training.max_steps, rest.training.max_steps) == (20, 40)
    assert (rest.training.learning_rate, rest.training.schedule, rest.training.patience) == (5e-3, "cosine", None)
    assert not rest.data.test  # no training scores a test set


def test_no_fold_is_translated_by_models_that_have_learned_from_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wish = Wish(Path("../tiny.yaml"), steps=("diversification",), folds=3)
    improved(monkeypatch, pretended := Pretended(), wish)
    folds = [set(lines_of(FOLDER / f"text/folds/fold{number}.en")) for number in (1, 2, 3)]
    assert (
        sum(map(len, folds)) == len(folds[0] | folds[1] | folds[2]) == len(set(lines_of(FOLDER / "text/real/train.en")))
    )
    translations = [words for words in pretended.commands if words[0] == "translate"]
    assert len(translations) == 6
    for words in translations:
        run, fold = words[words.index("--model") + 1], words[words.index("--input") + 1]
        config = load_config(FOLDER / f"configs/{Path(run).name}.yaml")
        learned = {file.name for one in config.data.train for file in (one.src_file, one.tgt_file)}
        assert len(learned) == 4
        assert not {name for name in learned if name.split(".")[0] == Path(fold).stem}
        assert config.training.max_steps == 40  # two thirds of the pairs, each as often
    candidate = load_config(FOLDER / "configs/diversification.yaml")
    assert sum(len(lines_of(one.src_file)) for one in candidate.data.train) == 3 * len(
        lines_of(FOLDER / "text/real/train.en")
    )


@pytest.mark.parametrize(
    ("given", "share", "growth", "expected"),
    [
        ({"max_steps": 900, "warmup_steps": 200}, 1 / 3, 2.0, {"max_steps": 300, "warmup_steps": 150}),
        ({"max_epochs": 30}, 1 / 3, 2.0, {"max_epochs": 5}),  # half as many updates an epoch of the doubled text need
        ({"max_epochs": 30}, 1.0, 3.0, {"max_epochs": 10}),
        ({"max_epochs": 2}, 1 / 3, 2.0, {"max_epochs": 1}),
        ({"max_minutes": 90}, 2 / 3, 1.0, {"max_minutes": 60.0}),
    ],
)
def test_a_share_of_the_updates(
    given: dict[str, float], share: float, growth: float, expected: dict[str, float]
) -> None:
    settings = TrainingConfig.model_validate({"schedule": "constant", **given})
    found = configuring.limits(settings, share, growth)
    assert {key: pytest.approx(found[key]) for key in expected} == expected


# ------------------------------------------------------------------------------------------- what is kept apart


def test_held_out_lines_of_monolingual_text_are_left_out(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    improved(monkeypatch, Pretended())
    for name, side in (("back_translation", "zh"), ("self_training", "en")):
        given = set(lines_of(here / f"mono.{side}"))
        (file,) = (FOLDER / f"text/{name}").glob(f"mono*.{side}")
        held_out = set(lines_of(here / f"val.{side}")) | set(lines_of(here / f"test.{side}"))
        assert len(given & held_out) == 4
        assert set(lines_of(file)) == given - held_out


@pytest.mark.parametrize(("held_out", "side"), [("val", "en"), ("val", "zh"), ("test", "en"), ("test", "zh")])
def test_a_held_out_line_in_a_synthetic_text_stops_everything(
    here: Path, monkeypatch: pytest.MonkeyPatch, held_out: str, side: str
) -> None:
    pretended = Pretended()

    def leaking(command: Command, folder: Path) -> int:
        code = pretended(command, folder)
        if command.arguments[0] == "data" and "text/student" in command.arguments:
            for file in (folder / "text/student").glob("train.??"):
                line = lines_of(here / f"{held_out}.{side}")[3] if file.suffix == f".{side}" else "something\n"
                with file.open("a", encoding="utf-8") as opened:
                    opened.write(line)
        return code

    monkeypatch.setattr(running, "_run", leaking)
    draft = drafted(Wish(Path("../tiny.yaml"), steps=("student",)))
    name = "validation" if held_out == "val" else "test.test"
    with pytest.raises(DataError, match=rf"text/student/train\.{side}:\d+: leakage: .* is a line of {name}"):
        carry_out(draft.plan(), draft.makers, FOLDER, lambda line: None)
    assert not (FOLDER / "runs/student").exists()


def test_the_manifest_says_what_each_model_saw(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    improved(monkeypatch, Pretended())
    manifest = json.loads((FOLDER / "manifest.json").read_text())
    made_from = manifest["text/translated/mono_tgt.txt"]["made_from"]
    assert made_from == {"runs/backward/model.safetensors": hashlib.sha256(b"backward").hexdigest(),
                         "../mono.zh": hashlib.sha256((here / "mono.zh").read_bytes()).hexdigest()}  # fmt: skip
    text = (FOLDER / "text/held_out/validation.zh").read_bytes()
    assert manifest["held_out"]["text/held_out/validation.zh"] == hashlib.sha256(text).hexdigest()
    assert str(here) not in json.dumps(manifest)


# ------------------------------------------------------------------------------------------- resuming


def test_killed_before_any_command_it_resumes_to_the_same_files(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wish = Wish(Path("../tiny.yaml"), steps=("bidirectional", "averaging"))
    improved(monkeypatch, whole := Pretended({"bidirectional": 1.0}), wish, Path("whole"))
    improved(monkeypatch, Pretended({"bidirectional": 1.0}), wish, Path("whole"))  # nothing is left to do
    interrupted, runs = 0, list[list[str]]()
    while not (FOLDER / "manifest.json").exists():
        pretended = Pretended({"bidirectional": 1.0})
        pretended.stop_at = 2
        try:
            improved(monkeypatch, pretended, wish)
        except KeyboardInterrupt:
            interrupted += 1
        runs += pretended.commands[:1]
    assert interrupted == len(whole.commands) - 1
    assert runs == whole.commands
    assert hashes(FOLDER) == hashes(Path("whole"))


def test_a_command_that_fails_ends_the_plan_with_its_exit_code(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_run", lambda command, folder: 3)
    draft = drafted()
    with pytest.raises(TargetError, match=r"text/real/cleaning\.tsv: could not be made: nmt data") as raised:
        carry_out(draft.plan(), draft.makers, FOLDER, lambda line: None)
    assert raised.value.exit_code == 3


def test_a_folder_is_resumed_with_the_same_options_or_more_steps(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = Wish(Path("../tiny.yaml"), steps=("bidirectional",))
    improved(monkeypatch, Pretended(), short)
    longer = Wish(Path("../tiny.yaml"), steps=("bidirectional", "self_training"), mono_src=Path("../mono.en"))
    improved(monkeypatch, pretended := Pretended(), longer)
    assert [words[0] for words in pretended.commands] == ["translate", "data", "train", "eval"]
    assert "runs/self_training" in json.loads((FOLDER / "manifest.json").read_text())
    for message, other in {
        'mono_src: "../mono.en", and now it is null': Wish(Path("../tiny.yaml"), steps=("bidirectional",)),
        'decisions: ["baseline", "bidirectional", "self_training"], and now it is ["baseline", "cutoff"]':
            Wish(Path("../tiny.yaml"), steps=("cutoff",), mono_src=Path("../mono.en")),
        "min_gain: 0.3, and now it is 1.0":
            Wish(Path("../tiny.yaml"), steps=("bidirectional",), min_gain=1.0, mono_src=Path("../mono.en")),
        "training.seed: 1, and now it is 3":
            Wish(Path("../tiny.yaml"), ("training.seed=3",), steps=("bidirectional", "self_training"),
                 mono_src=Path("../mono.en")),
    }.items():  # fmt: skip
        with pytest.raises(ConfigError, match=re.escape(f"was begun with {message}")):
            begin(drafted(other), FOLDER)


def test_a_folder_that_make_has_begun_is_resumed_and_another_one_is_refused(here: Path) -> None:
    FOLDER.mkdir()
    (FOLDER / "runs").mkdir()
    with pytest.raises(ConfigError, match="not a folder of nmt improve"):
        begin(drafted(), FOLDER)
    (FOLDER / "Makefile").write_text(drafted().plan().to_makefile(), encoding="utf-8")
    begin(drafted(), FOLDER)
    assert (FOLDER / "improve.json").exists()


# ------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (Wish(Path("../tiny.yaml"), steps=("magic",)), "there is no such step; there are baseline, "),
        (Wish(Path("../tiny.yaml"), steps=("back_translation",)), "--mono-tgt FILE"),
        (Wish(Path("../tiny.yaml"), ("tokenizer.joint=false", "model.tie_embeddings=none"),
              steps=("bidirectional",)), "tokenizer.joint: true"),
        (Wish(Path("../tiny.yaml"), ("data.temperature=2",)), "data.temperature"),
        (Wish(Path("../tiny.yaml"), ("training.init_from=other",)), "nmt adapt"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said_at_once(here: Path, wish: Wish, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        drafted(wish)


def test_a_step_that_does_not_apply_is_left_out_by_default(here: Path) -> None:
    plan = drafted(Wish(Path("../tiny.yaml"), ("tokenizer.joint=false", "model.tie_embeddings=none"))).plan()
    assert [line.partition(":")[0] for line in plan.left_out] == [
        "bidirectional", "backward", "back_translation", "self_training", "filtering"]  # fmt: skip
    assert "runs/bidirectional.done" not in {target.file for target in plan.targets}


def test_only_own_files_of_the_plan_can_be_made_alone(here: Path, cli: Cli) -> None:
    code, _, err = cli("improve", "--config", "tiny.yaml", "--make", "runs/baseline.done")
    assert (code, "plan no such file" in err) == (2, True)


# ------------------------------------------------------------------------------------------- trained for real

OPTIONS = ["--config", "tiny.yaml", "--mono-tgt", "mono.zh", "--mono-src", "mono.en"]


def started(folder: Path, *options: str) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "nmt", "improve", *OPTIONS, *options]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log)


@pytest.mark.slow
def test_the_whole_command_trains_every_step(tmp_path: Path) -> None:
    write_tiny(tmp_path, 400)
    process = started(tmp_path, "--min-gain", "-100", "--json")
    out, _ = process.communicate()
    assert process.returncode == 0, (tmp_path / "log").read_text()
    found = json.loads(out)
    assert found["best"] == "tiny.improve/runs/fine_tuning"
    assert [step["step"] for step in found["steps"]] == [
        "baseline", "bidirectional", "cutoff", "backward", "diversification", "back_translation", "self_training",
        "filtering", "student", "averaging", "fine_tuning"]  # fmt: skip
    assert all(step["decision"]["kept"] for step in found["steps"] if step["decision"])
    manifest = json.loads((tmp_path / FOLDER / "manifest.json").read_text())
    saw = {file for corpus in manifest["runs/student"]["train"] for file in corpus}
    assert {file.split("/")[1] for file in saw} == {"student"}
    made = subprocess.run(["make", "-q", "-C", str(tmp_path / FOLDER)], capture_output=True)
    assert made.returncode == 0  # make finds nothing left to do


@pytest.mark.slow
def test_killed_five_times_the_files_are_the_same(tmp_path: Path) -> None:
    options = ["--steps", "bidirectional,back_translation", "--min-gain", "-100",
               "--set", "training.max_steps=18", "--set", "training.validate_every=6"]  # fmt: skip
    folders = [tmp_path / name for name in ("whole", "killed")]
    for folder in folders:
        folder.mkdir()
        write_tiny(folder, 400)
    began = time.monotonic()
    process = started(folders[0], *options)
    process.communicate()
    assert process.returncode == 0, (folders[0] / "log").read_text()
    whole = time.monotonic() - began
    seconds, kills = random.Random(7), 0
    while True:
        process = started(folders[1], *options)
        try:
            process.communicate(timeout=seconds.uniform(0.1, 0.4) * whole if kills < 5 else None)
            break
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            kills += 1
    assert (process.returncode, kills) == (0, 5), (folders[1] / "log").read_text()
    whole_files, killed_files = (hashes(folder / FOLDER) for folder in folders)
    assert whole_files == killed_files
    assert [name for name in whole_files if name.endswith("model.safetensors")]

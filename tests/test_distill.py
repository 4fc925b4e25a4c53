"""`nmt distill`: the choice by chrF, the plan, what is kept apart, which teachers are refused, and a real one."""

import contextlib
import hashlib
import json
import logging
import os
import re
import subprocess
from pathlib import Path

import pytest
import sacrebleu
import yaml
from conftest import Cli
from test_improve import CONFIG, Pretended, hashes, lines_of, write_tiny

from nmt.config.file import load_config
from nmt.config.inference import TokenizerConfig
from nmt.data.tokenizer import Tokenizers, WordTokenizer, save_tokenizers
from nmt.errors import ConfigError, DataError, NmtError
from nmt.improving import running
from nmt.improving.beginning import begin
from nmt.improving.distilling import Distillation, distillation_draft
from nmt.improving.drafting import Draft
from nmt.improving.manifest import add_manifest
from nmt.improving.nearest import best_lines, nearest_lines
from nmt.improving.plan import Command
from nmt.improving.running import carry_out
from nmt.improving.teachers import open_teachers
from nmt.inheritance import starting_run
from nmt.runs import RunFolder

FOLDER = Path("tiny.distill")
TEACHERS = (Path("../runs/one"), Path("../runs/two"))
ASKED = Distillation(Path("../tiny.yaml"), TEACHERS, mono_src=Path("../mono.en"), n_best=2)
COMMAND = ["distill", "--teacher", "one", "--teacher", "two", "--config", "tiny.yaml"]


def write_teacher(folder: Path, name: str, **data: object) -> None:
    """A run that has been trained on the tiny text, or on what `data` says, and translates nothing."""
    run = folder / "runs" / name
    settings = yaml.safe_load(CONFIG)
    settings["data"] |= {"src_lang": "en", "tgt_lang": "zh", **data}
    for corpus in (settings["data"][key] for key in ("train", "validation", "test")):
        corpus |= {side: str(folder / corpus[side]) for side in ("src", "tgt")}
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    (run / "model.safetensors").write_text(name, encoding="utf-8")
    words = WordTokenizer.train(["ein mann schläft"], TokenizerConfig(type="word", vocab_size=20))
    save_tokenizers(Tokenizers(words, words), run / "tokenizer", "")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path)
    for name in ("one", "two"):
        write_teacher(tmp_path, name)
    return tmp_path


class PretendedTeachers(Pretended):
    """As `Pretended`; of two translations the second is nearer to the reference."""

    def __call__(self, command: Command, folder: Path) -> int:
        code = super().__call__(command, folder)
        words = self.commands[-1]
        if words[0] == "translate" and "--json" in words:
            output = folder / words[words.index("--output") + 1]
            references = lines_of(folder / "text/real/train.zh")
            texts = [["?", line.strip() + "."] for line in references]
            records = [{"text": one[0], "n_best": [{"text": text} for text in one]} for one in texts]
            output.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
        return code


def drafted(asked: Distillation = ASKED) -> Draft:
    draft = distillation_draft(asked, load_config(Path("tiny.yaml"), asked.overrides))
    add_manifest(draft)
    return draft


def distilled(monkeypatch: pytest.MonkeyPatch, asked: Distillation = ASKED) -> list[list[str]]:
    """The commands of a plan that was carried out with pretended trainings."""
    monkeypatch.setattr(running, "_run", pretended := PretendedTeachers())
    draft = drafted(asked)
    begin(draft, FOLDER)
    carry_out(draft.plan(), draft.makers, FOLDER, lambda line: None)
    return pretended.commands


# ------------------------------------------------------------------------------------------- the choice


def test_the_translation_nearest_to_the_reference_is_chosen(tmp_path: Path) -> None:
    cases = [
        ("Ein Mann schläft auf dem Sofa.", ["Jemand schläft.", "Ein Mann schlief auf dem Sofa.", "Ein Mann."]),
        ("Zwei Hunde rennen.", ["Zwei Hunde rennen.", "Zwei Hunde laufen."]),
        ("abcdefgh", ["xxxx", "yyyy"]),  # both 0: the more probable one
        ("Eine Frau", ["Eine Frau, die steht", "Eine"]),
    ]
    n_best, references = tmp_path / "n_best.jsonl", tmp_path / "references"
    records = [{"text": texts[0], "n_best": [{"text": text} for text in texts]} for _, texts in cases]
    records.append({"text": "😀", "n_best": []})
    n_best.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records), encoding="utf-8")
    references.write_text("".join(f"{reference}\n" for reference, _ in cases) + "😀\n", encoding="utf-8")
    expected = []
    for reference, texts in cases:
        scores = [sacrebleu.sentence_chrf(text, [reference]).score for text in texts]
        expected.append(texts[scores.index(max(scores))])
    assert expected[:3] == ["Ein Mann schlief auf dem Sofa.", "Zwei Hunde rennen.", "xxxx"]
    assert nearest_lines(n_best, references).splitlines() == [*expected, "😀"]
    assert best_lines(n_best).splitlines() == [*(texts[0] for _, texts in cases), "😀"]
    references.write_text("one line\n", encoding="utf-8")
    with pytest.raises(DataError, match="is not the translation of"):
        nearest_lines(n_best, references)


# ------------------------------------------------------------------------------------------- the plan


def test_the_commands_of_the_plan(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = distilled(monkeypatch)
    models = ["--model", "../runs/one", "--model", "../runs/two"]
    search = ["--continue", "--engine", "torch"]
    assert [words for words in commands if words[0] != "data"] == [
        ["translate", *models, "--input", "text/real/train.en", "--output", "text/translated/1.jsonl", *search,
         "--json", "--n-best", "2", "--beam-size", "2"],
        ["translate", *models, "--input", "../mono.en", "--output", "text/translated/mono_src.txt", *search],
        ["train", "configs/student.yaml"],
    ]  # fmt: skip
    student = load_config(FOLDER / "configs/student.yaml")
    assert [corpus.tgt_file.parent.name for corpus in student.data.train] == ["distilled", "distilled", "monolingual"]
    best, nearest = (lines_of(corpus.tgt_file) for corpus in student.data.train[:2])
    assert best == ["?\n"] * len(best)
    assert nearest == [line.strip() + ".\n" for line in lines_of(FOLDER / "text/real/train.zh")]
    assert list(student.data.test) == ["test"]
    assert (student.training.max_steps, student.export.after_training) == (60, ("ctranslate2",))
    made_from = json.loads((FOLDER / "manifest.json").read_text())["text/translated/1.jsonl"]["made_from"]
    assert {"../runs/one/model.safetensors", "../runs/two/model.safetensors"} < made_from.keys()


def test_one_translation_is_of_the_teachers_own_search(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = distilled(monkeypatch, Distillation(**{**vars(ASKED), "n_best": 1}))
    assert commands[1][-3:] == ["--json", "--n-best", "1"]
    assert [path.parent.name for path in (FOLDER / "text").glob("*/1.txt")] == ["best"]
    assert len(load_config(FOLDER / "configs/student.yaml").data.train) == 2  # with the monolingual text


def test_the_real_pairs_stay_in_if_asked_for(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distilled(monkeypatch, Distillation(**{**vars(ASKED), "keep_real": True, "mono_src": None}))
    data = load_config(FOLDER / "configs/student.yaml").data
    assert [corpus.tgt_file.parent.name for corpus in data.train] == ["real", "distilled", "distilled"]


def test_a_corpus_keeps_its_weight(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = "data.train={src: train.en, tgt: train.zh, weight: 2}"
    distilled(monkeypatch, Distillation(**{**vars(ASKED), "overrides": (train,)}))
    data = load_config(FOLDER / "configs/student.yaml").data
    assert [(corpus.src_file.parent.name, corpus.weight) for corpus in data.train] == [
        ("distilled", 2.0), ("distilled", 2.0), ("monolingual", 1.0)]  # fmt: skip


def test_a_student_that_starts_from_a_run(here: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setattr(running, "_run", PretendedTeachers())
    settings = ["--set", "training.init_from=two", "--set", "training.learning_rate=1e-3"]
    for _ in range(2):  # the second finds all there
        assert cli("distill", "--teacher", "one", "--config", "tiny.yaml", "--n-best", "2", *settings)[0] == 0
    monkeypatch.chdir(FOLDER)  # where the plan's commands run
    training = load_config(Path("configs/student.yaml")).training
    assert (training.init_from, training.learning_rate) == ("../runs/two", 1e-3)
    assert starting_run("../runs/two").path.resolve() == here / "runs/two"
    assert json.loads(Path("text/held_out/teachers.json").read_text()).keys() == {"../runs/one", "../runs/two"}
    # The words of the Makefile say the same from there.
    words = ["--teacher", "../runs/one", "--config", "../tiny.yaml", "--n-best", "2", *settings[2:]]
    code, out, _ = cli("distill", *words, "--set", "training.init_from=../runs/two", "--make", "configs/student.yaml")
    assert (code, out) == (0, "")
    assert load_config(Path("configs/student.yaml")).training == training


def test_a_folder_is_of_the_options_that_began_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distilled(monkeypatch)
    for change in ({"n_best": 3}, {"mono_src": None}, {"teachers": TEACHERS[:1]}):
        with pytest.raises(ConfigError, match="was begun with"):
            begin(drafted(Distillation(**{**vars(ASKED), **change})), FOLDER)


def test_printing_the_plan_writes_nothing(here: Path, cli: Cli) -> None:
    before = sorted(here.rglob("*"))
    code, out, _ = cli(*COMMAND, "--plan", "--n-best", "2", "--mono-src", "mono.en")
    assert (code, out) == (0, drafted().plan().to_makefile())
    assert sorted(here.rglob("*")) == before
    made = subprocess.run(["make", "-n", "-f", "-", "NMT=nmt"], input=out, capture_output=True, text=True, check=True)
    shown = [line.split()[1] for line in made.stdout.splitlines() if line.startswith("nmt ")]
    assert sorted(set(shown)) == ["data", "distill", "train", "translate"]


# ------------------------------------------------------------------------------------------- what is kept apart


def test_held_out_lines_are_in_no_text_to_learn_from(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for side in ("en", "zh"):  # pairs of the validation and test sets in the training text, too
        with (here / f"train.{side}").open("a", encoding="utf-8") as file:
            file.writelines(lines_of(here / f"{name}.{side}")[5] for name in ("val", "test"))
    write_teacher(here, "apart", cleaning={"overlap": True})
    distilled(monkeypatch, Distillation(**{**vars(ASKED), "teachers": (Path("../runs/apart"),), "keep_real": True}))
    held_out = {line for name in ("val", "test") for line in lines_of(here / f"{name}.en")}
    for name in ("real", "distilled", "monolingual"):
        files = list((FOLDER / "text" / name).glob("*.en"))
        assert files
        assert not held_out & {line for file in files for line in lines_of(file)}
    assert not held_out & set(lines_of(FOLDER / "text/real/train.en"))  # what the teachers translate


def test_a_teacher_that_has_learned_the_validation_set_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_teacher(here, "cheat", train={"src": "val.en", "tgt": "val.zh"}, validation={"src": "test.en",
                  "tgt": "test.zh"})  # fmt: skip
    with pytest.raises(ConfigError, match=r"runs/cheat: has learned 10 of the 10 pairs of the student's validation"):
        distilled(monkeypatch, Distillation(**{**vars(ASKED), "teachers": (Path("../runs/cheat"),)}))
    assert not (FOLDER / "text/translated").exists()


@pytest.mark.parametrize(("apart", "seen"), [(False, 1), (True, 0)])
def test_a_pair_that_a_teacher_has_learned_by_chance_is_a_warning(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, apart: bool, seen: int
) -> None:
    for side in ("en", "zh"):
        lines = [*lines_of(here / f"train.{side}"), lines_of(here / f"val.{side}")[3]]
        (here / f"more.{side}").write_text("".join(lines), encoding="utf-8")
    write_teacher(here, "more", train={"src": "more.en", "tgt": "more.zh"}, cleaning={"overlap": apart})
    caplog.set_level(logging.WARNING)
    distilled(monkeypatch, Distillation(**{**vars(ASKED), "teachers": (Path("../runs/more"),)}))
    found = json.loads((FOLDER / "text/held_out/teachers.json").read_text())
    assert found == {"../runs/more": {"validation": seen, "test.test": 0}}
    assert ("has learned 1 of the 10 pairs of the student's validation" in caplog.text) == (not apart)


def test_a_teacher_whose_text_is_gone_is_a_warning(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_teacher(here, "old", train={"src": "gone.en", "tgt": "gone.zh"})
    distilled(monkeypatch, Distillation(**{**vars(ASKED), "teachers": (Path("../runs/old"),)}))
    assert "runs/old: whether it has learned the student's held-out text is not known" in caplog.text


# ------------------------------------------------------------------------------------------- what is refused


def test_what_cannot_be_done_is_said_at_once(here: Path, cli: Cli) -> None:
    write_teacher(here, "back", src_lang="zh", tgt_lang="en")
    write_teacher(here, "other")
    words = WordTokenizer.train(["eine frau steht"], TokenizerConfig(type="word", vocab_size=20))
    save_tokenizers(Tokenizers(words, words), here / "runs/other/tokenizer", "")
    student, teacher = ["--config", "tiny.yaml"], ["--teacher", "one"]
    start = ["--set", "training.init_from=two"]
    for options, message in (
        (teacher, "name the student's configuration and its teachers"),
        (student, "name the student's configuration and its teachers"),
        ([*student, "--teacher", "none"], "none: no such run"),
        ([*student, *teacher, *teacher], "is named twice"),
        ([*student, *teacher, "--teacher", "back"], "translates zh-en, and the student en-zh"),
        ([*student, *teacher, "--teacher", "other"], "have different vocabularies"),
        ([*student, *teacher, "--folder", "."], "is in the folder of its student"),
        ([*student, *teacher, "--mono-src", "none"], "no such file"),
        ([*student, *teacher, "--set", "training.init_from=none"], "training.init_from: none: no such run"),
        ([*student, *teacher, *start, "--folder", "."], "runs/two is in the folder of the student"),
        ([*student, *teacher, *start, "--set", "model.d_model=64"], "training.init_from: runs/two has another model"),
        ([*student, *teacher, "--make", "a", "--plan"], "leave out --plan"),
    ):
        code, _, err = cli("distill", *options)
        assert (code, message in err) == (2, True), (options, err)
    FOLDER.mkdir()
    os.chdir(FOLDER)
    code, _, err = cli("distill", "--teacher", "../runs/one", "--config", "../tiny.yaml", "--make", "runs/student.done")
    assert (code, "these options plan no such file that nmt distill makes itself" in err) == (2, True)
    (here / "runs/one/export.json").write_text("{}", encoding="utf-8")
    with pytest.raises(NmtError, match=re.escape("is an export; name the run that it was made from")):
        open_teachers(["../runs/one"], load_config(Path("../tiny.yaml")), Path())


# ------------------------------------------------------------------------------------------- trained for real


@pytest.mark.slow
def test_a_distillation_that_is_stopped_ends_with_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path, 200)
    with (tmp_path / "tiny.yaml").open("a", encoding="utf-8") as file:
        file.write("evaluation: {report: false}\nexport: {after_training: []}\n")
    sets = ["--set", "training.max_steps=30", "--set", "training.validate_every=15"]
    for name, seed in (("one", 1), ("two", 2)):
        code, _, errors = cli("train", "tiny.yaml", "--name", name, *sets, "--set", f"training.seed={seed}")
        assert code == 0, errors
    budget = [0]

    def here(command: Command, folder: Path) -> int:
        """Runs a command of the plan in this process, which saves the time to start another, or is killed."""
        budget[0] -= 1
        if budget[0] < 0:
            raise KeyboardInterrupt
        with contextlib.chdir(folder):
            code, _, errors = cli(*running._words(command, folder))
        assert code == 0, errors
        return code

    monkeypatch.setattr(running, "_run", here)
    options = ["--mono-src", "mono.en", "--n-best", "3", "--set", "model.num_encoder_layers=2", *sets]
    budget[0] = 100
    code, out, errors = cli(*COMMAND, *options, "--folder", "whole")
    assert (code, out.splitlines()) == (0, [
        "the student: whole/runs/student", "  nmt translate --model whole/runs/student",
        "  nmt eval --model whole/runs/student", "  nmt export ctranslate2 --model whole/runs/student",
    ]), errors  # fmt: skip
    for commands in (2, 3, 100):  # killed before a translation, before the training, and not at all
        budget[0] = commands
        with contextlib.suppress(KeyboardInterrupt):
            cli(*COMMAND, *options, "--folder", "stopped")
    files = hashes(tmp_path / "whole")
    assert files == hashes(tmp_path / "stopped")
    assert {"manifest.json", "runs/student/model.safetensors"} < files.keys()
    assert RunFolder(Path("whole/runs/student")).config().model.num_encoder_layers == 2
    chosen = lines_of(tmp_path / "whole/text/nearest/1.txt")
    references = lines_of(tmp_path / "whole/text/real/train.zh")
    records = [json.loads(line) for line in lines_of(tmp_path / "whole/text/translated/1.jsonl")]
    assert all(len(one["n_best"]) == 3 for one in records)
    for line, reference, record in list(zip(chosen, references, records, strict=True))[::20]:
        scores = [sacrebleu.sentence_chrf(one["text"], [reference.strip()]).score for one in record["n_best"]]
        assert line.strip() == record["n_best"][scores.index(max(scores))]["text"].strip()
    started = ["--n-best", "1", "--set", "training.init_from=two", *sets[:2]]
    budget[0] = 100
    code, _, errors = cli("distill", "--teacher", "one", "--config", "tiny.yaml", *started, "--folder", "started")
    assert code == 0, errors
    manifest = json.loads(Path("started/manifest.json").read_text())
    assert manifest["runs/student"]["init_from"] == {
        "../runs/two": hashlib.sha256(Path("runs/two/model.safetensors").read_bytes()).hexdigest()
    }

"""`nmt distill`: the choice by chrF, the text that is learned, what is held out, which teachers are refused, and a real
one."""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import yaml
from conftest import Cli

from nmt.cleaning.selection import select
from nmt.config.inference import DecodingConfig, TokenizerConfig
from nmt.config.reading import load_config
from nmt.config.training import Config
from nmt.corpora.pairs import read_pairs
from nmt.decoding.hypothesis import Request
from nmt.decoding.translator import Translation
from nmt.errors import ConfigError, DataError, RunError
from nmt.recipes import distill
from nmt.recipes.distill import choose, write_student
from nmt.runs.folder import RunFolder
from nmt.system.files import locked
from nmt.tokenizers.tokenizer import Tokenizers, WordTokenizer, save_tokenizers

TINY = Path(__file__).parents[2] / "data" / "tiny"
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
decoding: {beam_size: 3, max_length: 30}
"""
FOLDER = Path("tiny.distill")
COMMAND = ["distill", "--teacher", "one", "--teacher", "two", "--config", "tiny.yaml"]


def lines_of(path: Path, start: int = 0, stop: int | None = None) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines(keepends=True)[start:stop]


def write_tiny(folder: Path, pairs: int = 80) -> None:
    """A cut of the tiny corpus; the monolingual text has lines of the validation and test sets among its own."""
    mono = lines_of(TINY / "train.en", 500, 530)
    for side in ("en", "zh"):
        for name, start, stop in (("train", 0, pairs), ("val", 0, 10), ("test", 0, 10)):
            lines = lines_of(TINY / f"{name}.{side}", start, stop)
            (folder / f"{name}.{side}").write_text("".join(lines), encoding="utf-8")
            mono += lines[:2] if name != "train" and side == "en" else []
    (folder / "mono.en").write_text("".join(mono), encoding="utf-8")
    (folder / "tiny.yaml").write_text(CONFIG, encoding="utf-8")


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


class PretendedTeachers:
    """In the place of `load`: of two translations the second is nearer to the reference."""

    engine_name = "pretended"

    def __init__(self, folder: Path) -> None:
        self.references = dict(zip(lines_of(folder / "train.en"), lines_of(folder / "train.zh"), strict=True))
        self.calls: list[tuple[list[str], int]] = []
        """The models of each call, and the beam."""

    def __call__(
        self, models: Sequence[Path], decoding: DecodingConfig, engine: str, own_process: bool
    ) -> "PretendedTeachers":
        assert engine == "torch"
        self.calls.append(([model.name for model in models], decoding.beam_size))
        return self

    def stream(
        self, blocks: Iterable[Sequence[str]], first: int, prefixes: None, request: Request
    ) -> Iterator[Translation]:
        for line in (line for block in blocks for line in block):
            reference = self.references.get(f"{line}\n", "").strip()
            yield Translation("?", 1, n_best=(("?", -1.0), (f"{reference}.", -2.0)))


def distilled(monkeypatch: pytest.MonkeyPatch, *, teachers: Sequence[str] = ("one", "two"),
              overrides: Sequence[str] = (), **asked: Any) -> tuple[Config, PretendedTeachers]:  # fmt: skip
    """The student's configuration, with pretended translations."""
    monkeypatch.setattr(distill, "load", pretended := PretendedTeachers(Path()))
    options = {"mono_src": Path("mono.en"), "n_best": 2, **asked}
    return load_config(write_student(Path("tiny.yaml"), overrides, teachers, FOLDER, **options)), pretended


def learned(config: Config) -> list[list[tuple[str, str]]]:
    """The pairs of each corpus that the student is trained on."""
    data = config.data
    chosen = select(data.train, data.cleaning, (data.src_lang, data.tgt_lang), data.excluded_from_training)
    assert chosen is not None
    return [list(read_pairs(files, chosen.chosen(index))) for index, files in enumerate(data.train)]


def texts(config: Config) -> list[str]:
    return [corpus.tgt_file.relative_to(FOLDER.resolve() / "text").as_posix() for corpus in config.data.train]


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
    assert choose(n_best, references) == ([*(texts[0] for _, texts in cases), "😀"], [*expected, "😀"])
    references.write_text("one line\n", encoding="utf-8")
    with pytest.raises(DataError, match="is not the translation of"):
        choose(n_best, references)


# ------------------------------------------------------------------------------------------- the text


def test_the_best_translation_and_the_nearest_are_learned(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, teachers = distilled(monkeypatch)
    assert teachers.calls == [(["one", "two"], 2), (["one", "two"], 3)]  # the beam of the teachers' own, without N
    assert texts(config) == ["best/1.txt", "nearest/1.txt", "translated/mono_src.txt"]
    assert [corpus.src_file.name for corpus in config.data.train] == ["train.en", "train.en", "mono.en"]
    best, nearest = (lines_of(corpus.tgt_file) for corpus in config.data.train[:2])
    assert best == ["?\n"] * len(best)
    assert nearest == [line.strip() + ".\n" for line in lines_of(FOLDER / "text/real/train.zh")]
    assert (list(config.data.test), config.data.cleaning.duplicates) == (["test"], "pair")
    assert config.training == load_config(Path("tiny.yaml")).training


def test_one_translation_is_of_the_teachers_own_search(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, teachers = distilled(monkeypatch, n_best=1)
    assert teachers.calls[0][1] == 3
    assert texts(config) == ["best/1.txt", "translated/mono_src.txt"]


def test_the_real_pairs_stay_in_if_asked_for(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, _ = distilled(monkeypatch, keep_real=True, mono_src=None)
    assert texts(config) == ["real/train.zh", "best/1.txt", "nearest/1.txt"]


def test_a_corpus_keeps_its_weight(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, _ = distilled(monkeypatch, overrides=["data.train={src: train.en, tgt: train.zh, weight: 2}"])
    assert [corpus.weight for corpus in config.data.train] == [2.0, 2.0, 1.0]


def test_a_student_that_starts_from_a_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = ["training.init_from=two", "training.learning_rate=1e-3"]
    config, _ = distilled(monkeypatch, teachers=["one"], overrides=overrides)
    assert config.training.init_from == str(here / "runs/two")
    assert config.training.learning_rate == 1e-3


def test_what_is_there_is_not_made_again(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (FOLDER / ".distill.json.abcd_123.nmt-part").mkdir(parents=True)  # of a kill
    before, _ = distilled(monkeypatch)
    after, teachers = distilled(monkeypatch)
    assert (after, teachers.calls) == (before, [])
    for change, key in (
        ({"n_best": 3}, "n_best"), ({"mono_src": None}, "mono_src"), ({"teachers": ["one"]}, "teachers"),
        ({"teachers": ["two", "one"]}, "teachers"),
        ({"keep_real": True}, "keep_real"), ({"overrides": ["data.cleaning={duplicates: source}"]}, "data.cleaning"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"was begun with another {key}"):
            distilled(monkeypatch, **change)
    for name, key in (("train.zh", "text"), ("test.en", "text"), ("mono.en", "mono_src"),
                      ("runs/one/model.safetensors", "teachers")):  # fmt: skip
        content = (here / name).read_bytes()
        (here / name).write_bytes(b"." + content)
        with pytest.raises(ConfigError, match=f"was begun with another {key}"):
            distilled(monkeypatch)
        (here / name).write_bytes(content)


def test_a_corpus_of_which_nothing_is_left_is_not_learned(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = "data.train=[{src: val.en, tgt: val.zh}, {src: train.en, tgt: train.zh}]"
    config, teachers = distilled(monkeypatch, overrides=[both], mono_src=None)
    assert (texts(config), len(teachers.calls)) == (["best/2.txt", "nearest/2.txt"], 1)


def test_two_processes_do_not_work_in_one_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with locked(FOLDER, wait=False), pytest.raises(RunError, match="another process is at work here"):
        distilled(monkeypatch)


def test_a_folder_of_something_else_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (FOLDER / "runs").mkdir(parents=True)
    with pytest.raises(ConfigError, match="not a folder of nmt distill"):
        distilled(monkeypatch)


# ------------------------------------------------------------------------------------------- what is held out


def test_held_out_lines_are_in_no_text_to_learn_from(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for side in ("en", "zh"):  # pairs of the held-out texts in the training text, too
        (here / f"apart.{side}").write_text("".join(lines_of(TINY / f"train.{side}", 600, 610)), encoding="utf-8")
        with (here / f"train.{side}").open("a", encoding="utf-8") as file:
            file.writelines(lines_of(here / f"{name}.{side}")[5] for name in ("val", "test", "apart"))
    with (here / "mono.en").open("a", encoding="utf-8") as file:
        file.writelines(lines_of(here / "apart.en")[:2])
    write_teacher(here, "careful", cleaning={"overlap": True})
    apart = ["data.exclude=[{src: apart.en, tgt: apart.zh}]"]
    config, _ = distilled(monkeypatch, teachers=["careful"], keep_real=True, overrides=apart)
    for side, language in enumerate(("en", "zh")):
        held_out = {line.strip() for name in ("val", "test", "apart") for line in lines_of(here / f"{name}.{language}")}
        assert not held_out & {pair[side] for corpus in learned(config) for pair in corpus}
        assert not held_out & {line.strip() for line in lines_of(FOLDER / f"text/real/train.{language}")}
    assert [len(corpus) for corpus in learned(config)] == [80, 80, 80, 30]


def test_drawn_hold_outs_are_held_out(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_teacher(here, "other", train={"src": "mono.en", "tgt": "mono.en"})
    config, _ = distilled(monkeypatch, teachers=["other"], overrides=["data.validation={holdout: 10}"])
    held_out = lines_of(here / "tiny.validation.en")
    assert (len(held_out), config.data.validation.src_file) == (10, here / "tiny.validation.en")
    assert not set(held_out) & set(lines_of(FOLDER / "text/real/train.en"))


def test_pairs_that_are_learned_choose_no_model(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"data\.validation: the training pairs would choose the best model"):
        distilled(monkeypatch, overrides=["data.validation={holdout: 0}"])


def test_a_teacher_that_has_learned_the_validation_set_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_teacher(here, "cheat", train={"src": "val.en", "tgt": "val.zh"}, validation={"src": "test.en",
                  "tgt": "test.zh"})  # fmt: skip
    with pytest.raises(ConfigError, match=r"runs/cheat: has learned 10 of the 10 pairs of the student's validation"):
        distilled(monkeypatch, teachers=["cheat"])
    assert not (FOLDER / "text/translated").exists()


@pytest.mark.parametrize("apart", [False, True])
def test_a_pair_that_a_teacher_has_learned_by_chance_is_a_warning(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, apart: bool
) -> None:
    for side in ("en", "zh"):
        lines = [*lines_of(here / f"train.{side}"), lines_of(here / f"val.{side}")[3]]
        (here / f"more.{side}").write_text("".join(lines), encoding="utf-8")
    write_teacher(here, "more", train={"src": "more.en", "tgt": "more.zh"}, cleaning={"overlap": apart})
    caplog.set_level(logging.WARNING)
    distilled(monkeypatch, teachers=["more"])
    assert ("has learned 1 of the 10 pairs of the student's validation" in caplog.text) == (not apart)
    assert "pairs of the student's test" not in caplog.text


def test_a_teacher_whose_text_is_gone_is_a_warning(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_teacher(here, "old", train={"src": "gone.en", "tgt": "gone.zh"})
    distilled(monkeypatch, teachers=["old"])
    assert "runs/old: cannot tell whether it has learned the student's held-out text" in caplog.text


# ------------------------------------------------------------------------------------------- what is refused


def test_what_cannot_be_done_is_said_at_once(here: Path, cli: Cli) -> None:
    write_teacher(here, "back", src_lang="zh", tgt_lang="en")
    write_teacher(here, "other")
    words = WordTokenizer.train(["eine frau steht"], TokenizerConfig(type="word", vocab_size=20))
    save_tokenizers(Tokenizers(words, words), here / "runs/other/tokenizer", "")
    (here / "pairs.tsv").write_text("a\tb\n", encoding="utf-8")
    student, teacher = ["--config", "tiny.yaml"], ["--teacher", "one"]
    start = ["--set", "training.init_from=two"]
    vectors = ["--set", "source.type=vectors", "--set", "source.features=4"]
    for options, message in (
        (teacher, "Missing option '--config'"),
        (student, "Missing option '--teacher'"),
        ([*student, "--teacher", "none"], "none: no such run"),
        ([*student, *teacher, *teacher], "is named twice"),
        ([*student, *teacher, "--teacher", "back"], "translates zh-en, and the student en-zh"),
        ([*student, *teacher, "--teacher", "other"], "have different vocabularies"),
        ([*student, *teacher, "--folder", "."], "is in the folder of the student"),
        ([*student, *teacher, "--mono-src", "none"], "no such file"),
        ([*student, *teacher, "--mono-src", "pairs.tsv"], "holds pairs"),
        ([*student, *teacher, "--set", "training.init_from=none"], "training.init_from: none: no such run"),
        ([*student, *teacher, *vectors], "the sources of this configuration are vectors"),
        ([*student, *teacher, *start, "--folder", "."], "runs/two is in the folder of the student"),
        ([*student, *teacher, *start, "--set", "model.d_model=64"], "training.init_from: runs/two has another model"),
    ):
        code, _, err = cli("distill", *options)
        assert (code, message in err) == (2, True), (options, err)
    (here / "runs/one/export.json").write_text("{}", encoding="utf-8")
    code, _, err = cli("distill", *student, *teacher)
    assert (code, "is an export; name the run that it was made from" in err) == (2, True), err


# ------------------------------------------------------------------------------------------- trained for real


def hashes(folder: Path) -> dict[str, str]:
    """Of all files that are to be the same: not those that say when and where a training ran, or have scores."""
    logs = {"metrics.jsonl", "training.json", "config.yaml", "latest", "files.json", "cleaning.tsv", "1.jsonl",
            "1.jsonl.from.json"}  # fmt: skip
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in logs and not {"cache", "checkpoints", "evaluation"} & set(path.parts)
        and path.suffix != ".lock"
    }  # fmt: skip


class Killed(BaseException):
    pass


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
    options = ["--mono-src", "mono.en", "--n-best", "3", "--set", "model.num_encoder_layers=2", *sets]
    code, out, errors = cli(*COMMAND, *options, "--folder", "whole")
    assert (code, out.splitlines()) == (0, [
        "the student: whole/runs/student", "  nmt translate --model whole/runs/student",
        "  nmt eval --model whole/runs/student", "  nmt export ctranslate2 --model whole/runs/student",
    ]), errors  # fmt: skip

    write, translations = distill.as_json, [0]

    def stopping(*arguments: Any, **options: Any) -> str:
        translations[0] += 1
        if translations[0] in (70, 150):  # killed twice in the middle of a translation
            raise Killed
        return write(*arguments, **options)

    monkeypatch.setattr(distill, "as_json", stopping)
    kills = 0
    while True:
        try:
            assert cli(*COMMAND, *options, "--folder", "stopped")[0] == 0
            break
        except Killed:
            kills += 1
    assert (kills, translations[0] - kills) == (2, 200)  # no line was translated and written again
    files = hashes(tmp_path / "whole")
    assert files.keys() > {"distill.json", "runs/student/model.safetensors"}
    assert files == hashes(tmp_path / "stopped")
    assert RunFolder(Path("whole/runs/student")).config().model.num_encoder_layers == 2
    chosen = lines_of(tmp_path / "whole/text/nearest/1.txt")
    references = lines_of(tmp_path / "whole/text/real/train.zh")
    records = [json.loads(line) for line in lines_of(tmp_path / "whole/text/translated/1.jsonl")]
    assert all(len(one["n_best"]) == 3 for one in records)
    for line, reference, record in list(zip(chosen, references, records, strict=True))[::20]:
        scores = [sacrebleu.sentence_chrf(one["text"], [reference.strip()]).score for one in record["n_best"]]
        assert line.strip() == record["n_best"][scores.index(max(scores))]["text"].strip()
    started = ["--n-best", "1", "--set", "training.init_from=two", *sets[:2]]
    code, _, errors = cli("distill", "--teacher", "one", "--config", "tiny.yaml", *started, "--folder", "started")
    assert code == 0, errors
    start = json.loads(Path("started/runs/student/training.json").read_text())["init_from"]
    assert start["model"]["sha256"] == hashlib.sha256(Path("runs/two/model.safetensors").read_bytes()).hexdigest()

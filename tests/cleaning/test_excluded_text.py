"""Text held out of training: `data.exclude`, and what a run with `training.init_from` inherits."""

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from nmt.cleaning.holdout import with_hold_outs
from nmt.cleaning.selection import select
from nmt.config.corpus import CorpusFiles
from nmt.config.reading import load_config, to_yaml
from nmt.config.training import Config
from nmt.errors import ConfigError
from nmt.runs.base import load_run_config
from nmt.runs.folder import run_named

Pairs = list[tuple[str, str]]
OLD = """\
data:
  train: {src: old.en, tgt: old.de}
  validation: {holdout: 20}
  test: {holdout: 30}
  exclude: [{src: later.en, tgt: later.de}]
training: {max_steps: 1}
"""
NEW = """\
data: {train: {src: new.en, tgt: new.de}}
training: {init_from: old}
"""


def written(stem: str, pairs: Pairs) -> None:
    for side, language in enumerate(("en", "de")):
        Path(f"{stem}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")


def lines(path: Path) -> list[str]:
    """The lines as training sees them, written independently of `normalize`."""
    raw = path.read_bytes().decode().split("\n")[:-1]
    return [re.sub(" +", " ", unicodedata.normalize("NFC", line)).strip() for line in raw]


def expected(train: CorpusFiles, held_out: list[str]) -> Iterator[bool]:
    """For each pair, True if it may be trained on, by sets of all held-out sentences."""
    sources = {line for stem in held_out for line in lines(Path(f"{stem}.en"))}
    targets = {line for stem in held_out for line in lines(Path(f"{stem}.de"))}
    for src, tgt in zip(lines(train.src_file), lines(train.tgt_file), strict=True):
        yield bool(src and tgt) and src not in sources and tgt not in targets


def is_chosen(config: Config) -> list[list[bool]]:
    data = config.data
    chosen = select(data.train, data.cleaning, (data.src_lang, data.tgt_lang), data.excluded_from_training)
    assert chosen is not None
    return [[byte == 1 for byte in chosen.chosen(index)] for index in range(len(data.train))]


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A run `old`, as its folder has it, with hold-outs and a text to exclude; and text for a new run, some of it the
    same."""
    monkeypatch.chdir(tmp_path)
    random = Random(1)

    def some(count: int, kinds: int) -> Pairs:
        return [(f"caf\u00e9  {random.randrange(kinds)}", f"Kaffee {random.randrange(kinds)} ") for _ in range(count)]

    pairs = [*some(600, 400), ("", "leer")]
    written("old", pairs)
    written("later", [("cafe\u0301 1", "neu"), ("new", " Kaffee  2")])
    written("new", [*pairs[::3], *some(100, 800)])
    Path("old.yaml").write_text(OLD)
    config = with_hold_outs(load_config(Path("old.yaml")))
    run = run_named("old")
    run.path.mkdir(parents=True)
    run.config_file.write_text(to_yaml(config))
    run.model_file.write_bytes(b"weights")
    Path("new.yaml").write_text(NEW)
    return config


def new(*overrides: str) -> Config:
    settings = load_run_config(Path("new.yaml"), overrides, run_named("new"), False)
    return with_hold_outs(settings)


def test_nothing_of_a_text_that_is_held_out_is_trained_on(old: Config) -> None:
    (found,) = is_chosen(old)
    assert found == list(expected(old.data.train[0], ["old.validation", "old.test", "later"]))
    assert 100 < sum(found) < 520


def test_a_hold_out_shares_nothing_with_a_text_that_is_held_out(old: Config) -> None:
    for name in ("old.validation", "old.test"):
        for language in ("en", "de"):
            assert not set(lines(Path(f"{name}.{language}"))) & set(lines(Path(f"later.{language}")))


@pytest.mark.parametrize("replay", [0, 0.5])
def test_a_run_that_starts_from_another_inherits_its_hold_outs(old: Config, replay: float) -> None:
    config = new(f"data.replay={replay}")
    held_out = ["old.validation", "old.test", "later"]
    assert [files.src_file.name for files in config.data.exclude] == [f"{stem}.en" for stem in held_out]
    found = is_chosen(config)
    assert len(found) == (2 if replay else 1)
    for chosen, files in zip(found, config.data.train, strict=True):
        assert chosen == list(expected(files, [*held_out, "new.validation"]))
        assert any(chosen)
    own = {*lines(Path("new.validation.en"))}
    assert not own & {line for stem in held_out for line in lines(Path(f"{stem}.en"))}


def test_a_resumed_run_holds_out_what_it_has_recorded(old: Config) -> None:
    first = new()
    run = run_named("new")
    (run.checkpoints / "1").mkdir(parents=True)
    run.config_file.write_text(to_yaml(first))
    for path in Path().glob("old.*.*"):
        path.unlink()
    run_named("old").config_file.unlink()
    assert load_run_config(Path("new.yaml"), (), run, False).data.exclude == first.data.exclude


def test_texts_that_are_gone_or_given_are_not_inherited(old: Config) -> None:
    Path("old.test.en").unlink()
    assert [files.src_file.name for files in new().data.exclude] == ["old.validation.en", "later.en"]
    assert new("data.exclude=[]").data.exclude == ()
    (files,) = new("data.exclude=[{src: later.en, tgt: later.de}]").data.exclude
    assert files.tgt_file == Path("later.de").resolve()


def test_vectors_are_not_excluded(old: Config) -> None:
    Path("vectors.yaml").write_text(
        OLD.replace("{holdout: 20}", "{src: v.npy, tgt: v.de}").replace("  test: {holdout: 30}\n", "")
        + "source: {type: vectors, features: 4}\n"
    )
    with pytest.raises(ConfigError, match=r"data.exclude: needs text sources, and source.type is vectors"):
        load_config(Path("vectors.yaml"))

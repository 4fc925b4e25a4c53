"""Translation memories are parsed once for a training, and read as if they were parsed each time."""

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from conftest import Cli
from test_formats import HARD, TINY, write_texts, write_tmx

import nmt.corpora.pairs
import nmt.corpora.tmx_cache
from nmt.config.corpus import CorpusFiles, TrainingFiles
from nmt.config.reading import load_config, to_yaml
from nmt.config.training import Config
from nmt.corpora.hashes import CACHE
from nmt.corpora.pairs import count_pairs, places_of, read_blocks, read_pairs
from nmt.corpora.tables import NumberedPair
from nmt.corpora.tmx import read_tmx
from nmt.corpora.tmx_cache import with_parsed_tmx
from nmt.errors import DataError
from nmt.system.console import warn_once

# With units that are skipped, so that the numbers of units and pairs differ.
UNITS = """<tmx version="1.4"><header srclang="en"/><body>
<tu><tuv xml:lang="en"><seg>one\ttab</seg></tuv><tuv xml:lang="de"><seg>eins</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>two</seg></tuv><tuv xml:lang="fr"><seg>deux</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>\ufeffthree&#13;\nbroken</seg></tuv><tuv xml:lang="de"><seg></seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>four</seg></tuv><tuv xml:lang="de"><seg>vier</seg></tuv><tuv xml:lang="de"><seg>x</seg></tuv></tu>
</body></tmx>"""  # noqa: E501


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were parsed, in order."""
    files: list[Path] = []

    def counted(path: Path, *arguments: object) -> Iterator[NumberedPair]:
        files.append(path)
        yield from read_tmx(path, *arguments)  # type: ignore[arg-type]

    for module in (nmt.corpora.pairs, nmt.corpora.tmx_cache):
        monkeypatch.setattr(module, "read_tmx", counted)
    return files


def configured(path: Path) -> Config:
    data = {"src_lang": "en", "tgt_lang": "de", "train": {"pairs": str(path)}}
    Path("c.yaml").write_text(yaml.safe_dump({"data": data, "training": {"max_steps": 9}}))
    return load_config(Path("c.yaml"))


def with_cache(config: Config) -> TrainingFiles:
    (files,) = with_parsed_tmx(config).data.train
    return files


def everything(files: CorpusFiles) -> list[object]:
    blocks = [(block.src, block.tgt, block.first) for block in read_blocks(files)]
    return [list(read_pairs(files)), count_pairs([files]), places_of(files, [1, 3]), places_of(files, [2]), blocks]


def test_every_reader_finds_the_pairs_of_the_file_which_is_parsed_once(
    parsed: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    Path("a.tmx").write_text(UNITS, encoding="utf-8")
    config = configured(Path("a.tmx"))
    expected = everything(config.data.train[0])
    assert expected[1:4] == [3, [1, 4], [3]]
    warned = [record.message for record in caplog.records]
    assert len(warned) == 2
    parsed.clear()
    for _ in range(2):  # two trainings, of which each says what was skipped
        caplog.clear()
        warn_once.cache_clear()
        files = with_cache(config)
        assert everything(files) == expected
        assert [record.message for record in caplog.records] == warned
    assert len(parsed) == 1
    assert to_yaml(config) == to_yaml(with_parsed_tmx(config))  # the run's config.yaml names the file


def test_another_content_or_reading_is_parsed_again_and_a_removed_cache_is_not_missed(parsed: list[Path]) -> None:
    path = Path("a.tmx")
    path.write_text(UNITS, encoding="utf-8")
    before = with_cache(configured(path))
    path.write_text(UNITS.replace("vier", "4"), encoding="utf-8")
    assert ("four", "4") in read_pairs(with_cache(configured(path)))
    config = configured(path)
    (files,) = config.data.train
    kept = config.data.model_copy(update={"train": (files.model_copy(update={"inline_tags": "keep"}),)})
    with_cache(config.model_copy(update={"data": kept}))
    assert len(parsed) == 3
    assert ("four", "vier") in read_pairs(before)  # what the first training was started with
    shutil.rmtree(CACHE)
    assert ("four", "4") in read_pairs(before)


def test_a_file_that_is_broken_or_missing_is_reported_where_it_is_read() -> None:
    Path("a.tmx").write_text(UNITS[:-9], encoding="utf-8")
    files = with_cache(configured(Path("a.tmx")))
    with pytest.raises(DataError, match=r"a\.tmx:\d+: broken TMX"):
        count_pairs([files])
    Path("a.tmx").unlink()
    with pytest.raises(DataError, match=r"a\.tmx: no such file"):
        count_pairs([with_cache(configured(Path("a.tmx")))])
    assert [path for path in CACHE.iterdir() if path.suffix != ".lock"] == []


@pytest.mark.slow
def test_a_training_that_cleans_and_holds_out_parses_once_and_starts_as_with_texts(
    parsed: list[Path], cli: Cli
) -> None:
    sides = [(TINY / f"train.{side}").read_text(encoding="utf-8").split("\n")[:300] for side in ("en", "zh")]
    pairs = [*zip(*sides, strict=True), *HARD]
    write: dict[str, Callable[[], CorpusFiles]] = {
        "texts": lambda: write_texts(pairs), "memory": lambda: write_tmx(pairs, Path("m.tmx"))
    }  # fmt: skip
    encoded = {}
    for name, make in write.items():
        files = make()
        data = {
            "src_lang": "en", "tgt_lang": "zh", "train": files.model_dump(mode="json"),
            "validation": {"holdout": 20}, "cleaning": {"duplicates": "pair", "html": True, "length_ratio": 9},
        }  # fmt: skip
        small = {"d_model": 16, "d_ff": 16, "num_heads": 1, "num_encoder_layers": 1, "num_decoder_layers": 1}
        config = {"data": data, "model": small, "tokenizer": {"vocab_size": 600}, "training": {"max_steps": 1}}
        Path(f"{name}.yaml").write_text(yaml.safe_dump(config))
        code, _, err = cli("train", f"{name}.yaml", "--dry-run")
        assert code == 0, err
        folders = [path.parent for path in CACHE.glob("*/corpus.json")]
        assert len(folders) == 2  # of training and validation pairs
        ids = sorted([file.read_bytes() for file in sorted(one.iterdir()) if file.suffix != ".json"] for one in folders)
        drawn = [Path(f"{name}.validation.{side}").read_bytes() for side in ("en", "zh")]
        encoded[name] = ids, drawn
        shutil.rmtree(CACHE)
    assert encoded["memory"] == encoded["texts"]
    assert len(parsed) == 1

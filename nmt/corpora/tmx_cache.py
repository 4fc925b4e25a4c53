"""Cache of parsed translation memories.

A training start reads its text up to twelve times: to count, to draw held-out sets, to clean, for the vocabulary, to
encode, to compare with held-out text. Parsing a TMX takes ten times as long as reading two texts. So its pairs are
written into the cache as two texts, in a folder named by `corpus_keys`, and every reader finds them there.
"""

from array import array
from pathlib import Path

from nmt.config.corpus import CorpusFiles, TrainingFiles
from nmt.config.formats import pairs_format
from nmt.config.training import Config
from nmt.corpora.hashes import CACHE, corpus_keys
from nmt.corpora.lines import undecoded
from nmt.corpora.tmx import read_tmx
from nmt.errors import DataError
from nmt.system.console import log, warn_once
from nmt.system.files import building, read_json, write_json


def with_parsed_tmx(config: Config) -> Config:
    """The configuration with its TMX corpora for training read from the cache.

    A corpus that cannot be read stays as it is, for `prepare` to report. Of several processes, one parses.
    """
    train = tuple(files if files.pairs is None else _parsed(files, files.pairs) for files in config.data.train)
    return config.model_copy(update={"data": config.data.model_copy(update={"train": train})})


def _parsed(files: TrainingFiles, path: Path) -> TrainingFiles:
    if pairs_format(path) != "tmx":
        return files
    try:
        folder = CACHE / f"{corpus_keys([files])[0].hex()[:20]}.tmx"
        with building(folder) as temporary:
            if temporary is not None:
                log.info(f"parsing {path}")
                _write(files, path, temporary)
            messages = read_json((temporary or folder) / "warnings.json")  # under the lock: nothing removes it
    except DataError:
        return files
    for message in messages:
        warn_once(message)
    return files.parsed_in(folder)


def _write(files: CorpusFiles, path: Path, folder: Path) -> None:
    src_lang, tgt_lang = map(str, files.columns)
    messages: list[str] = []
    with (
        (folder / "src").open("wb") as src_file,
        (folder / "tgt").open("wb") as tgt_file,
        (folder / "numbers").open("wb") as numbers,
    ):
        for number, src, tgt in read_tmx(path, src_lang, tgt_lang, files.inline_tags or "drop", messages.append):
            src_file.write(undecoded(f"{src}\n"))
            tgt_file.write(undecoded(f"{tgt}\n"))
            array("q", [number]).tofile(numbers)
    write_json(folder / "warnings.json", messages)

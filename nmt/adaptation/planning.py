"""The configuration that `nmt adapt` writes: an ordinary one, for `nmt train`, with a guard.

What it needs of general text is drawn or found here: pairs to mix in, pairs that decide, and pairs that report.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from nmt.atomic import write_text
from nmt.config.cleaning import CleaningConfig
from nmt.config.corpus import CorpusFiles
from nmt.config.data import DataConfig
from nmt.config.file import settings_to_yaml, with_overrides
from nmt.config.training import Config
from nmt.data.cleaning import normalize
from nmt.data.corpus import count_pairs, read_pairs
from nmt.data.discovery import discover
from nmt.data.holdout import with_hold_outs
from nmt.data.lines import read_lines
from nmt.decoding.translator import load
from nmt.errors import ConfigError, DataError
from nmt.inheritance import kept_apart
from nmt.runs import RunFolder

GAIN_METRIC = "chrf"
"""Of the new text: on a few dozen lines it changes more evenly than BLEU, and it does not end as early as the loss."""
GENERAL_TEXT, SAMPLE = 0.85, 10_000
"""The share of general text in an epoch, by the characters of targets in the first pairs of each corpus: what a pair
weighs in the loss grows with its length (docs/adapt.md)."""
RATE, RATE_ALONE, RATE_OF_IMPORTED = 0.4, 0.1, 1e-4
"""The peak learning rate: as a share of that with which the base was trained, with general text mixed in and without;
and where that is not known. Marian's recipes peak at 3e-4."""
TRAINING = {"schedule": "cosine", "batch_tokens": 2048, "ema_decay": 0.99}
"""Other defaults than those of a fine-tuning: little of each update is new text, and the rate falls to 0."""
LEAST_UPDATES, MOST_UPDATES, UPDATES_OF_PAIR = 2000, 10_000, 0.28
"""More for much new text: with 18,000 messages, 2,000 updates keep 39% of what training on them alone gains."""
VALIDATIONS, PATIENCE = 20, 10
"""In a training: each translates two sets. A few dozen lines of new text make their scores noisy, and what general text
has lost at first comes back while the rate falls: with the patience of other fine-tunings, 5, it stops before that."""
MIN_PAIRS = 50
"""Of the new text: fewer cannot be divided into text to train on, to choose with, and to report on."""
MIN_HELD_OUT = 10
NEW_SHARE, MAX_NEW = 0.1, 500
"""Of the new text, held out for each purpose: to choose with, and to report on."""
GENERAL_SHARE, MAX_GENERAL = 0.2, 3000
"""Of general text, whose drop must be known to half a point: 1,014 captions give an interval of 0.7 BLEU to both sides,
so that no model that has learned much passes; 3,000 one of 0.4."""
WITHOUT_GENERAL_TEXT = 0.5
"""The largest alpha where nothing says what is lost: Wortsman et al. 2022 (WiSE-FT) recommend the middle there."""


@dataclasses.dataclass(frozen=True)
class Wish:
    """What the command line asks for."""

    base: RunFolder
    data: Sequence[Path]
    keep: Sequence[Path]
    keep_src: Path | None
    """General text in the source language alone."""
    max_drop: float
    drop_metric: str
    overrides: Sequence[str]


@dataclasses.dataclass(frozen=True)
class _General:
    """The general text that there is."""

    train: tuple[CorpusFiles, ...] = ()
    """Pairs to mix in, besides those of the base."""
    replay: bool = False
    validation: CorpusFiles | None = None
    test: dict[str, CorpusFiles] = dataclasses.field(default_factory=dict)


def write_plan(wish: Wish, file: Path, is_fresh: bool, say: Callable[[str], None]) -> bool:
    """Write the configuration of an adaptation to `file`, in the current folder, with the hold-outs of general text.

    Returns whether it was written: a file with the same content stays. Raises `ConfigError` for one with another
    content, unless nmt adapt wrote it and is to start over (`is_fresh`), and for too little text.
    """
    inference = wish.base.inference_config()
    if inference.source.type != "text":
        raise ConfigError(f"{wish.base.path}: its sources are {inference.source.type}, and nmt adapt is for text")
    languages = inference.data.src_lang, inference.data.tgt_lang
    new_text = discover(wish.data, None, None, *languages).files
    pairs = count_pairs(new_text)
    if pairs < MIN_PAIRS:
        raise ConfigError(f"--data: {pairs} pairs are too few to adapt to; {MIN_PAIRS} is the least")
    general = _general_text(wish, file.stem, languages, say)
    sections = _sections(wish, general, new_text, pairs, languages)
    head = _HEAD.format(name=file.stem)
    text = head + settings_to_yaml(with_overrides(sections, wish.overrides))
    there = file.read_text(encoding="utf-8") if file.exists() else ""
    if there == text:
        return False
    if there and not (is_fresh and there.startswith(head)):
        raise ConfigError(
            f"{file} exists, and says something else than these options; to train as it says: nmt train {file}; or "
            f"give another --name, or replace it with --fresh"
        )
    write_text(file, text)
    say(f"wrote {file}, the configuration of this adaptation")
    return True


_HEAD = "# Written by nmt adapt. `nmt train {name}.yaml` does the same; `nmt config KEY` explains a key.\n"


def _sections(
    wish: Wish, general: _General, new_text: Sequence[CorpusFiles], pairs: int, languages: tuple[str, str]
) -> dict[str, Any]:
    held_out = _held_out(pairs, NEW_SHARE, MAX_NEW)
    known = [*([general.validation] if general.validation else []), *general.test.values()]
    base_data = wish.base.config().data if wish.base.has_training_config() else None
    data: dict[str, Any] = {
        "train": [*map(_dump, new_text), *({**_dump(files), "replayed": True} for files in general.train)],
        "src_lang": languages[0],
        "tgt_lang": languages[1],
        "cleaning": CleaningConfig.recommended().model_dump(mode="json", exclude_unset=True),
        "validation": {"holdout": held_out},
        "test": {_unused_name("new", general.test, base_data): {"holdout": held_out}},
        "exclude": _without_repeats([*(kept_apart(base_data) if base_data else []), *map(_dump, known)]),
    }
    updates = max(LEAST_UPDATES, min(MOST_UPDATES, 100 * round(pairs * UPDATES_OF_PAIR / 100)))
    training: dict[str, Any] = {"init_from": str(wish.base.path), "best_metric": GAIN_METRIC, **TRAINING}
    training |= {"max_steps": updates, "validate_every": updates // VALIDATIONS, "patience": PATIENCE}
    training["learning_rate"] = _learning_rate(wish.base, is_mixed=bool(general.train or general.replay))
    guard: dict[str, Any] = {"max_drop": wish.max_drop, "drop_metric": wish.drop_metric}
    if general.train or general.replay:
        data["replay"] = _share_of_pairs(new_text, general.train or (base_data.train if base_data else ()))
    if general.validation is None:
        guard["max_alpha"] = WITHOUT_GENERAL_TEXT
        training["freeze"] = ["embeddings"]
    else:
        guard["validation"] = _dump(general.validation)
        guard["test"] = {name: _dump(files) for name, files in general.test.items()}
    return {"data": data, "training": training, "guard": guard}


def _share_of_pairs(new_text: Iterable[CorpusFiles], general: Iterable[CorpusFiles]) -> float:
    """The share of general pairs at which `GENERAL_TEXT` of the text is theirs."""
    old, new = map(_mean_length, (general, new_text))
    pairs = GENERAL_TEXT / old / (GENERAL_TEXT / old + (1 - GENERAL_TEXT) / new)
    return round(min(pairs, 0.99), 2)  # data.replay is less than 1


def _mean_length(corpora: Iterable[CorpusFiles]) -> float:
    """The characters of a target, in the mean of the first pairs."""
    targets = [len(tgt) for files in corpora for _, tgt in islice(read_pairs(files), SAMPLE)]
    return max(1.0, sum(targets) / max(1, len(targets)))


def _learning_rate(base: RunFolder, is_mixed: bool) -> float:
    if not base.has_training_config():
        return RATE_OF_IMPORTED
    share = RATE if is_mixed else RATE_ALONE
    return float(f"{share * base.config().training.learning_rate:.1e}")  # two digits


def _held_out(pairs: int, share: float, largest: int) -> int:
    return max(MIN_HELD_OUT, min(largest, int(share * pairs)))


def _unused_name(name: str, general: dict[str, CorpusFiles], base: DataConfig | None) -> str:
    """A name for the test set of the new text that no other test set has, such as that of an earlier adaptation."""
    taken = {*general, *(base.test if base else ())}
    number = 1
    while (found := name if number == 1 else f"{name}{number}") in taken:
        number += 1
    return found


def _dump(files: CorpusFiles) -> dict[str, Any]:
    """A corpus as in a configuration, without the keys of hold-outs and training corpora."""
    dumped: dict[str, Any] = files.model_dump(mode="json", include=set(CorpusFiles.model_fields))
    return dumped


def _without_repeats(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item for number, item in enumerate(items) if item not in items[:number]]


def _general_text(wish: Wish, stem: str, languages: tuple[str, str], say: Callable[[str], None]) -> _General:
    """The text of --keep, or else what the base was trained on and scored with, where it still is."""
    if wish.keep:
        files = discover(wish.keep, None, None, *languages).files
        held_out = _held_out(count_pairs(files), GENERAL_SHARE, MAX_GENERAL)
        return _drawn(files, held_out, stem, languages, say, train=files)
    if wish.keep_src is not None:
        own = CorpusFiles(**translated(wish.base, wish.keep_src, stem, languages, say))
        say(
            f"warning: the general text's references are the translations of {wish.base.path} itself: a change of one "
            f"counts as worse, also where it is better, so the budget allows less than with pairs (--keep FILE)"
        )
        held_out = _held_out(count_pairs([own]), GENERAL_SHARE, MAX_GENERAL)
        return _drawn([own], held_out, stem, languages, say, train=(own,))
    found = _of_base(wish, stem, languages, say) if wish.base.has_training_config() else _General()
    if found.validation is None:
        say(
            f"warning: there is no general text: nothing says what {wish.base.path} forgets, and --max-drop cannot be "
            f"kept. So the embeddings are frozen, and the model is at most half of the way from the old weights to the "
            f"new ones. To measure what is lost: --keep FILE, pairs of general text"
        )
    elif not found.replay:
        say(
            f"warning: the training text of {wish.base.path} is not there, so none is mixed in: more is forgotten, and "
            f"the budget allows less; give pairs of general text with --keep FILE"
        )
    return found


def translated(
    base: RunFolder, sources: Path, stem: str, languages: tuple[str, str], say: Callable[[str], None]
) -> dict[str, str]:
    """`src` and `tgt`: texts in the current folder, with the lines of `sources` and what the base makes of them.

    Lines that are empty on either side are left out. Texts that exist with the same sources stay: a beam search takes
    time. Raises `ConfigError` if they have other sources.
    """
    files = {
        side: Path(f"{stem}.general.{side}.{language}")
        for side, language in zip(("src", "tgt"), languages, strict=True)
    }
    lines = [line for line in map(normalize, read_lines(sources)) if line]
    if files["tgt"].exists():
        known = set(lines)
        if not all(line in known for line in read_lines(files["src"])):
            raise ConfigError(f"{files['src']}: was made from other text than {sources}; remove it and {files['tgt']}")
    else:
        say(f"translating the {len(lines):,} lines of {sources} with {base.path}, to mix them in")
        outputs = load(base.path, own_process=True).translate(lines)
        pairs = [(line, output) for line, output in zip(lines, outputs, strict=True) if output]
        for side, texts in zip(("src", "tgt"), zip(*pairs, strict=True), strict=True):
            write_text(files[side], "".join(f"{text}\n" for text in texts))
    return {side: str(file) for side, file in files.items()}


def _of_base(wish: Wish, stem: str, languages: tuple[str, str], say: Callable[[str], None]) -> _General:
    data = wish.base.config().data
    replay = all(_exists(files) for files in data.train)
    test = {name: files for name, files in data.test.items() if _exists(files)}
    if data.validation.holdout == 0 or not _exists(data.validation):
        return _General(replay=replay)
    if test:
        return _General(replay=replay, validation=data.validation, test=dict(test))
    # One part is to decide, and another to report.
    held_out = count_pairs([data.validation]) // 4
    if held_out < MIN_HELD_OUT:
        return _General(replay=replay)
    files = CorpusFiles(**_dump(data.validation))
    return _drawn([files], held_out, stem, languages, say, replay=replay)


def _exists(files: CorpusFiles) -> bool:
    return files.src_file.exists() and files.tgt_file.exists()


def _drawn(
    files: Sequence[CorpusFiles],
    held_out: int,
    stem: str,
    languages: tuple[str, str],
    say: Callable[[str], None],
    train: tuple[CorpusFiles, ...] = (),
    replay: bool = False,
) -> _General:
    """General text of which one part decides and another reports, drawn as any hold-outs, into the current folder."""

    def sides(name: str) -> dict[str, Any]:
        src, tgt = languages if languages[0] != languages[1] else (f"src.{languages[0]}", f"tgt.{languages[1]}")
        return {"holdout": held_out, "src": f"{stem}.{name}.{src}", "tgt": f"{stem}.{name}.{tgt}"}

    data = {
        "train": [_dump(one) for one in files],
        "src_lang": languages[0],
        "tgt_lang": languages[1],
        "validation": sides("general-validation"),
        "test": {"general": sides("general-test")},
    }
    try:
        config = Config.model_validate({"data": data, "training": {"max_steps": 1}})
        drawn = with_hold_outs(config, lambda line: say(f"general text: {line}")).data
    except ConfigError as error:
        raise DataError(f"general text: {error}") from None
    validation, test = (CorpusFiles(**_dump(one)) for one in (drawn.validation, drawn.test["general"]))
    return _General(train=train, replay=replay, validation=validation, test={"general": test})

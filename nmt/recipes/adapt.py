"""Adapting a model to new text (`nmt adapt`): a fine-tuning with general text mixed in, and its verdict."""

import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, NamedTuple

from nmt.cleaning.holdout import with_hold_outs
from nmt.config.corpus import CorpusFiles
from nmt.config.data import CleaningConfig
from nmt.config.languages import file_endings
from nmt.config.reading import override, settings_to_yaml
from nmt.config.training import Config
from nmt.corpora.discovery import discover
from nmt.corpora.pairs import count_pairs, read_pairs
from nmt.errors import ConfigError, DataError, NmtError, RunError
from nmt.evaluation.metrics import metric_names
from nmt.runs.base import load_run_config
from nmt.runs.exports import ModelFile
from nmt.runs.folder import RunFolder
from nmt.runs.weights import mean_of_weights, write_weights
from nmt.system.console import log
from nmt.system.distributed import ALONE
from nmt.system.files import replacing, write_text
from nmt.training.fine_tuning import Forgetting, own_test_sets
from nmt.training.record import read_record
from nmt.training.start import train_in_processes

GENERAL_TEXT, SAMPLE = 0.85, 10_000
"""The share of general text in an epoch, by target characters in the first pairs of each corpus: a pair's weight in the
loss grows with its length (docs/lab/adapt.md)."""
RATE, RATE_ALONE, RATE_OF_IMPORTED = 0.4, 0.1, 1e-4
"""The peak learning rate: relative to that of the base model's training, with general text mixed in and without; and
absolute, where that is unknown. Marian's recipes peak at 3e-4."""
TRAINING = {"best_metric": None, "patience": None, "schedule": "cosine", "batch_tokens": 2048, "ema_decay": 0.99}
"""Defaults that differ from those of a fine-tuning: little of each update is new text, and the rate falls to 0. The
last weights are the model: a few dozen lines of new text give noisy scores, and general text recovers most at the
end."""
MIN_UPDATES, MAX_UPDATES, UPDATES_PER_PAIR = 2000, 10_000, 0.28
"""Updates of a training: a number per new pair, within these limits (docs/lab/adapt.md)."""
NUM_VALIDATIONS = 20
MIN_PAIRS = 50
"""Pairs of new text; fewer cannot be divided into text for training, validation and test."""
MIN_HELD_OUT = 10
NEW_SHARE, MAX_NEW = 0.1, 500
"""Pairs of new text held out for validation, and as many for the test set."""
GENERAL_SHARE, MAX_GENERAL = 0.2, 3000
"""Pairs of --keep held out for a test set. With 1,000 captions the 95% interval is ±0.7 BLEU, with 3,000 ±0.4."""


class Plan(NamedTuple):
    """The names of the test sets in a planned configuration."""

    is_written: bool
    """False if the file had the same content before."""
    new: str
    """The test set of the new text."""
    general: tuple[str, ...]
    """The test sets of general text."""
    drawn: tuple[Path, ...]
    """The files of the held-out sets that the adaptation draws."""


class Adaptation(NamedTuple):
    """A finished training of `nmt adapt`, before its scores and exports."""

    config: Config
    trained: bool
    """False if the run was finished before."""
    plan: Plan


def adapt(
    base: RunFolder, run: RunFolder, data: Sequence[Path], keep: Sequence[Path], overrides: Sequence[str], fresh: bool
) -> Adaptation:
    """Write the configuration of an adaptation, train with it as `nmt train` does, and average without general text.

    Raises the errors of `write_plan` and of the training. If that never began, also because of a signal, the
    configuration is removed: the corrected command writes another.
    """
    file = Path(f"{run.name}.yaml")
    before = {*Path().iterdir()}
    plan = write_plan(base, data, keep, overrides, file, fresh)
    try:
        config = load_run_config(file, (), run, fresh)
        _check(config, base, is_averaged=not plan.general)
        arguments = ["train", str(file), "--name", run.name, *(["--fresh"] if fresh else [])]
        trained = bool(train_in_processes(config, run, fresh, ALONE, False, arguments))
        if not plan.general:
            last = run.report_page if config.evaluation.report else run.exports  # absent after a kill
            trained = average_with_base(base, run) or trained or not last.exists()
    except (NmtError, SystemExit):
        if plan.is_written and not run.exists():
            for path in {file, *plan.drawn} - before:
                path.unlink(missing_ok=True)
        raise
    return Adaptation(config, trained, plan)


def _check(config: Config, base: RunFolder, is_averaged: bool) -> None:
    """`ConfigError` for settings with which the result could not be judged, or not averaged with the base model."""
    if "bleu" not in metric_names(config.evaluation, config.data.tgt_lang):
        raise ConfigError("evaluation.metrics: add bleu, by which --max-drop is measured")
    for key in ("num_encoder_layers", "num_decoder_layers") if is_averaged else ():
        if (here := getattr(config.model, key)) != (there := getattr(base.inference_config().model, key)):
            raise ConfigError(
                f"model.{key}: {there} in {base.path}, {here} here, and without general text the model is the mean "
                f"of both; leave it out, or give --keep FILE"
            )


def write_plan(
    base: RunFolder, data: Sequence[Path], keep: Sequence[Path], overrides: Sequence[str], file: Path, is_fresh: bool
) -> Plan:
    """Write the configuration of an adaptation to `file`, in the current folder, and the test set of `keep`.

    Raises `ConfigError` for a file with another content, unless nmt adapt wrote it and is to start over (`is_fresh`),
    and for too little text.
    """
    inference = base.inference_config()
    if inference.source.type != "text":
        raise ConfigError(f"{base.path}: its sources are {inference.source.type}, and nmt adapt is for text")
    languages = inference.data.src_lang, inference.data.tgt_lang
    new_text = discover(data, None, None, *languages).files
    pairs = count_pairs(new_text)
    if pairs < MIN_PAIRS:
        raise ConfigError(f"--data: {pairs} pairs are too few to adapt to; {MIN_PAIRS} is the least")
    own_tests = own_test_sets(base)
    new = _unused_name("new", own_tests)
    general_text = discover(keep, None, None, *languages).files if keep else ()
    if both := {*map(_paths, new_text)} & {*map(_paths, general_text)}:
        raise ConfigError(f"--keep {both.pop()[0].name}: is --data, too; give other text as one of them")
    text, tests, drawn = _general_text(base, general_text, file.stem, languages, own_tests)
    held_out = {"holdout": _size(pairs, NEW_SHARE, MAX_NEW)}
    section: dict[str, Any] = {
        "train": [files.file_keys() for files in new_text],
        "src_lang": languages[0],
        "tgt_lang": languages[1],
    }
    section["cleaning"] = CleaningConfig.recommended().model_dump(mode="json", exclude_unset=True)
    section |= {"validation": held_out, "test": {new: dict(held_out)}}
    if text:
        section["replay"] = _share_of_pairs(new_text, text)
    if drawn is not None:
        section["train"] += [{**files.file_keys(), "replayed": True} for files in text]
        section["test"][tests[0]] = drawn.data.validation.file_keys()
    updates = max(MIN_UPDATES, min(MAX_UPDATES, 100 * round(pairs * UPDATES_PER_PAIR / 100)))
    training: dict[str, Any] = {"init_from": str(base.path), **TRAINING, "max_steps": updates}
    training |= {"validate_every": updates // NUM_VALIDATIONS, "learning_rate": _learning_rate(base, bool(text))}
    if not tests:
        training["freeze"] = ["embeddings"]
    settings = {"data": section, "training": training}
    for setting in overrides:
        override(settings, setting)
    names = ["validation", new, *tests[:1]] if drawn is not None else ["validation", new]
    paths = tuple(Path(f"{file.stem}.{name}.{side}") for name in names for side in file_endings(*languages))
    return Plan(_is_written(file, settings, paths, drawn, is_fresh), new, tests, paths)


def _is_written(
    file: Path, settings: dict[str, Any], held_out: Sequence[Path], drawn: Config | None, is_fresh: bool
) -> bool:
    """Draw the test set of general text and write the file; False if it had the same content before."""
    head = f"# Written by nmt adapt for runs/{file.stem}; `nmt config KEY` explains a key.\n"
    content = head + settings_to_yaml(settings)
    there = file.read_text(encoding="utf-8") if file.exists() else ""
    if there and there != content and not (is_fresh and there.startswith(head)):
        raise ConfigError(
            f"{file} exists with other settings than these options; to train with the file: nmt train {file}; or "
            f"give another --name, or replace it with --fresh"
        )
    is_other_text = there.partition("\n  src_lang:")[0] != content.partition("\n  src_lang:")[0]
    if there and is_other_text and (old := [path.name for path in held_out if path.exists()]):
        raise ConfigError(
            f"{', '.join(old)}: held out from the text of an earlier {file}; rename or remove them, or give another "
            f"--name"
        )
    if drawn is not None:
        try:
            with_hold_outs(drawn)
        except ConfigError as error:
            raise DataError(f"general text: {error}") from None
    if there != content:
        write_text(file, content)
        log.info(f"wrote {file}, the configuration of this adaptation")
    return there != content


def _paths(files: CorpusFiles) -> tuple[Path, Path]:
    return files.src_file.resolve(), files.tgt_file.resolve()


def _general_text(
    base: RunFolder, keep: Sequence[CorpusFiles], stem: str, languages: tuple[str, str], own: Mapping[str, CorpusFiles]
) -> tuple[Sequence[CorpusFiles], tuple[str, ...], Config | None]:
    """The general text to mix in, the names of its test sets, and the test set to draw from `keep`, if any.

    The text is that of `keep`, or else the training text of the base model. Test sets of the base run count if they
    still exist.
    """
    tests = tuple(name for name, files in own.items() if files.files_exist())
    if keep:
        name = _unused_name("general", own)
        return keep, (name, *tests), _held_out(keep, f"{stem}.{name}", languages)
    text = base.config().data.train if base.has_training_config() else ()
    if not all(files.files_exist() for files in text):
        text = ()
    if not tests:
        log.warning(
            f"there is no general text to measure how much {base.path} forgets, so its embeddings are frozen, and the "
            f"model will be the mean of its weights and the fine-tuned ones; to measure forgetting, give pairs of "
            f"general text with --keep FILE"
        )
    elif not text:
        log.warning(
            f"the training text of {base.path} is missing, so no general text is mixed in and more is forgotten; give "
            f"pairs of general text with --keep FILE"
        )
    return text, tests, None


def _share_of_pairs(new_text: Iterable[CorpusFiles], general: Iterable[CorpusFiles]) -> float:
    """The share of general pairs that makes general text `GENERAL_TEXT` of all text."""
    old, new = map(_mean_length, (general, new_text))
    pairs = GENERAL_TEXT / old / (GENERAL_TEXT / old + (1 - GENERAL_TEXT) / new)
    return round(min(pairs, 0.99), 2)  # data.replay is less than 1


def _mean_length(corpora: Iterable[CorpusFiles]) -> float:
    """Mean characters of a target, in the first pairs."""
    targets = [len(tgt) for files in corpora for _, tgt in islice(read_pairs(files), SAMPLE)]
    return max(1.0, sum(targets) / max(1, len(targets)))


def _learning_rate(base: RunFolder, is_mixed: bool) -> float:
    if not base.has_training_config():
        return RATE_OF_IMPORTED
    share = RATE if is_mixed else RATE_ALONE
    return float(f"{share * base.config().training.learning_rate:.1e}")  # two digits


def _size(pairs: int, share: float, largest: int) -> int:
    return max(MIN_HELD_OUT, min(largest, int(share * pairs)))


def _unused_name(name: str, taken: Collection[str]) -> str:
    """A name for a test set that no test set of the base run has, such as that of an earlier adaptation."""
    return next(free for free in chain([name], (f"{name}{number}" for number in count(2))) if free not in taken)


def _held_out(general: Sequence[CorpusFiles], stem: str, languages: tuple[str, str]) -> Config:
    """A configuration whose validation set is a test set of general text, to be drawn in the current folder."""
    src, tgt = file_endings(*languages)
    size = _size(count_pairs(general), GENERAL_SHARE, MAX_GENERAL)
    data = {
        "train": [files.file_keys() for files in general],
        "src_lang": languages[0],
        "tgt_lang": languages[1],
        "validation": {"holdout": size, "src": f"{stem}.{src}", "tgt": f"{stem}.{tgt}"},
    }
    return Config.model_validate({"data": data, "training": {"max_steps": 1}})


def average_with_base(base: RunFolder, run: RunFolder) -> bool:
    """Make the mean of the base model's and the fine-tuned weights the model of a finished training.

    Returns False if it was already. Wortsman et al. 2022 (WiSE-FT) recommend a mixing weight of 1/2 where forgetting
    cannot be measured. The fine-tuned weights stay in a file of their own, so that after a kill at any time the same
    call gives the same model.
    """
    with run.locked():
        if not run.fine_tuned_file.exists():
            with replacing(run.fine_tuned_file) as temporary:
                shutil.copyfile(run.model_file, temporary)
        if not ModelFile.of(run.fine_tuned_file).is_still(run.model_file):
            return False
        record = read_record(run)
        assert record is not None and record.init_from is not None, "it was fine-tuned"
        if record.init_from.model.sha256 != ModelFile.of(base.model_file).sha256:
            raise RunError(
                f"{base.path}: its model has changed since {run.path} started from it; restore it, or --fresh"
            )
        run.report_page.unlink(missing_ok=True)  # it describes the fine-tuned weights
        write_weights(mean_of_weights([base.model_file, run.fine_tuned_file]), run.model_file)
    return True


def verdict(changes: Sequence[Forgetting], general: Collection[str], max_drop: float) -> tuple[str, bool]:
    """The first line of the result, and True if it warns that general text may have lost more than `max_drop`.

    The upper end of the drop's confidence interval counts.
    """
    if not general:
        return (
            "There was no general text to measure forgetting with (--keep FILE), so the model is the mean of the base "
            "model's weights and the fine-tuned ones."
        ), False
    rows = {test.name: test.change("bleu") for test in changes if test.name in general and "bleu" in test.before}
    if missing := [name for name in general if name not in rows]:
        return f"warning: --max-drop is not checked: {', '.join(missing)} could not be scored before and after", True
    drops = ", ".join(f"{name} {row.change:+.2f} ({row.low:+.2f} to {row.high:+.2f})" for name, row in rows.items())
    if any(-row.low > max_drop for row in rows.values()):
        return f"warning: general text may have lost more than {max_drop:g} BLEU (--max-drop): {drops}", True
    return f"General text has kept within {max_drop:g} BLEU (--max-drop): {drops}", False

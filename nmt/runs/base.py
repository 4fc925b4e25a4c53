"""What a run takes over from the run whose weights it starts from: `training.init_from`.

The sections `source`, `tokenizer` and `model`, and the languages, are that run's; a Transformer may have fewer layers.
Where they are not given, so are `data.max_length` and the keys of `decoding`, and the keys of `training` get the
defaults of fine-tuning. All of it is filled in before the configuration is validated, so that the new run's config.yaml
is complete: a resume reads it from there, and the old run may be gone.
"""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nmt.config.corpus import CorpusFiles
from nmt.config.data import DataConfig
from nmt.config.inference import InferenceConfig
from nmt.config.languages import language_suffix
from nmt.config.reading import load_config
from nmt.config.training import Config, TrainingConfig
from nmt.errors import ConfigError, RunError
from nmt.runs.folder import RunFolder, open_run
from nmt.system.files import replacing

FINE_TUNING = {"learning_rate": 3e-4, "schedule": "constant", "validate_every": 50, "patience": 5}
"""Defaults of the `training` section with `init_from`. With the rate of a first training, a small model forgets most of
what it knew within a few hundred updates."""
LIMITS = ("max_steps", "max_epochs", "max_minutes")
# No weight depends on these keys of the model section.
_FREE = {"dropout", "preset"}


def load_run_config(path: Path, overrides: Iterable[str], run: RunFolder, is_fresh: bool) -> Config:
    """Read the configuration of a training in the folder `run`, as `load_config` does.

    With `training.init_from`, what it does not give is filled in from that run, or from `run` itself if its training
    is resumed. Raises `ConfigError` for a model, tokenizer, source or language other than that run's, and `RunError`
    if there is no such run.
    """
    bases: list[RunFolder] = []

    def complete(raw: dict[str, Any]) -> None:
        training = raw.get("training")
        name = training.get("init_from") if isinstance(training, dict) else None
        if not isinstance(name, str):
            return  # None, or what the validation refuses
        is_resumed = not is_fresh and run.exists() and run.has_checkpoints()
        base = run if is_resumed else starting_run(name)
        if not is_resumed and base.path.resolve() == run.path.resolve():
            raise ConfigError(
                f"training.init_from: {base.path} is the folder of the new run, too; give the new run another name: "
                f"--name {run.name}-2"
            )
        if contradictions := list(_contradictions(raw, base.inference_config())):
            head = f"{path}: training.init_from: {base.path} has another model, tokenizer or source:"
            remedy = "leave these keys out: the new run has that run's"
            raise ConfigError("\n  ".join([head, *contradictions]) + f"\n{remedy}")
        _fill_in(raw, base, is_resumed)
        bases.append(base)

    config = load_config(path, overrides, complete)
    for base in bases:
        languages = {"src_lang", "tgt_lang"}
        here = config.data.model_dump(include=languages)
        for key, there in base.inference_config().data.model_dump(include=languages).items():
            if there != here[key]:
                raise ConfigError(
                    f"training.init_from: {base.path} was trained with data.{key}: {there}, and here it is "
                    f"{here[key]}; if the text is in that language, set data.{key}: {there}"
                )
    return config


def starting_run(name: str) -> RunFolder:
    """The run that `training.init_from` names; `RunError` if it is not one, or has no weights for training."""
    try:
        run = open_run(name)
    except RunError as error:
        raise RunError(f"training.init_from: {error}") from None
    if run.is_export():
        raise RunError(
            f"training.init_from: {run.path} is an export, without weights to train; name the run that it was made from"
        )
    return run


def copy_tokenizer(old: RunFolder, new: RunFolder) -> None:
    """Give a run the tokenizer of another one."""
    with replacing(new.tokenizer) as folder:
        shutil.copytree(old.tokenizer, folder)


def _fill_in(raw: dict[str, Any], base: RunFolder, is_resumed: bool) -> None:
    """Add to a file's values those of the run `base` and the defaults of fine-tuning, for the keys not given.

    A resumed run is its own `base`, and has recorded all of them.
    """
    sections = base.inference_config().model_dump(mode="json")
    for section in ("source", "tokenizer", "model", "decoding"):
        given = raw.get(section, {})
        if isinstance(given, dict):
            raw[section] = {**sections[section], **given}
    if isinstance(data := raw.get("data"), dict):
        _fill_in_data(data, base, is_resumed)
    _fill_in_training(raw["training"], base.config().training if is_resumed else None)


def _contradictions(raw: dict[str, Any], old: InferenceConfig) -> Iterator[str]:
    """The given keys that decide what the weights mean, where the old run has another value."""
    sections = old.model_dump(mode="json")
    for section in ("source", "tokenizer", "model"):
        given, known = raw.get(section), sections[section]
        for key, value in given.items() if isinstance(given, dict) else ():
            if key not in known or key in _FREE or value == known[key]:
                continue
            is_number = key in ("num_encoder_layers", "num_decoder_layers") and isinstance(value, int)
            if not (is_number and known["architecture"] == "transformer" and value < known[key]):  # see fewer_layers.py
                yield f"{section}.{key}: {known[key]} there, {value} here"


def _fill_in_data(data: dict[str, Any], base: RunFolder, is_resumed: bool) -> None:
    old = base.inference_config().data
    data.setdefault("max_length", old.max_length)
    if base.has_training_config():
        data.setdefault("exclude", kept_apart(base.config().data, is_resumed))
    train = data.get("train")
    corpora = [train] if isinstance(train, dict) else train
    if not isinstance(corpora, list) or not all(isinstance(files, dict) for files in corpora):
        return  # the validation says what is wrong
    for side, language in (("src", old.src_lang), ("tgt", old.tgt_lang)):
        path = corpora[0].get(side) if corpora else None
        if not data.get(f"{side}_lang") and not (isinstance(path, str) and language_suffix(Path(path))):
            data[f"{side}_lang"] = language
    if data.get("replay") and not any(files.get("replayed") for files in corpora):
        config = base.config("add its corpus to data.train with a weight, instead of data.replay")
        replayed = [files for files in config.data.train if files.replayed or not is_resumed]
        data["train"] = [*corpora, *({**files.model_dump(mode="json"), "replayed": True} for files in replayed)]


def kept_apart(data: DataConfig, is_resumed: bool = False) -> list[dict[str, Any]]:
    """The texts that a run was not trained on, where they still are: its hold-outs, and more with `data.exclude`.

    They are what forgetting is measured with, and the new run's corpora may hold them: with `data.replay` they do.
    """
    texts = data.exclude if is_resumed else data.excluded_from_training
    keys = set(CorpusFiles.model_fields)
    return [
        files.model_dump(mode="json", include=keys)
        for files in texts
        if is_resumed or (files.src_file.exists() and files.tgt_file.exists())
    ]


def _fill_in_training(training: dict[str, Any], recorded: TrainingConfig | None) -> None:
    limits: dict[str, Any] = {"max_steps": 1000}
    defaults: dict[str, Any] = FINE_TUNING
    if recorded is not None:
        values = recorded.model_dump(mode="json")
        limits = {limit: values[limit] for limit in LIMITS}
        defaults = {key: values[key] for key in (*FINE_TUNING, "warmup_steps")}
    if all(training.get(limit) is None for limit in LIMITS):
        training.update(limits)
    steps = training.get("max_steps")
    warmup_steps = min(50, steps // 10) if isinstance(steps, int) else 50
    if training.get("best_metric", "") is None:  # patience counts validations without a better one
        training.setdefault("patience", None)
    for key, value in {"warmup_steps": warmup_steps, **defaults}.items():
        training.setdefault(key, value)

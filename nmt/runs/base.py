"""The base run of a fine-tuning (`training.init_from`), and the settings that a new run inherits from it.

The sections `source`, `tokenizer` and `model`, and the languages, are the base run's; a Transformer may have fewer
layers. `data.max_length` and the keys of `decoding` are the base run's unless they are given, and the keys of
`training` have the defaults of fine-tuning. All of it is filled in before the configuration is validated, so that the
new run's config.yaml is complete: a resume reads it from there, and the base run may be gone.
"""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nmt.config.data import DataConfig
from nmt.config.inference import InferenceConfig
from nmt.config.languages import language_suffix
from nmt.config.reading import load_config
from nmt.config.training import Config, TrainingConfig
from nmt.errors import ConfigError, RunError
from nmt.runs.folder import RunFolder, open_run
from nmt.system.files import replacing

FINE_TUNING = {"learning_rate": 3e-4, "schedule": "constant", "validate_every": 50, "patience": 5}
"""Defaults of the `training` section with `init_from`. At the rate of a first training, a small model forgets most of
its knowledge within a few hundred updates."""
LIMITS = ("max_steps", "max_epochs", "max_minutes")
_FREE = {"dropout", "preset"}
"""Keys of the model section on which no weight depends."""


def base_run(name: str, named_by: str = "training.init_from:") -> RunFolder:
    """The run that a key or option names; `RunError` if there is none, or it has no weights to train."""
    try:
        run = open_run(name)
    except RunError as error:
        raise RunError(f"{named_by} {error}") from None
    if run.is_export():
        raise RunError(
            f"{named_by} {run.path} is an export, without weights to train; name the run that it was made from"
        )
    return run


def load_run_config(path: Path, overrides: Iterable[str], run: RunFolder, is_fresh: bool) -> Config:
    """Read the configuration of a training in the folder `run`, as `load_config` does.

    With `training.init_from`, keys that are not given are filled in from the base run, or from `run` itself if its
    training is resumed. Raises `ConfigError` for a model, tokenizer, source or language other than the base run's, and
    `RunError` if there is no such run.
    """
    bases: list[RunFolder] = []

    def complete(raw: dict[str, Any]) -> None:
        training = raw.get("training")
        name = training.get("init_from") if isinstance(training, dict) else None
        if not isinstance(name, str):
            return  # None, or a value that the validation refuses
        is_resumed = not is_fresh and run.exists() and run.has_checkpoints()
        base = run if is_resumed else base_run(name)
        if not is_resumed and base.path.resolve() == run.path.resolve():
            raise ConfigError(
                f"training.init_from: {base.path} is the folder of the new run, too; give the new run another name: "
                f"--name {run.name}-2"
            )
        if contradictions := list(_contradictions(raw, base.inference_config())):
            head = f"{path}: training.init_from: {base.path} has another model, tokenizer or source:"
            remedy = "leave these keys out; the new run has those of its base run"
            raise ConfigError("\n  ".join([head, *contradictions]) + f"\n{remedy}")
        _fill_in(raw, base, is_resumed)
        bases.append(base)

    config = load_config(path, overrides, complete)
    for base in bases:
        there, here = base.inference_config().data, config.data
        for key, old, new in (("src_lang", there.src_lang, here.src_lang), ("tgt_lang", there.tgt_lang, here.tgt_lang)):
            if old != new:
                raise ConfigError(
                    f"training.init_from: {base.path} was trained with data.{key}: {old}, and here it is {new}; "
                    f"if the text is in that language, set data.{key}: {old}"
                )
    return config


def copy_tokenizer(base: RunFolder, run: RunFolder) -> None:
    """Give a new run the tokenizer of its base run."""
    with replacing(run.tokenizer) as folder:
        shutil.copytree(base.tokenizer, folder)


def _fill_in(raw: dict[str, Any], base: RunFolder, is_resumed: bool) -> None:
    """Add the values of the base run and the defaults of fine-tuning for the keys that a file does not give.

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


def _contradictions(raw: dict[str, Any], base: InferenceConfig) -> Iterator[str]:
    """The given keys that contradict the base run and change the meaning of the weights."""
    sections = base.model_dump(mode="json")
    for section in ("source", "tokenizer", "model"):
        given, known = raw.get(section), sections[section]
        for key, value in given.items() if isinstance(given, dict) else ():
            if key not in known or key in _FREE or value == known[key]:
                continue
            is_number = key in ("num_encoder_layers", "num_decoder_layers") and isinstance(value, int)
            # A Transformer with fewer layers keeps some of the base model's (`load_base_weights`).
            if not (is_number and known["architecture"] == "transformer" and value < known[key]):
                yield f"{section}.{key}: {known[key]} there, {value} here"


def _fill_in_data(data: dict[str, Any], base: RunFolder, is_resumed: bool) -> None:
    inherited = base.inference_config().data
    data.setdefault("max_length", inherited.max_length)
    if base.has_training_config():
        data.setdefault("exclude", _untrained_text(base.config().data, is_resumed))
    train = data.get("train")
    corpora = [train] if isinstance(train, dict) else train
    if not isinstance(corpora, list) or not all(isinstance(files, dict) for files in corpora):
        return  # the validation says what is wrong
    for side, language in (("src", inherited.src_lang), ("tgt", inherited.tgt_lang)):
        path = corpora[0].get(side) if corpora else None
        if not data.get(f"{side}_lang") and not (isinstance(path, str) and language_suffix(Path(path))):
            data[f"{side}_lang"] = language
    if data.get("replay") and not any(files.get("replayed") for files in corpora):
        config = base.config("add its corpus to data.train with a weight, instead of data.replay")
        replayed = [files for files in config.data.train if files.replayed or not is_resumed]
        data["train"] = [*corpora, *({**files.model_dump(mode="json"), "replayed": True} for files in replayed)]


def _untrained_text(data: DataConfig, is_resumed: bool) -> list[dict[str, Any]]:
    """The held-out and excluded text of the base run that still exists, which the new run must not learn either.

    Forgetting is measured with it, and the new run's corpora may hold it: with `data.replay` they do.
    """
    texts = data.exclude if is_resumed else data.excluded_from_training
    return [files.file_keys() for files in texts if is_resumed or files.files_exist()]


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

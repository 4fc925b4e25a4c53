"""The commands that repeat a training, and what keeps them from giving the same weights to the bit.

The commands need an empty folder, the data in its place, and the versions, machine and threads of the first training.
"""

import dataclasses
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nmt.config.file import settings_to_yaml
from nmt.config.section import Section
from nmt.config.source import SourceConfig
from nmt.config.training import Config, TrainingConfig
from nmt.inheritance import FINE_TUNED
from nmt.training.record import RecordedCorpus, Start, TrainingRecord


@dataclasses.dataclass(frozen=True)
class Setting:
    """A setting that differs from its default, or has none."""

    key: str
    """`training.seed`"""
    value: str
    default: str
    """Empty if there is none."""


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """How to repeat a training."""

    commands: str
    """For a POSIX shell, in an empty folder; empty if no commands repeat this training."""
    caveats: tuple[str, ...]
    """Why the weights may differ; none if they are the same to the bit."""


def changed_settings(config: Config) -> tuple[Setting, ...]:
    """The settings that differ from the defaults, in the configuration's order; without the data's files."""
    return tuple(
        setting
        for section, values in _without_defaults(config).items()
        for setting in _changed(dict(config)[section], values, section)
    )


def _changed(section: Section, values: dict[str, Any], path: str) -> Iterator[Setting]:
    """Those of a section's values that differ from their defaults, and of the sections in it."""
    for key, value in values.items():
        here, field = f"{path}.{key}", type(section).model_fields[key]
        if here in ("data.train", "data.exclude", "data.validation", "data.test"):
            continue
        inner = dict(section)[key]
        if isinstance(inner, Section):
            yield from _changed(inner, value, here)
            continue
        default = "" if field.is_required() else _shown(field.get_default(call_default_factory=True))
        if _shown(value) != default:
            yield Setting(here, _shown(value), default)


def reproduction(
    config: Config,
    name: str,
    record: TrainingRecord | None,
    model_sha256: str,
    last_step: int,
    averaged: str = "",
    is_finished: bool = True,
) -> Reproduction:
    """How to repeat the training of the run `name`, which made `last_step` updates and gave this model.

    `averaged` names what an average, which has no training of its own, is the mean of.
    """
    if averaged:
        return Reproduction("", (f"The model is the mean of {averaged}; the report of each run that was averaged says "
                                 f"how to repeat its training.",))  # fmt: skip
    caveats = list(_caveats(config, record, last_step))
    if not is_finished:
        caveats.insert(0, "The training is not finished: the commands train to its end, and may find a better model.")
    if _is_restarted(config.training, record):
        return Reproduction("", tuple(caveats))
    settings = _without_defaults(_ending_at(config, last_step))
    if record is not None:
        last = record.starts[-1]
        precision = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}[last.precision]
        settings["training"] |= {"device": last.device.partition(":")[0], "precision": precision}
    folder = None if record is None else Path(record.folder)
    file = shlex.quote(f"{name}.yaml")
    commands = [f"cat > {file} <<'END'\n{settings_to_yaml(_from_folder(settings, folder))}END"]
    if record is not None:
        # One line a file: a name with a line break would become a command.
        hashes = {path: sha256 for path, sha256 in _files(record, folder).items() if path.isprintable()}
        several = _several_files(record, folder, config.source) & hashes.keys()
        lines = "".join(f"{sha256}  {path}\n" for path, sha256 in hashes.items() if path not in several)
        commands.append(f"sha256sum --check <<'END'\n{lines}END")
        commands += [f"# Not checked, because it is more than one file: {path}" for path in sorted(several)]
    commands.append(f"nmt train {file}")
    commands.append(f"sha256sum --check <<'END'\n{model_sha256}  runs/{name}/model.safetensors\nEND")
    return Reproduction("\n".join(commands) + "\n", tuple(caveats))


def from_folder(path: str, folder: Path | None) -> str:
    """The path as from the folder, if the file is in it."""
    if folder is None or not Path(path).is_relative_to(folder):
        return path
    return Path(path).relative_to(folder).as_posix()


def _without_defaults(config: Config) -> dict[str, dict[str, Any]]:
    """The settings that differ from the defaults or have none; and the architecture, which decides what the others
    mean."""
    dumped: dict[str, dict[str, Any]] = config.model_dump(mode="json", exclude_defaults=True)
    if config.training.init_from is not None:  # these keys then have other defaults
        every = config.model_dump(mode="json")
        dumped["data"]["max_length"] = every["data"]["max_length"]
        dumped["decoding"], dumped["model"] = every["decoding"], every["model"]
        dumped["training"] |= {key: every["training"][key] for key in FINE_TUNED}
    dumped["model"] = {"architecture": config.model.architecture, **dumped.get("model", {})}
    cleared = {section: {key: value for key, value in keys.items() if value != {}} for section, keys in dumped.items()}
    return {section: cleared[section] for section in Config.model_fields if cleared.get(section)}


def _ending_at(config: Config, last_step: int) -> Config:
    """The configuration with an end that does not depend on the clock."""
    settings = config.training
    if settings.max_minutes is None:
        return config
    steps = settings.max_steps if settings.ends_at_max_steps else last_step
    changed = settings.model_copy(update={"max_minutes": None, "max_steps": steps})
    return config.model_copy(update={"training": changed})


def _from_folder(settings: dict[str, dict[str, Any]], folder: Path | None) -> dict[str, dict[str, Any]]:
    """The settings with paths as from `folder`, for the files in it."""

    def both(files: dict[str, Any]) -> dict[str, Any]:
        return files | {key: from_folder(files[key], folder) for key in ("pairs", "src", "tgt") if key in files}

    data = dict(settings["data"])
    for key in ("train", "exclude"):
        if key in data:
            data[key] = [both(files) for files in data[key]]
    data["validation"] = both(data["validation"])
    if "test" in data:
        data["test"] = {name: both(files) for name, files in data["test"].items()}
    guard = dict(settings.get("guard", {}))
    if guard.get("validation"):
        guard["validation"] = both(guard["validation"])
    if "test" in guard:
        guard["test"] = {name: both(files) for name, files in guard["test"].items()}
    return settings | {"data": data} | ({"guard": guard} if guard else {})


def _files(record: TrainingRecord, folder: Path | None) -> dict[str, str]:
    """The hash of each file that a training reads, by its path as the commands name it."""
    files = [file for corpus in _corpora(record) for file in corpus.files]
    if record.init_from is not None:
        files.append(record.init_from.model)
    return {from_folder(file.path, folder): file.sha256 for file in files}


def _several_files(record: TrainingRecord, folder: Path | None, source: SourceConfig) -> set[str]:
    """The paths of `_files` whose hash is of several files: folders of vectors, and images with their list."""
    paths = {files.src.path for files in _corpora(record)} if source.type != "text" else set()
    return {from_folder(path, folder) for path in paths if source.type == "images" or not path.endswith(".npy")}


def _corpora(record: TrainingRecord) -> list[RecordedCorpus]:
    return [*record.train, record.validation, *record.test.values()]


def _caveats(config: Config, record: TrainingRecord | None, last_step: int) -> Iterator[str]:
    settings = config.training
    if _is_restarted(settings, record):
        yield "The learning-rate schedule was restarted, so it takes two trainings to repeat this one."
    if settings.max_minutes is not None:
        if settings.ends_at_max_steps and last_step < (settings.max_steps or 0):
            yield (
                f"The time limit ended this training at step {last_step:,} of {settings.max_steps:,}; the commands "
                f"train to the last, and may find a better model on the way."
            )
        else:
            yield f"The time limit is replaced by the number of updates that were made, {last_step:,}."
    if record is None:
        yield (
            "This run has no training.json: hashes of the data, versions and machine were not recorded, and the files "
            "must be those that it was trained on."
        )
        return
    first = record.starts[0]
    if first.step:
        yield f"What the first {first.step:,} updates were computed with is not recorded."
    if any(not start.device.startswith("cpu") for start in record.starts):
        yield "It was trained on a GPU, which adds in no fixed order: the weights will differ in their last bits."
    for before, start in zip(record.starts, record.starts[1:], strict=False):
        if differences := [*_differences(before, start), *(f"{line}" for line in start.changed)]:
            yield f"It was resumed at step {start.step:,} with changes: {'; '.join(differences)}."


def _is_restarted(settings: TrainingConfig, record: TrainingRecord | None) -> bool:
    changed = [line for start in (record.starts if record else ()) for line in start.changed]
    return settings.ends_at_max_steps and any(line.startswith("training.max_steps:") for line in changed)


def _differences(before: Start, start: Start) -> Iterator[str]:
    """What a resume computed with that the start before did not: `torch 2.13.0 -> 2.14.0`."""
    for name in sorted(before.versions.keys() | start.versions.keys()):
        old, new = before.versions.get(name, "none"), start.versions.get(name, "none")
        if old != new:
            yield f"{name} {old} -> {new}"
    if not before.computes_like(start):
        for field in ("machine", "system", "device", "precision", "processes", "threads"):
            old, new = before.model_dump()[field], start.model_dump()[field]
            if old != new:
                yield f"{field} {old} -> {new}"


def _shown(value: object) -> str:
    """A value as in YAML, in one line."""
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, float) and value == int(value):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

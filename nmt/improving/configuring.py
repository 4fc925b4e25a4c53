"""The configurations of an improvement's trainings: the user's, with what each step changes.

Sections are plain mappings, with the keys that the user gave. Paths are relative to the folder configs/.
"""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmt.config.corpus import TrainingFiles
from nmt.config.file import load_config, settings_to_yaml
from nmt.config.training import Config, TrainingConfig
from nmt.data.corpus import count_pairs
from nmt.inheritance import FINE_TUNED, FINE_TUNING, MAX_STEPS

Sections = dict[str, Any]
Corpus = dict[str, Any]
"""One of `data.train`, as in a configuration."""

CONFIGS = Path("configs")
START = 1 / 3
"""The share of the updates in which a model learns both directions (Ding et al. 2021 train them for a third)."""
LONGER = 2
"""Token cutoff and R-Drop pay in long trainings: times as many updates."""
CUTOFF = {"model": {"token_cutoff": 0.05}, "training": {"r_drop": 1.0}}
FINE_TUNING_SHARE = 0.1
"""Updates on the real pairs alone at the end, of those of the whole training; at most `MAX_STEPS`."""
TAUGHT_SHARE = 0.5
"""Updates with the teachers' translations, of those of the run that is trained on with them."""
TAUGHT_RATE = 0.4
"""Their learning rate, of that run's."""
TAG = "bt"
"""Before the sources of back-translations, so that the model can tell them from text that people wrote."""
NOISE = 0.1
"""Of the sources of self-training, as in He et al. 2020."""
OF_CORPORA = {"weight", "tag", "noise"}
"""The keys of a corpus that stay with it when it has been cleaned."""
_OF_FILES = ("train", "validation", "test", "exclude", "cleaning")  # the keys of `data` that are replaced


def write_out(sections: Mapping[str, Any]) -> str:
    """The text of a configuration file."""
    return "# Written by nmt.\n" + settings_to_yaml(sections)


def read_sections(name: str) -> tuple[Sections, Config]:
    """A configuration of this improvement: as it is written, and validated."""
    found: list[Sections] = []
    config = load_config(CONFIGS / f"{name}.yaml", (), lambda raw: found.append(copy.deepcopy(raw)))
    return found[0], config


def first_sections(
    config: Config, train: Sequence[Corpus], held_out: Mapping[str, Corpus], tags: Sequence[str] = ()
) -> Sections:
    """The user's configuration on text in the working folder.

    `held_out` are all texts that nothing may be trained on. Test sets are among them, and no more: no training scores
    them, so that nothing is chosen by them. `tags` are those that a later step needs, of the same vocabulary.
    """
    sections: Sections = config.model_dump(mode="json", exclude_unset=True)
    data = {key: value for key, value in sections["data"].items() if key not in _OF_FILES}
    data |= {"src_lang": config.data.src_lang, "tgt_lang": config.data.tgt_lang, "train": list(train)}
    data["validation"] = held_out["validation"]
    data["exclude"] = [files for name, files in held_out.items() if name != "validation"]
    data["cleaning"] = {"overlap": True}
    # Neither changes what is learned, and both take time after each of many trainings.
    no_report = {**sections.get("evaluation", {}), "report": False}
    if tags:
        known = config.tokenizer.tags
        new = [*known, *(tag for tag in tags if tag not in known)]
        sections["tokenizer"] = {**sections.get("tokenizer", {}), "tags": new}
    return {**sections, "data": data, "evaluation": no_report, "export": {"after_training": []}}


def cleaning_sections(config: Config, train: Sequence[Corpus], held_out: Mapping[str, Corpus]) -> Sections:
    """What `nmt data` needs to clean a text by the user's rules, and to leave out what is held out."""
    rules = config.data.cleaning.model_dump(mode="json", exclude_unset=True)
    return {
        "data": {
            "train": list(train),
            "src_lang": config.data.src_lang,
            "tgt_lang": config.data.tgt_lang,
            "cleaning": {**rules, "overlap": True},
            "validation": held_out["validation"],
            "test": {name: files for name, files in held_out.items() if name != "validation"},
        },
        "training": {"max_steps": 1},  # a configuration has a limit; nothing is trained with this one
    }


def swapped_corpus(corpus: Corpus) -> Corpus:
    """The same pairs in the other direction; what is done to sources is not done to targets that become sources."""
    kept = {key: value for key, value in corpus.items() if key not in ("tag", "noise")}
    return {**kept, "src": corpus["tgt"], "tgt": corpus["src"]}


def swapped(sections: Sections) -> Sections:
    """The configuration of the model that translates back."""
    new = copy.deepcopy(sections)
    data = new["data"]
    data["src_lang"], data["tgt_lang"] = data["tgt_lang"], data["src_lang"]
    data["validation"] = swapped_corpus(data["validation"])
    for key in ("train", "exclude"):
        data[key] = [swapped_corpus(one) for one in data[key]]
    new.get("evaluation", {}).pop("bleu_tokenizer", None)  # it is of the target language
    return new


def both_directions(sections: Sections, config: Config) -> Sections:
    """The start of a training: both directions in one model, for a third of the updates (Ding et al. 2021)."""
    new = copy.deepcopy(sections)
    data = new["data"]
    back = swapped(sections)["data"]
    data["train"] += back["train"]
    data["exclude"] += [*back["exclude"], back["validation"]]
    new["training"] |= limits(config.training, START, growth=2)
    return new


def after_both_directions(sections: Sections, config: Config, start: str) -> Sections:
    """The rest of that training: the right direction alone, by the same schedule."""
    settings = config.training.model_dump(mode="json")
    kept = {key: settings[key] for key in FINE_TUNED}  # else they would be those of a fine-tuning
    training = {**sections["training"], **kept, "init_from": start, **limits(config.training, 1 - START)}
    return {**sections, "training": training}


def with_cutoff(sections: Sections, config: Config) -> Sections:
    """Token cutoff and R-Drop (Shen et al. 2020, Liang et al. 2021), and more updates."""
    model = {**sections.get("model", {}), **CUTOFF["model"]}
    training = {**sections["training"], **CUTOFF["training"], **limits(config.training, LONGER)}
    return {**sections, "model": model, "training": training}


def with_seed(sections: Sections, config: Config, number: int) -> Sections:
    """The same training from other random numbers."""
    return {**sections, "training": {**sections["training"], "seed": config.training.seed + number}}


def on_part(sections: Sections, config: Config, train: Sequence[Corpus], share: float) -> Sections:
    """The same training on a share of the pairs, as often each."""
    training = {**sections["training"], **limits(config.training, share, growth=share)}
    return {**sections, "data": {**sections["data"], "train": list(train)}, "training": training}


def with_corpora(
    sections: Sections,
    config: Config,
    added: Sequence[Corpus],
    real: Sequence[Corpus] | None = None,
    instead_of: Sequence[str] = (),
) -> Sections:
    """More text, for the same number of updates; `instead_of` names texts that it replaces, if they are there.

    With `real`, an epoch has at most as many of the added pairs as of these: of much monolingual text, other lines in
    each epoch.
    """
    added = not_empty(added)
    if real is not None and added:
        weight = min(1.0, round(_pairs_of_an_epoch(real) / _pairs_of_an_epoch(added), 4))
        added = [{**corpus, "weight": weight} for corpus in added]
    before = sections["data"]["train"]
    train = [*(corpus for corpus in before if Path(corpus["src"]).parent.name not in instead_of), *added]
    growth = _pairs_of_an_epoch(train) / _pairs_of_an_epoch(before)
    training = {**sections["training"], **limits(config.training, 1.0, growth)}
    return {**sections, "data": {**sections["data"], "train": train}, "training": training}


def not_empty(corpora: Sequence[Corpus]) -> list[Corpus]:
    """Those with a line: a text of which cleaning has left nothing is no corpus."""
    return [corpus for corpus in corpora if (CONFIGS / corpus["src"]).stat().st_size]


def fine_tuned(sections: Sections, config: Config, best: str, train: Sequence[Corpus]) -> Sections:
    """The best run so far, trained further on the real pairs alone, with the defaults of fine-tuning."""
    settings = config.training
    dropped = {"min_learning_rate", "restart_schedule", "weight_decay", *settings_of_limits(settings)}
    training = {key: value for key, value in sections["training"].items() if key not in dropped}
    steps = MAX_STEPS if settings.max_steps is None else round(settings.max_steps * FINE_TUNING_SHARE)
    max_steps = max(1, min(MAX_STEPS, steps))
    validate_every = max(1, min(settings.validate_every, max_steps // 10))
    training |= {
        **FINE_TUNING, "init_from": best, "max_steps": max_steps, "warmup_steps": min(50, max_steps // 10),
        "validate_every": validate_every,
    }  # fmt: skip
    return {**sections, "data": {**sections["data"], "train": list(train)}, "training": training}


def taught(sections: Sections, config: Config, best: str, train: Sequence[Corpus]) -> Sections:
    """The best run so far, trained on with its teachers' translations alone, for half as many updates.

    They vary less than what people write: it has half its dropout, and no R-Drop, which takes twice the time.
    """
    settings = config.training
    growth = _pairs_of_an_epoch(train) / _pairs_of_an_epoch(sections["data"]["train"])
    values = settings.model_dump(mode="json")
    kept = {key: values[key] for key in FINE_TUNED}  # else they would be those of a fine-tuning
    schedule = {} if settings.max_steps is None else {"schedule": "cosine"}  # a cosine ends at a known update
    dropped = {"min_learning_rate", "restart_schedule", "schedule_start"}
    training = {key: value for key, value in sections["training"].items() if key not in dropped}
    training |= {
        **kept, **schedule, "init_from": best, "learning_rate": settings.learning_rate * TAUGHT_RATE, "r_drop": 0.0,
        **limits(settings, TAUGHT_SHARE, growth),
    }  # fmt: skip
    model = {**sections.get("model", {}), "dropout": config.model.dropout / 2}
    return {**sections, "model": model, "data": {**sections["data"], "train": list(train)}, "training": training}


def settings_of_limits(settings: TrainingConfig) -> list[str]:
    """The keys that say when the training ends."""
    return [key for key in ("max_steps", "max_epochs", "max_minutes") if getattr(settings, key) is not None]


def limits(settings: TrainingConfig, share: float, growth: float = 1.0) -> dict[str, Any]:
    """The keys of a training with `share` times the updates, on `growth` times the pairs.

    The warm-up stays as long as it leaves half of the updates, and there is a validation at the end at least.
    """
    found: dict[str, Any] = {}
    if settings.max_epochs is not None:
        found["max_epochs"] = max(1, round(settings.max_epochs * share / growth))
    if settings.max_minutes is not None:
        found["max_minutes"] = settings.max_minutes * share
    if settings.max_steps is not None:
        steps = found["max_steps"] = max(1, round(settings.max_steps * share))
        found["warmup_steps"] = min(settings.warmup_steps, steps // 2)
        found["validate_every"] = min(settings.validate_every, steps)
    return found


def _pairs_of_an_epoch(train: Sequence[Corpus]) -> float:
    """How many pairs an epoch has, with the corpora's weights."""
    total = 0.0
    for corpus in train:
        files = TrainingFiles(**{**corpus, "src": CONFIGS / corpus["src"], "tgt": CONFIGS / corpus["tgt"]})
        total += files.weight * count_pairs([files])
    return total

"""Model card for Hugging Face: a README.md with metadata for programs and text for people.

The metadata follow https://huggingface.co/docs/hub/model-cards; `huggingface_hub`'s `ModelCard.load` reads them.
"""

import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import yaml

from nmt.config.languages import base_language
from nmt.config.training import Metric
from nmt.errors import ConfigError
from nmt.evaluation.metrics import Score
from nmt.interop.verification import UNKNOWN_LICENSE

# Hugging Face's names of tasks; vectors may belong to any.
_TASKS = {"text": "translation", "images": "image-to-text", "vectors": ""}
_TASK_NAMES = {"text": "Translation", "images": "Image to", "vectors": "Vectors to"}


class CardScores(NamedTuple):
    """Scores of a model on one set."""

    name: str
    """Name of the set."""
    split: Literal["test", "validation"]
    """`validation` is the set that chose the model."""
    scores: dict[Metric, Score]


class CardFacts(NamedTuple):
    """Content of a card."""

    name: str
    source: Literal["text", "vectors", "images"]
    """Input of the model."""
    src_lang: str
    """A language code, as in the configuration; `zxx` for vectors and images without a language."""
    tgt_lang: str
    scores: Sequence[CardScores]
    description: str
    """One or two sentences: kind and size of the model."""
    usage: str
    """Markdown: instructions for translating."""
    training: str
    """Markdown: training data and settings."""
    limits: str
    """Markdown."""
    license: str = UNKNOWN_LICENSE
    """Hugging Face's identifier, such as `cc-by-4.0`."""
    datasets: Sequence[str] = ()
    """Hugging Face's identifiers of the training data, such as `bentrevett/multi30k`."""
    library: str = "nmt"
    """The library that loads the model."""
    base_model: str | None = None
    """Hugging Face's name of the base model."""
    validates_on_training_text: bool = False
    """True if validation scores are of training text: they are not in the metadata, and a warning explains them."""


def check_card_options(license: str | None, datasets: Sequence[str]) -> None:
    """Raise `ConfigError` for what cannot be an identifier on Hugging Face."""
    if license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", license):
        raise ConfigError(f"--license {license!r}: give Hugging Face's identifier, for example mit or cc-by-4.0")
    for dataset in datasets:
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", dataset):
            raise ConfigError(f"--dataset {dataset!r}: give its name on Hugging Face, for example bentrevett/multi30k")


def model_card(facts: CardFacts) -> str:
    """The text of the card's README.md."""
    warning = "\n> **Warning**: validation scores are of the training text, and say nothing about other text.\n"
    header = yaml.safe_dump(_metadata(facts), sort_keys=False, allow_unicode=True, width=1000)
    return f"""---
{header}---
# {facts.name}
{facts.description}
{warning if facts.validates_on_training_text else ""}
## Intended use
{_intended_use(facts)}

## How to use it
{facts.usage}

## Training
{facts.training}

## Scores
{_score_table(facts)}

## Limits
{facts.limits}
"""


def _intended_use(facts: CardFacts) -> str:
    if facts.source == "text":
        return (
            f"Translating text from {facts.src_lang} to {facts.tgt_lang}, sentence by sentence, of the kind that it "
            "was trained on. Translations can be wrong\nand read well; where a mistake does harm, a person who knows "
            "both languages must check them."
        )
    return (
        f"Text in {facts.tgt_lang} for {facts.source} of the kind that it was trained on. It can be wrong and read "
        "well; where a mistake\ndoes harm, a person who knows the sources must check it."
    )


def _languages(facts: CardFacts) -> list[str]:
    """The language codes of both sides, or of the target alone if the source has no language."""
    return [code for code in (facts.src_lang, facts.tgt_lang) if code != "zxx"]


def _metadata(facts: CardFacts) -> dict[str, Any]:
    codes = _languages(facts)
    bases = list(dict.fromkeys(map(base_language, codes)))
    metadata: dict[str, Any] = {"language": bases}
    if bases != list(dict.fromkeys(codes)):  # with scripts and regions, which `language` does not allow
        metadata["language_bcp47"] = codes
    metadata |= {"license": facts.license, "library_name": facts.library}
    if facts.base_model is not None:
        metadata["base_model"] = facts.base_model
    if task := _TASKS[facts.source]:
        metadata["pipeline_tag"] = task
    metadata["tags"] = [*([task] if task else []), "nmt", "-".join(codes)]
    if facts.datasets:
        metadata["datasets"] = list(facts.datasets)
    results = [one for one in facts.scores if one.split == "test" or not facts.validates_on_training_text]
    metrics = list(dict.fromkeys(metric for one in results for metric in one.scores))
    if metrics:
        metadata["metrics"] = metrics
        metadata["model-index"] = [{"name": facts.name, "results": [_result(one, facts) for one in results]}]
    return metadata


def _result(one: CardScores, facts: CardFacts) -> dict[str, Any]:
    pair = "-".join(_languages(facts))
    return {
        "task": {"type": _TASKS[facts.source] or "other", "name": f"{_TASK_NAMES[facts.source]} {pair}"},
        # An identifier is of letters, digits, and few other characters.
        "dataset": {
            "type": re.sub(r"[^\w.-]+", "-", one.name) or "unnamed",
            "name": one.name,
            "config": pair,
            "split": one.split,
        },
        "metrics": [
            {"type": metric, "name": score.name, "value": round(score.value, 2), "args": {"signature": score.signature}}
            for metric, score in one.scores.items()
        ],
    }


def _score_table(facts: CardFacts) -> str:
    if not facts.scores:
        return "None recorded."
    rows = [
        f"| {one.name} ({one.split}) | {score.name} | {score.value:.2f} | `{_in_table(score.signature)}` |"
        for one in facts.scores
        for score in one.scores.values()
    ]
    head = ["| set | metric | score | sacreBLEU signature |", "| --- | --- | ---: | --- |"]
    if not facts.validates_on_training_text and not any(one.split == "test" for one in facts.scores):
        rows.append(
            "\nThe validation set chose the model, so its scores are a little too good; `nmt eval` adds a test set's."
        )
    return "\n".join([*head, *rows])


def _in_table(text: str) -> str:
    return text.replace("|", "\\|")

"""Filtering of pairs, such as synthetic ones, by the scores of models. Only scores are in memory.

First drops empty, identical and duplicate pairs. The others get scores:

cross_entropy   per token of a side given the other; with models for both directions, the dual conditional cross-entropy
                |F - B| + (F + B) / 2 (Junczys-Dowmunt 2018): both must find the pair likely, and equally so. Lower is
                better.
chrf            the sentence chrF of the target, translated back, against the source. Higher is better.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.chrf import CHRF

from nmt.cleaning.selection import RULES, Verdicts, check_folder, counts_of, judge_corpora, write_cleaned
from nmt.config.corpus import CorpusFiles
from nmt.config.data import CleaningConfig
from nmt.corpora.pairs import read_pairs
from nmt.decoding.scoring import load_scorer
from nmt.decoding.translator import LINES_AT_ONCE, load
from nmt.errors import ConfigError, DataError
from nmt.runs.folder import open_runs
from nmt.system.console import log

_TEXT_RULES = CleaningConfig(identical=True, duplicates="pair")
_RULES = (*RULES, "too_long", "cross_entropy", "chrf", "keep")
"""The rules about text, then those about scores, in the order in which they are applied; they number the verdicts."""
_TOO_LONG, _CROSS_ENTROPY, _CHRF, _KEEP = range(1 + len(RULES), 1 + len(_RULES))
_QUANTILES = {"min": 0.0, "5%": 0.05, "25%": 0.25, "50%": 0.5, "75%": 0.75, "95%": 0.95, "max": 1.0}

Scores = NDArray[np.float64]


class ScoringModels(NamedTuple):
    """Models that score the pairs, each a run or an ensemble of several, with their engine and device."""

    forward: Sequence[str] = ()
    backward: Sequence[str] = ()
    round_trip: bool = False
    """Translate the targets back with `backward`."""
    engine: str = "auto"
    device: str = "auto"

    def languages(self) -> tuple[str, str]:
        """Return the languages of the pairs; `ConfigError` if the models do not translate between the same two."""
        languages_of = {}
        for direction, models in (("forward", self.forward), ("backward", self.backward)):
            for run in open_runs(models) if models else ():
                option, config = f"--{direction} {run.path}", run.inference_config()
                if config.source.type != "text":
                    raise ConfigError(f"{option}: its sources are {config.source.type}, and pairs are text")
                own = config.data.src_lang, config.data.tgt_lang
                languages_of[option] = own if direction == "forward" else own[::-1]
        first, languages = next(iter(languages_of.items()))
        for option, other in languages_of.items():
            if other != languages:
                src, tgt = languages if option.startswith("--forward") else languages[::-1]
                raise ConfigError(f"{option}: does not translate {src} to {tgt}, as {first} needs it; name another run")
        return languages


class Limits(NamedTuple):
    """Limits of scores, or the share of the scored pairs to keep, the best ones."""

    keep: float | None = None
    """With two scores, by the sum of the ranks in both."""
    max_cross_entropy: float | None = None
    min_chrf: float | None = None


@dataclasses.dataclass(frozen=True)
class FilterReport:
    """Numbers of pairs kept and dropped, and their scores."""

    pairs: int
    dropped: dict[str, int]
    """By rule, in the order of the rules; only those that dropped pairs."""
    kept: int
    worst_kept: dict[str, float]
    """By score: that of the worst pair that was kept, which is the threshold."""
    quantiles: dict[str, dict[str, float]]
    """By score, over all pairs that have it."""


def filter_pairs(corpora: Sequence[CorpusFiles], models: ScoringModels, limits: Limits, folder: Path) -> FilterReport:
    """Score the pairs, and write those that are kept into a new folder, as `write_cleaned` does.

    Raises `DataError` if a file cannot be read, sides differ in length, or no pair is left.
    """
    check_folder(folder)
    languages = models.languages()
    judged = judge_corpora(corpora, _TEXT_RULES, languages)
    verdicts = np.concatenate(judged)
    scores = _scores(corpora, verdicts, models)
    _apply(verdicts, scores, limits)
    counts = counts_of(verdicts, _RULES)
    if not counts.kept:
        raise DataError(f"no pair is left of {len(verdicts):,}; raise or lower the limits")
    write_cleaned(corpora, np.split(verdicts, np.cumsum([*map(len, judged)])[:-1]), languages, folder, _RULES)
    worst = {"cross_entropy": np.max, "chrf": np.min}
    return FilterReport(
        pairs=len(verdicts),
        dropped=dict(counts.dropped),
        kept=counts.kept,
        worst_kept={name: float(worst[name](of_all[verdicts == 0])) for name, of_all in scores.items()},
        quantiles={
            name: dict(zip(_QUANTILES, np.nanquantile(of_all, [*_QUANTILES.values()]).tolist(), strict=True))
            for name, of_all in scores.items()
        },
    )


def _scores(corpora: Sequence[CorpusFiles], verdicts: Verdicts, models: ScoringModels) -> dict[str, Scores]:
    """The scores (P,) of the pairs by name, NaN for a dropped pair. Drops pairs that are too long for a model."""
    scored = np.flatnonzero(verdicts == 0)

    def pairs() -> Iterator[tuple[str, str]]:
        return itertools.compress(itertools.chain.from_iterable(map(read_pairs, corpora)), (verdicts == 0).tolist())

    def of_all(of_scored: Scores) -> Scores:
        values = np.full(len(verdicts), np.nan)
        values[scored] = of_scored
        return values

    directions: list[Scores] = []
    if models.forward:
        log.info(f"scoring {len(scored):,} pairs forward")
        directions.append(cross_entropies(pairs(), models.forward, models))
    if models.backward and (models.forward or not models.round_trip):  # else it only translates
        log.info(f"scoring {len(scored):,} pairs backward")
        directions.append(cross_entropies(((tgt, src) for src, tgt in pairs()), models.backward, models))
    scores: dict[str, Scores] = {}
    if directions:
        scores["cross_entropy"] = of_all(dual_cross_entropy(*directions) if len(directions) == 2 else directions[0])
    if models.round_trip:
        log.info(f"translating {len(scored):,} targets back")
        scores["chrf"] = of_all(round_trip_chrf(pairs(), models))
    for values in scores.values():
        verdicts[(verdicts == 0) & np.isnan(values)] = _TOO_LONG
    return scores


def cross_entropies(pairs: Iterator[tuple[str, str]], runs: Sequence[str], models: ScoringModels) -> Scores:
    """The negative log-probability of each target given its source, divided by its number of tokens with `</s>`.

    NaN for a target that is too long for the model.
    """
    scorer = load_scorer(runs, models.device, models.engine, own_process=True)
    scored = scorer.stream(pairs)
    return np.fromiter((-target.log_prob / max(1, len(target.tokens)) for target in scored), dtype=np.float64)


def dual_cross_entropy(forward: Scores, backward: Scores) -> Scores:
    """Junczys-Dowmunt 2018 (arXiv:1809.00197), equation 1, without the exponential: lower is better."""
    return np.abs(forward - backward) + (forward + backward) / 2


def round_trip_chrf(pairs: Iterator[tuple[str, str]], models: ScoringModels) -> Scores:
    """The sentence chrF of each target, translated back, against its source: 0 to 100."""
    translator = load(models.backward, device=models.device, engine=models.engine, own_process=True)
    metric = CHRF()
    scores: list[float] = []
    while block := list(itertools.islice(pairs, LINES_AT_ONCE)):
        texts = translator.translate([tgt for _, tgt in block], range(len(scores) + 1, len(scores) + len(block) + 1))
        scores += (metric.sentence_score(text, [src]).score for text, (src, _) in zip(texts, block, strict=True))
    return np.array(scores)


def _apply(verdicts: Verdicts, scores: Mapping[str, Scores], limits: Limits) -> None:
    """Add the verdicts of the limits."""
    for name, verdict, limit, sign in (
        ("cross_entropy", _CROSS_ENTROPY, limits.max_cross_entropy, 1),
        ("chrf", _CHRF, limits.min_chrf, -1),
    ):
        if limit is not None:
            verdicts[(verdicts == 0) & (sign * scores[name] > sign * limit)] = verdict
    if limits.keep is None:
        return
    left = np.flatnonzero(verdicts == 0)
    ranks = np.zeros(len(left), dtype=np.int64)
    for name, values in scores.items():
        costs = values[left] if name == "cross_entropy" else -values[left]
        ranks += np.searchsorted(np.sort(costs), costs)  # the number of better pairs
    best_first = np.argsort(ranks, kind="stable")  # pairs of the same rank in their order
    verdicts[left[best_first[round(limits.keep * len(left)) :]]] = _KEEP

"""Filtering of pairs by the scores of models. Only scores are in memory.

First drops what the recommended rules of cleaning drop. The other pairs get one of two scores:

cross_entropy   per token of a side given the other; the mean of both directions if there are models for both. Lower is
                better.
chrf            the sentence chrF of the target, translated back, against the source. Higher is better.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.chrf import CHRF

from nmt.cleaning.selection import RULES, Verdicts, check_folder, counts_of, judge_corpora, no_pair_left, write_cleaned
from nmt.config.corpus import CorpusFiles
from nmt.config.data import CleaningConfig
from nmt.corpora.pairs import read_pairs
from nmt.decoding.scoring import load_scorer
from nmt.decoding.translator import LINES_AT_ONCE, load
from nmt.errors import ConfigError, DataError
from nmt.runs.folder import open_runs
from nmt.system.console import log

_RULES = (*RULES, "too_long", "keep")
"""The rules about text, then those about scores, in the order in which they are applied; they number the verdicts."""
_TOO_LONG, _KEEP = range(1 + len(RULES), 1 + len(_RULES))
_QUANTILES = {"min": 0.0, "5%": 0.05, "25%": 0.25, "50%": 0.5, "75%": 0.75, "95%": 0.95, "max": 1.0}

Scores = NDArray[np.float64]
Lines = NDArray[np.int64]
"""The line numbers of pairs in their files."""


class ScoringModels(NamedTuple):
    """Models that score the pairs, each a run or an ensemble of several, with their engine and device."""

    forward: Sequence[str] = ()
    backward: Sequence[str] = ()
    round_trip: bool = False
    """Translate the targets back with `backward`: the score is chrF."""
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


@dataclasses.dataclass(frozen=True)
class FilterReport:
    """Numbers of pairs kept and dropped, and their scores."""

    pairs: int
    dropped: dict[str, int]
    """By rule, in the order of the rules; only those that dropped pairs."""
    kept: int
    score: str
    """`cross_entropy` or `chrf`."""
    worst_kept: float
    """The score of the worst pair that was kept."""
    quantiles: dict[str, float]
    """Of the scores of all pairs that have one."""


def filter_pairs(corpora: Sequence[CorpusFiles], models: ScoringModels, keep: float, folder: Path) -> FilterReport:
    """Score the pairs, and write the best of them, a share of `keep`, into a new folder, as `write_cleaned` does.

    Raises `DataError` if a file cannot be read, sides differ in length, or no pair is left.
    """
    check_folder(folder)
    languages = models.languages()
    judged = judge_corpora(corpora, CleaningConfig.recommended(), languages)
    verdicts = np.concatenate(judged)
    left = np.flatnonzero(verdicts == 0)
    if not len(left):
        raise no_pair_left(corpora, counts_of(verdicts, _RULES))
    name, scores = _scores(corpora, judged, models)
    verdicts[left[np.isnan(scores)]] = _TOO_LONG
    left, scores = left[~np.isnan(scores)], scores[~np.isnan(scores)]
    best_first = np.argsort(-scores if name == "chrf" else scores, kind="stable")  # equal ones in their order
    number = round(keep * len(left))
    if not number:
        raise DataError(f"--keep {keep:g} keeps none of the {len(left):,} pairs that have a score")
    verdicts[left[best_first[number:]]] = _KEEP
    write_cleaned(corpora, np.split(verdicts, np.cumsum([*map(len, judged)])[:-1]), languages, folder, _RULES)
    return FilterReport(
        pairs=len(verdicts),
        dropped=dict(counts_of(verdicts, _RULES).dropped),
        kept=number,
        score=name,
        worst_kept=float(scores[best_first[number - 1]]),
        quantiles=dict(zip(_QUANTILES, np.quantile(scores, [*_QUANTILES.values()]).tolist(), strict=True)),
    )


def _scores(corpora: Sequence[CorpusFiles], judged: Sequence[Verdicts], models: ScoringModels) -> tuple[str, Scores]:
    """The name of the score, and the scores (K,) of the pairs that are left; NaN for one too long for a model."""
    lines = np.concatenate([1 + np.flatnonzero(verdicts == 0) for verdicts in judged])

    def pairs() -> Iterator[tuple[str, str]]:
        for files, verdicts in zip(corpora, judged, strict=True):
            yield from read_pairs(files, (verdicts == 0).tobytes())

    if models.round_trip:
        log.info(f"translating {len(lines):,} targets back")
        return "chrf", round_trip_chrf(pairs(), lines, models)
    directions: list[Scores] = []
    if models.forward:
        log.info(f"scoring {len(lines):,} pairs forward")
        directions.append(cross_entropies(pairs(), lines, models.forward, models))
    if models.backward:
        log.info(f"scoring {len(lines):,} pairs backward")
        directions.append(cross_entropies(((tgt, src) for src, tgt in pairs()), lines, models.backward, models))
    return "cross_entropy", np.mean(directions, axis=0)


def cross_entropies(
    pairs: Iterator[tuple[str, str]], lines: Lines, runs: Sequence[str], models: ScoringModels
) -> Scores:
    """The negative log-probability of each target given its source, divided by its number of tokens with `</s>`.

    NaN for a target that is too long for the model. `lines` are for warnings.
    """
    scorer = load_scorer(runs, models.device, models.engine, own_process=True)
    scored = scorer.stream(pairs, lines)
    return np.fromiter((-target.log_prob / max(1, len(target.tokens)) for target in scored), dtype=np.float64)


def round_trip_chrf(pairs: Iterator[tuple[str, str]], lines: Lines, models: ScoringModels) -> Scores:
    """The sentence chrF of each target, translated back, against its source: 0 to 100."""
    translator = load(models.backward, device=models.device, engine=models.engine, own_process=True)
    metric = CHRF()
    scores: list[float] = []
    while block := list(itertools.islice(pairs, LINES_AT_ONCE)):
        texts = translator.translate([tgt for _, tgt in block], lines[len(scores) : len(scores) + len(block)])
        scores += (metric.sentence_score(text, [src]).score for text, (src, _) in zip(texts, block, strict=True))
    return np.array(scores)

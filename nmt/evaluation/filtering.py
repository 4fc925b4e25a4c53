"""Filtering of pairs, such as synthetic ones, by what models think of them. Only scores are in memory.

First, pairs go that have an empty side, are `identical`, or occurred before. The others get scores:

cross_entropy   per token of a side given the other, by a model that translates so; with models for both ways the dual
                conditional cross-entropy |F - B| + (F + B) / 2 (Junczys-Dowmunt 2018): both must find the pair likely,
                and equally so. Less is better.
chrf            the sentence chrF of the target, translated back, against the source. More is better.
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

_ON_TEXT = CleaningConfig(identical=True, duplicates="pair")
_RULES = (*RULES, "too_long", "cross_entropy", "chrf", "keep")
"""Those that look at the text alone, and then these, in order; verdicts are numbered as there."""
_TOO_LONG, _CROSS_ENTROPY, _CHRF, _KEEP = range(1 + len(RULES), 1 + len(_RULES))
_QUANTILES = {"min": 0.0, "5%": 0.05, "25%": 0.25, "50%": 0.5, "75%": 0.75, "95%": 0.95, "max": 1.0}

Scores = NDArray[np.float64]


class Judges(NamedTuple):
    """The models that score the pairs, each a run or several as an ensemble, and where they compute."""

    forward: Sequence[str] = ()
    backward: Sequence[str] = ()
    round_trip: bool = False
    """Translate the targets back with `backward`."""
    engine: str = "auto"
    device: str = "auto"

    def languages(self) -> tuple[str, str]:
        """Those of the pairs; `ConfigError` if the models do not translate between the same two."""
        found = {}
        for way, models in (("forward", self.forward), ("backward", self.backward)):
            for run in open_runs(models) if models else ():
                config = run.inference_config()
                if config.source.type != "text":
                    raise ConfigError(f"--{way} {run.path}: its sources are {config.source.type}, and pairs are text")
                own = config.data.src_lang, config.data.tgt_lang
                found[f"--{way} {run.path}"] = own if way == "forward" else own[::-1]
        first, languages = next(iter(found.items()))
        for name, other in found.items():
            if other != languages:
                src, tgt = languages if name.startswith("--forward") else languages[::-1]
                raise ConfigError(f"{name}: does not translate {src} to {tgt}, as {first} needs it; name another run")
        return languages


class Limits(NamedTuple):
    """What is kept: the best share of the pairs that have scores, or all within some limits."""

    keep: float | None = None
    """With two scores, by the sum of the ranks in both."""
    max_cross_entropy: float | None = None
    min_chrf: float | None = None


@dataclasses.dataclass(frozen=True)
class Filtered:
    """What was kept and why."""

    pairs: int
    dropped: dict[str, int]
    """By rule, in the order of the rules; only those that dropped pairs."""
    kept: int
    worst_kept: dict[str, float]
    """By score: that of the worst pair that was kept, and so the threshold."""
    quantiles: dict[str, dict[str, float]]
    """By score, over all pairs that have it."""


def filter_pairs(corpora: Sequence[CorpusFiles], judges: Judges, limits: Limits, folder: Path) -> Filtered:
    """Score the pairs, and `write_cleaned` those that are kept into a new folder.

    Raises `DataError` if a file cannot be read, sides differ in length, or no pair is left.
    """
    check_folder(folder)
    languages = judges.languages()
    judged = judge_corpora(corpora, _ON_TEXT, languages)
    verdicts = np.concatenate(judged)
    scores = _scores(corpora, verdicts, judges)
    _apply(verdicts, scores, limits)
    counts = counts_of(verdicts, _RULES)
    if not counts.kept:
        raise DataError(f"no pair is left of {len(verdicts):,}; raise or lower the limits")
    write_cleaned(corpora, np.split(verdicts, np.cumsum([*map(len, judged)])[:-1]), languages, folder, _RULES)
    worst = {"cross_entropy": np.max, "chrf": np.min}
    return Filtered(
        pairs=len(verdicts),
        dropped=dict(counts.dropped),
        kept=counts.kept,
        worst_kept={name: float(worst[name](of_all[verdicts == 0])) for name, of_all in scores.items()},
        quantiles={
            name: dict(zip(_QUANTILES, np.nanquantile(of_all, [*_QUANTILES.values()]).tolist(), strict=True))
            for name, of_all in scores.items()
        },
    )


def _scores(corpora: Sequence[CorpusFiles], verdicts: Verdicts, judges: Judges) -> dict[str, Scores]:
    """(P,) each score of the pairs, NaN for one without; a pair that a model cannot score gets its verdict."""
    place = np.flatnonzero(verdicts == 0)

    def pairs() -> Iterator[tuple[str, str]]:
        return itertools.compress(itertools.chain.from_iterable(map(read_pairs, corpora)), (verdicts == 0).tolist())

    def of_all(found: Scores) -> Scores:
        scores = np.full(len(verdicts), np.nan)
        scores[place] = found
        return scores

    of_ways: list[Scores] = []
    if judges.forward:
        log.info(f"scoring {len(place):,} pairs forward")
        of_ways.append(cross_entropies(pairs(), judges.forward, judges))
    if judges.backward and (judges.forward or not judges.round_trip):  # alone, it may be there to translate
        log.info(f"scoring {len(place):,} pairs backward")
        of_ways.append(cross_entropies(((tgt, src) for src, tgt in pairs()), judges.backward, judges))
    scores: dict[str, Scores] = {}
    if of_ways:
        scores["cross_entropy"] = of_all(dual_cross_entropy(*of_ways) if len(of_ways) == 2 else of_ways[0])
    if judges.round_trip:
        log.info(f"translating {len(place):,} targets back")
        scores["chrf"] = of_all(round_trip_chrf(pairs(), judges))
    for found in scores.values():
        verdicts[(verdicts == 0) & np.isnan(found)] = _TOO_LONG
    return scores


def cross_entropies(pairs: Iterator[tuple[str, str]], models: Sequence[str], judges: Judges) -> Scores:
    """The negative log-probability of each target given its source, divided by its number of tokens with `</s>`.

    NaN for a target that is too long for the model.
    """
    scorer = load_scorer(models, judges.device, judges.engine, own_process=True)
    return np.fromiter((-one.log_prob / max(1, len(one.tokens)) for one in scorer.stream(pairs)), dtype=np.float64)


def dual_cross_entropy(forward: Scores, backward: Scores) -> Scores:
    """Junczys-Dowmunt 2018 (arXiv:1809.00197), equation 1, without the exponential: less is better."""
    return np.abs(forward - backward) + (forward + backward) / 2


def round_trip_chrf(pairs: Iterator[tuple[str, str]], judges: Judges) -> Scores:
    """The sentence chrF of each target, translated back, against its source: 0 to 100."""
    translator = load(judges.backward, device=judges.device, engine=judges.engine, own_process=True)
    metric = CHRF()
    found: list[float] = []
    while block := list(itertools.islice(pairs, LINES_AT_ONCE)):
        texts = translator.translate([tgt for _, tgt in block], range(len(found) + 1, len(found) + len(block) + 1))
        found += (metric.sentence_score(text, [src]).score for text, (src, _) in zip(texts, block, strict=True))
    return np.array(found)


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
    place = np.flatnonzero(verdicts == 0)
    ranks = np.zeros(len(place), dtype=np.int64)
    for name, found in scores.items():
        costs = found[place] if name == "cross_entropy" else -found[place]
        ranks += np.searchsorted(np.sort(costs), costs)  # the number of better pairs
    best_first = np.argsort(ranks, kind="stable")  # of equal ones the first
    verdicts[place[best_first[round(limits.keep * len(place)) :]]] = _KEEP

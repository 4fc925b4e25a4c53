"""Metrics on plain text: sacreBLEU's with their signatures, COMET by its own command, and sacreBLEU's public test sets.

COMET runs as the user's `comet-score` (`pip install unbabel-comet`, in an environment of its own): its package pins old
versions of numpy and others, which cannot be installed beside ours.
"""

import contextlib
import dataclasses
import difflib
import io
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sacrebleu.metrics.base import Metric as SacreMetric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.utils import SACREBLEU_DIR

from nmt.config.languages import base_language, is_without_spaces, joins_sentences, script_of
from nmt.config.training import BleuTokenizer, EvaluationConfig, Metric
from nmt.errors import ConfigError, DataError, MissingExtraError, TrainingError, how_to_install

_LANGUAGE_TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
_DOWNLOADED_TOKENIZERS = ("spm", "flores101", "flores200", "spBLEU-1K")
_COMET_COMMAND = "comet-score"
_COMET_SCORE = re.compile(r"score:\s*(-?\d+(?:\.\d+)?)")


@dataclasses.dataclass(frozen=True)
class Score:
    """Score of a set of translations in a metric."""

    name: str
    """sacreBLEU's name: BLEU, chrF2, chrF2++, TER."""
    value: float
    """0 to 100; TER, where lower is better, may exceed 100."""
    signature: str
    """Only scores with the same signature are comparable."""


def make_metrics(
    names: Sequence[Metric], tgt_lang: str, tokenizer: BleuTokenizer = "auto", lowercase: bool = False
) -> dict[Metric, SacreMetric]:
    """Make sacreBLEU's metrics for a target language, which determines the tokenization.

    With `lowercase`, BLEU and chrF ignore case; TER always does, as in sacreBLEU. TER splits languages written with
    Chinese characters or kana into characters, and all others at spaces. Raises `MissingExtraError` if the language's
    package is not installed, `ConfigError` if a tokenizer's model cannot be downloaded.
    """
    return {name: _make_metric(name, tgt_lang, tokenizer, lowercase) for name in names}


def metric_names(settings: EvaluationConfig, tgt_lang: str) -> tuple[Metric, ...]:
    """The configured metrics, or the language's default ones."""
    has_words = not is_without_spaces(tgt_lang) or joins_sentences(tgt_lang)
    return settings.metrics or (("bleu", "chrf", "ter") if has_words else ("bleu", "chrf"))


def configured_metrics(settings: EvaluationConfig, tgt_lang: str, lowercase: bool = False) -> dict[Metric, SacreMetric]:
    """Make the metrics of a configuration, as `make_metrics` does."""
    return make_metrics(metric_names(settings, tgt_lang), tgt_lang, settings.bleu_tokenizer, lowercase)


def bleu_tokenizer(tgt_lang: str, tokenizer: BleuTokenizer = "auto") -> str:
    """sacreBLEU's name of the tokenizer for BLEU in a language.

    >>> [bleu_tokenizer(language) for language in ("de", "zh-Hant", "jpn", "th", "yue", "zh-Latn")]
    ['13a', 'zh', 'ja-mecab', 'char', 'char', '13a']
    """
    if tokenizer != "auto":
        return tokenizer
    if script_of(tgt_lang) != "Latn" and (own := _LANGUAGE_TOKENIZERS.get(base_language(tgt_lang))):
        return own
    return "char" if is_without_spaces(tgt_lang) else "13a"


def _make_metric(name: Metric, tgt_lang: str, tokenizer: BleuTokenizer, lowercase: bool) -> SacreMetric:
    if name == "chrf":
        return CHRF(lowercase=lowercase)
    if name == "chrf++":
        return CHRF(word_order=2, lowercase=lowercase)
    if name == "ter":
        by_character = joins_sentences(tgt_lang)
        return TER(normalized=by_character, asian_support=by_character)
    chosen = bleu_tokenizer(tgt_lang, tokenizer)
    try:
        return BLEU(tokenize=chosen, lowercase=lowercase)
    except (RuntimeError, ImportError, OSError) as error:
        if chosen in _DOWNLOADED_TOKENIZERS:
            raise ConfigError(
                f"BLEU's tokenizer {chosen} needs a model that sacreBLEU downloads once into "
                f"{Path(SACREBLEU_DIR, 'models')}; the download failed ({error}); try again with a connection, copy "
                f"the file from another machine, or use `char`"
            ) from None
        extra = chosen.split("-")[0]
        raise MissingExtraError(
            f"BLEU for {tgt_lang!r} needs a package that is not installed: {how_to_install(extra)}"
        ) from None


def score(
    metrics: dict[Metric, SacreMetric], hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> dict[Metric, Score]:
    """Corpus scores of the hypotheses against one or several lists of references, each of the same length."""
    scores = {}
    for name, metric in metrics.items():
        result = metric.corpus_score(hypotheses, references)
        scores[name] = Score(result.name, result.score, str(metric.get_signature()))
    return scores


def check_comet() -> None:
    """Raise `MissingExtraError` if there is no `comet-score` on the path."""
    if shutil.which(_COMET_COMMAND) is None:
        raise MissingExtraError(
            f"--comet: there is no {_COMET_COMMAND} on the path; install unbabel-comet in an environment of its own, "
            f"and put its {_COMET_COMMAND} on the path"
        )


def comet_score(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], model: str | None = None
) -> float:
    """The system score that `comet-score` prints, with its default model or another; `TrainingError` if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("src", "hyp", "ref")]
        for file, lines in zip(files, (sources, hypotheses, references), strict=True):
            file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
        src, hyp, ref = map(str, files)
        program = shutil.which(_COMET_COMMAND) or _COMET_COMMAND
        command = [program, "-s", src, "-t", hyp, "-r", ref, "--quiet", "--only_system"]
        done = subprocess.run(
            [*command, *(["--model", model] if model else [])], capture_output=True, text=True, errors="replace"
        )
    scores = _COMET_SCORE.findall(done.stdout)
    if done.returncode or not scores:
        last = ([line for line in (done.stderr or done.stdout).splitlines() if line.strip()] or ["no output"])[-1]
        raise TrainingError(f"--comet: {_COMET_COMMAND} failed with exit code {done.returncode}: {last.strip()}")
    return float(scores[-1])


def public_test_set(name: str, language_pair: str) -> tuple[Path, Sequence[Path]]:
    """The files of sacreBLEU's test set, such as `wmt14/full` for `en-de`: sources, and one or several references.

    sacreBLEU downloads it once into its folder (SACREBLEU, or ~/.sacrebleu). Raises `ConfigError` if sacreBLEU does not
    know it, `DataError` if it cannot be downloaded.
    """
    from sacrebleu.dataset import DATASETS  # a large table
    from sacrebleu.utils import get_reference_files, get_source_file

    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; `sacrebleu --list` names all"
        raise ConfigError(f"--test-set {name}: sacreBLEU knows no such test set{hint}")
    dataset = DATASETS[name]
    if language_pair not in dataset.langpairs:
        known = ", ".join(sorted(dataset.langpairs))
        raise ConfigError(f"--language-pair {language_pair}: {name} has {known}")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            src, references = get_source_file(name, language_pair), get_reference_files(name, language_pair)
    except (OSError, EOFError, SystemExit) as error:  # sacreBLEU exits if a download is damaged
        reason = "the download is damaged" if isinstance(error, SystemExit) else error
        raise DataError(
            f"--test-set {name}: is not in {dataset._outdir} and cannot be downloaded ({reason}); try again with a "
            f"connection, or copy that folder from another machine"
        ) from None
    return Path(src), [Path(path) for path in references]

"""Scores of translations by sacreBLEU, on plain text, with its signatures."""

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

from nmt.config.languages import base_language, is_without_spaces, script_of
from nmt.config.training import BleuTokenizer, EvaluationConfig, Metric
from nmt.errors import ConfigError, DataError, MissingExtraError, TrainingError, how_to_install

_OWN_TOKENIZER = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
_DOWNLOADED = ("spm", "flores101", "flores200", "spBLEU-1K")
_HAN_OR_KANA = ("Hani", "Hans", "Hant", "Jpan")


@dataclasses.dataclass(frozen=True)
class Score:
    """One metric of one set of translations."""

    name: str
    """sacreBLEU's name: BLEU, chrF2, chrF2++, TER."""
    value: float
    """0 to 100; TER, where less is better, may exceed 100."""
    signature: str
    """Two scores are comparable only if their signatures are equal."""


def make_metrics(
    names: Sequence[Metric], tgt_lang: str, tokenizer: BleuTokenizer = "auto", lowercase: bool = False
) -> dict[Metric, SacreMetric]:
    """sacreBLEU's metrics for a target language, which determines the tokenization.

    With `lowercase`, BLEU and chrF ignore case; TER always does, as sacreBLEU's. TER splits languages written with
    Chinese characters or kana into characters, and all others at spaces. Raises `MissingExtraError` if the language's
    package is not installed, `ConfigError` if a tokenizer's model cannot be downloaded.
    """
    return {name: _make(name, tgt_lang, tokenizer, lowercase) for name in names}


def metric_names(settings: EvaluationConfig, tgt_lang: str) -> tuple[Metric, ...]:
    """The configured metrics, or those of a language by default."""
    has_words = not is_without_spaces(tgt_lang) or script_of(tgt_lang) in _HAN_OR_KANA
    return settings.metrics or (("bleu", "chrf", "ter") if has_words else ("bleu", "chrf"))


def configured_metrics(settings: EvaluationConfig, tgt_lang: str, lowercase: bool = False) -> dict[Metric, SacreMetric]:
    """`make_metrics` of a configuration."""
    return make_metrics(metric_names(settings, tgt_lang), tgt_lang, settings.bleu_tokenizer, lowercase)


def bleu_tokenizer(tgt_lang: str, tokenizer: BleuTokenizer = "auto") -> str:
    """sacreBLEU's name for the tokenizer that BLEU uses for a language.

    >>> [bleu_tokenizer(language) for language in ("de", "zh-Hant", "jpn", "th", "yue", "zh-Latn")]
    ['13a', 'zh', 'ja-mecab', 'char', 'char', '13a']
    """
    if tokenizer != "auto":
        return tokenizer
    if script_of(tgt_lang) != "Latn" and (own := _OWN_TOKENIZER.get(base_language(tgt_lang))):
        return own
    return "char" if is_without_spaces(tgt_lang) else "13a"


def _make(name: Metric, tgt_lang: str, tokenizer: BleuTokenizer, lowercase: bool) -> SacreMetric:
    if name == "chrf":
        return CHRF(lowercase=lowercase)
    if name == "chrf++":
        return CHRF(word_order=2, lowercase=lowercase)
    if name == "ter":
        by_character = script_of(tgt_lang) in _HAN_OR_KANA
        return TER(normalized=by_character, asian_support=by_character)
    chosen = bleu_tokenizer(tgt_lang, tokenizer)
    try:
        return BLEU(tokenize=chosen, lowercase=lowercase)
    except (RuntimeError, ImportError, OSError) as error:
        if chosen in _DOWNLOADED:
            raise ConfigError(
                f"BLEU's tokenizer {chosen} needs a model that sacreBLEU downloads once into "
                f"{Path(SACREBLEU_DIR, 'models')}, which failed ({error}); try again with a connection, copy the file "
                f"from another machine, or use `char`"
            ) from None
        extra = chosen.split("-")[0]
        raise MissingExtraError(
            f"BLEU for {tgt_lang!r} needs a package that is not installed: {how_to_install(extra)}"
        ) from None


def score(
    metrics: dict[Metric, SacreMetric], hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> dict[Metric, Score]:
    """Corpus scores of `hypotheses` against one or several lists of references, each of the same length."""
    scores = {}
    for name, metric in metrics.items():
        result = metric.corpus_score(hypotheses, references)
        scores[name] = Score(result.name, result.score, str(metric.get_signature()))
    return scores


# ---- COMET by the user's own `comet-score` (`pip install unbabel-comet`, in an environment of its own).
#
# Its package pins old versions of numpy and others that cannot be installed beside ours.


COMMAND = "comet-score"
_SCORE = re.compile(r"score:\s*(-?\d+(?:\.\d+)?)")


def check_comet() -> None:
    """`MissingExtraError` if there is no `comet-score` on the path."""
    if shutil.which(COMMAND) is None:
        raise MissingExtraError(
            f"--comet: there is no {COMMAND} on the path; install unbabel-comet in an environment of its own, and put "
            f"its {COMMAND} on the path"
        )


def comet_score(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[Sequence[str]], model: str | None = None
) -> float:
    """The system score that `comet-score` prints, with its default model or another.

    Raises `ConfigError` for several references, of which COMET reads one, `TrainingError` if the command fails.
    """
    if len(references) != 1:
        raise ConfigError(f"--comet: COMET reads one reference, and there are {len(references)}; give one --ref")
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("src", "hyp", "ref")]
        for file, lines in zip(files, (sources, hypotheses, references[0]), strict=True):
            file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
        src, hyp, ref = map(str, files)
        command = [shutil.which(COMMAND) or COMMAND, "-s", src, "-t", hyp, "-r", ref, "--quiet", "--only_system"]
        done = subprocess.run(
            [*command, *(["--model", model] if model else [])], capture_output=True, text=True, errors="replace"
        )
    found = _SCORE.findall(done.stdout)
    if done.returncode or not found:
        last = ([line for line in (done.stderr or done.stdout).splitlines() if line.strip()] or ["no output"])[-1]
        raise TrainingError(f"--comet: {COMMAND} failed with exit code {done.returncode}: {last.strip()}")
    return float(found[-1])


# ---- Public test sets by sacreBLEU's names, which downloads each once into its folder (SACREBLEU, or ~/.sacrebleu).


def public_test_set(name: str, language_pair: str) -> tuple[Path, Sequence[Path]]:
    """The files of a test set, `wmt14/full` and `en-de`: sources, and one or several references.

    Raises `ConfigError` if sacreBLEU does not know it, `DataError` if it is not there and cannot be downloaded.
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
    # sacreBLEU exits where a download is damaged.
    except (OSError, EOFError, SystemExit) as error:
        why = "the download is damaged" if isinstance(error, SystemExit) else error
        folder = Path(dataset._outdir)
        raise DataError(
            f"--test-set {name}: is not in {folder} and cannot be downloaded ({why}); try again with a connection, or "
            f"copy that folder from another machine"
        ) from None
    return Path(src), [Path(path) for path in references]

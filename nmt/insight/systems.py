"""Systems of a comparison: runs, and files of translations by any program."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nmt.config.source import TEXT
from nmt.config.training import EvaluationConfig
from nmt.config.values import differences
from nmt.corpora.lines import read_lines
from nmt.corpora.pairs import Side, sides_of
from nmt.corpora.vectors import source_names
from nmt.errors import ConfigError, DataError
from nmt.evaluation.buckets import SourceLengths
from nmt.evaluation.evaluate import choose_test_sets, evaluate_runs, named_text, read_test_set, reference_language
from nmt.evaluation.metrics import configured_metrics
from nmt.evaluation.stored import stored_hypotheses
from nmt.runs.folder import RUNS, RunFolder, open_run
from nmt.runs.history import History, read_history
from nmt.system.console import log


class ComparedFiles(NamedTuple):
    """Files and engine given on the command line; without files, those of the runs' configurations."""

    references: Sequence[Path] = ()
    src: Path | None = None
    """The source file; without `references`, a file with both sides."""
    train: Sequence[Path] = ()
    """The target side of the training text."""
    device: str = "auto"
    """The device of runs that still have to translate."""
    engine: str = "auto"


class Output(NamedTuple):
    """Translations of a test set by one run, or from one file."""

    name: str
    hypotheses: list[str]


class System(NamedTuple):
    """One output, or the outputs of runs that differ in their seeds only."""

    name: str
    outputs: tuple[Output, ...]


class Sources(NamedTuple):
    """The sources of a test set, without their vectors or images."""

    names: list[str]
    """Lines of text, or the names of vectors and images."""
    lengths: SourceLengths


class TranslatedSet(NamedTuple):
    """A test set with the outputs of all systems; the first system is the baseline."""

    name: str
    src: Sources | None
    """None if unknown."""
    references: list[list[str]]
    systems: tuple[System, ...]


@dataclasses.dataclass(frozen=True)
class Trainings:
    """Records of the runs that were trained here; of several seeds, the first's."""

    names: tuple[str, ...]
    settings: Mapping[str, Sequence[str]]
    """The value of each run, for each key that differs."""
    histories: tuple[History, ...]
    """Of each run."""

    @classmethod
    def of(cls, runs: Sequence[RunFolder], names: Sequence[str]) -> "Trainings":
        """The records of runs, by their names in a comparison."""
        settings: dict[str, list[str]] = {}
        for number, run in enumerate(runs):
            for key, *values in differences(runs[0].config(), run.config()):
                if key != "data.train.weight":  # data.train tells it, too
                    first, own = values
                    settings.setdefault(key, [first] * len(runs))[number] = own
        return cls(tuple(names), settings, tuple(map(read_history, runs)))


class Material(NamedTuple):
    """Input of a comparison."""

    test_sets: tuple[TranslatedSet, ...]
    tgt_lang: str
    settings: EvaluationConfig
    """The settings of the first run."""
    train: tuple[Side, ...]
    """The target side of the training text; empty if not available."""
    trainings: Trainings
    lowercase: bool = False
    """True if BLEU and chrF ignore case."""


def read_material(
    runs: Sequence[str], hypotheses: Sequence[str], files: ComparedFiles, tgt_lang: str | None
) -> Material:
    """Collect the outputs of runs and files; runs translate now what they have not with their current weights.

    Each text names one run or file, or several seeds of one system, separated by commas. Raises `ConfigError` if
    there are fewer than two systems or they have different languages, `DataError` if a file's lines are not those of
    the test set.
    """
    if len(runs) + len(hypotheses) < 2:
        raise ConfigError("name two systems or more: nmt compare RUN RUN, or --hyp FILE --hyp FILE --ref FILE")
    if hypotheses and not (files.references or files.src):
        raise ConfigError("--hyp FILE needs the references: add --ref FILE")
    opened = [[open_run(part) for part in _parts(text, Path(text).is_dir() or (RUNS / text).is_dir())] for text in runs]
    paths = [[Path(part) for part in _parts(text, Path(text).exists())] for text in hypotheses]
    of_runs = list(itertools.chain(*opened))
    if of_runs:
        languages, named = _languages(of_runs), choose_test_sets(of_runs[0], files.src, files.references)
    else:
        text = named_text(files.src, files.references, ("", tgt_lang or ""))
        languages, first = text.languages, text.references[0]
        named = {first.path.name: (text.src or first, text.references)}
    language = reference_language(tgt_lang, languages[1])
    settings = of_runs[0].evaluation_config() if of_runs else EvaluationConfig()
    _check_seeds(opened)
    train = _training_text(of_runs, files)
    test_sets = tuple(_translated_sets(opened, paths, named, languages[0], files))
    names = [system.name for system in test_sets[0].systems]
    trained = [(group[0], name) for group, name in zip(opened, names, strict=False) if group[0].has_training_config()]
    trainings = Trainings.of([run for run, _ in trained], [name for _, name in trained])
    return Material(test_sets, language, settings, train, trainings)


def _parts(text: str, is_a_name: bool) -> list[str]:
    """Split at commas, unless the whole text is a name."""
    return [text] if is_a_name else text.split(",")


def _languages(runs: Sequence[RunFolder]) -> tuple[str, str]:
    """Source and target language of all runs."""
    first, config = runs[0].path, runs[0].inference_config()
    text, kind = config.data, config.source.type
    for run in runs[1:]:
        other = run.inference_config()
        if other.source.type != kind:
            raise ConfigError(
                f"{first} reads {kind}, {run.path} reads {other.source.type}; only models of the same sources can be "
                f"compared"
            )
        if (other.data.src_lang, other.data.tgt_lang) != (text.src_lang, text.tgt_lang):
            raise ConfigError(
                f"{first} translates from {text.src_lang} to {text.tgt_lang}, {run.path} from {other.data.src_lang} to "
                f"{other.data.tgt_lang}; only translations of the same test set can be compared"
            )
    return text.src_lang, text.tgt_lang


def _check_seeds(groups: Sequence[Sequence[RunFolder]]) -> None:
    """Warn if runs that are joined differ in more than the seed."""
    for first, *others in groups:
        for run in others:
            if first.has_training_config() and run.has_training_config():
                keys = {key for key, _, _ in differences(first.config(), run.config())} - {"training.seed"}
                if keys:
                    names = first.name, run.name, ", ".join(sorted(keys))
                    log.warning("%s and %s are joined as seeds of one system, but differ in %s", *names)


def _training_text(runs: Sequence[RunFolder], files: ComparedFiles) -> tuple[Side, ...]:
    """The target side of the first run's training text, unless other files are named."""
    for path in files.train:
        if not path.is_file():
            raise DataError(f"{path}: no such file")
    if files.train or not (runs and runs[0].has_training_config()):
        return tuple(map(Side, files.train))
    sides = tuple(sides_of(corpus)[1] for corpus in runs[0].config().data.train)
    if missing := [side for side in sides if not side.path.is_file()]:
        log.warning("%s: no such file, so words are not compared by frequency; name the text: --train FILE", missing[0])
        return ()
    return sides


def _translated_sets(
    groups: Sequence[Sequence[RunFolder]],
    paths: Sequence[Sequence[Path]],
    named: Mapping[str, tuple[Side, Sequence[Side]]],
    src_lang: str,
    files: ComparedFiles,
) -> Iterator[TranslatedSet]:
    """The test sets by name, with the outputs of all systems."""
    runs = list(itertools.chain(*groups))
    source = runs[0].inference_config().source if runs else TEXT
    read = {name: read_test_set(src, references, source) for name, (src, references) in named.items()}
    written = {
        path: _read_hypotheses(path, references[0], len(read[name].src))
        for path in itertools.chain(*paths)
        for name, (_, references) in named.items()  # a single one, because files of translations need named references
    }
    translated = {run.path: _run_hypotheses(run, named, files) for run in runs}
    last = {path: path.resolve().name for path in (*translated, *written)}
    alike = Counter(last.values())
    names = {path: str(path) if alike[name] > 1 else name for path, name in last.items()}
    for name, test_set in read.items():
        of_runs = [[Output(names[run.path], translated[run.path][name]) for run in group] for group in groups]
        of_files = [[Output(names[path], written[path]) for path in group] for group in paths]
        systems = tuple(
            System(first.name + (f" ({1 + len(others)} seeds)" if others else ""), (first, *others))
            for first, *others in (*of_runs, *of_files)
        )
        sources = None
        if runs or files.src:
            src = test_set.src_lines() if source.type == "text" else source_names(named[name][0].path, source)
            sources = Sources(src, SourceLengths.of(test_set.src, source, src_lang))
        yield TranslatedSet(name, sources, test_set.references, systems)


def _run_hypotheses(
    run: RunFolder, named: Mapping[str, tuple[Side, Sequence[Side]]], files: ComparedFiles
) -> dict[str, list[str]]:
    """The run's translations of the test sets: from evaluation/ if up to date, else translated now."""
    found = {name: lines for name, (src, _) in named.items() if (lines := stored_hypotheses(run, src, files.engine))}
    if missing := {name: sides for name, sides in named.items() if name not in found}:
        log.info("%s: translating %s", run.path, ", ".join(missing))
        config = run.inference_config()
        metrics = configured_metrics(run.evaluation_config(), config.data.tgt_lang)
        for name, evaluation in evaluate_runs([run], missing, metrics, config.decoding, files.device, files.engine):
            found[name] = evaluation.hypotheses
    return found


def _read_hypotheses(path: Path, reference: Side, count: int) -> list[str]:
    lines = list(read_lines(path))
    if len(lines) != count:
        raise DataError(f"{path} has {len(lines):,} lines, {reference} has {count:,}; every line needs its reference")
    return lines

"""Options that several commands share, their completion in a shell, and the configuration that they name.

A shell calls `nmt` for completion at each press of the key, so completion imports nothing heavy and never fails.
"""

import dataclasses
import functools
import inspect
import json
import shlex
import webbrowser
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer
from pydantic import ValidationError
from typer import Argument, Option
from typer.core import TyperCommand

from nmt.config.inference import DecodingConfig
from nmt.config.section import MAX_BEAMS
from nmt.config.training import BleuTokenizer, Config, EvaluationConfig, Metric
from nmt.errors import ConfigError, DataError
from nmt.runs.base import load_run_config
from nmt.runs.folder import RunFolder, run_named, run_names
from nmt.system.console import log, show

if TYPE_CHECKING:
    from rich.text import Text
    from sacrebleu.metrics.base import Metric as SacreMetric

    from nmt.decoding.hypothesis import Sampling


PANELS = {
    "Input": "src ref train test_set language_pair input prefix prefixes split_sentences tgt_tag shard",
    "Search": "beam_size length_penalty min_length max_length max_length_ratio forbid sample mbr temperature top_k "
    "top_p seed",
    "Scoring": "tgt_lang bleu_tokenizer metric lowercase test samples",
    "Speed": "devices precision device engine",
    "Output": "output is_opened resume alignments as_json n_best align tokens confidence comet comet_model",
}
"""The panels of a long help, in order, with the parameters in them."""
_MIN_GROUPED = 15
"""Minimum number of parameters of a help with panels."""


def complete_run(incomplete: str) -> list[str]:
    """The runs under runs/ whose names start with this text."""
    return [name for name in run_names() if name.startswith(incomplete)]


def complete_key(incomplete: str) -> list[str]:
    """The sections that start with this text; once a section is typed, its keys."""
    from nmt.config.reference import places, sections

    paths = [section.name for section in sections()]
    if any(incomplete.startswith(f"{path}.") for path in paths):
        paths = list(dict.fromkeys(place.path for place in places()))
    return [path for path in paths if path.startswith(incomplete)]


def complete_setting(incomplete: str) -> list[str]:
    """The sections that start with this text, then `SECTION.KEY=`; for a whole key, `SECTION.KEY=VALUE` for each value.

    A shell adds a space to a single answer, so if only one section is left, its keys are the answer.
    """
    from nmt.config.reference import places, sections

    matching = [f"{section.name}." for section in sections() if section.name.startswith(incomplete)]
    if len(matching) > 1:
        return matching
    start = matching[0] if matching else incomplete
    keys = {place.path: place.key for place in places() if not place.key.inner and ".NAME." not in place.path}
    paths = [path for path in keys if path.startswith(start)]
    if len(paths) == 1 or start in paths:
        path = start if start in paths else paths[0]
        return [f"{path}={value}" for value in keys[path].allowed or [keys[path].default or ""]]
    return [f"{path}=" for path in paths]


run_argument = functools.partial(Argument, metavar="RUN", autocompletion=complete_run)
run_option = functools.partial(Option, metavar="RUN", autocompletion=complete_run)
set_option = functools.partial(Option, metavar="SECTION.KEY=VALUE", autocompletion=complete_setting)

ConfigArgument = Annotated[Path | None, Argument(metavar="FILE", help="Configuration. Default: the only one here.")]
SetOption = Annotated[list[str] | None, set_option("--set", help="Replace the value of a key; may be repeated.")]
NameOption = Annotated[str | None, Option(help="Name of the run. Default: that of the file.")]
FreshOption = Annotated[bool, Option("--fresh", help="Start over; an existing run is set aside.")]
CorporaArgument = Annotated[
    list[Path] | None,
    Argument(metavar="CORPUS", help="Files of pairs (.tsv .csv .jsonl .tmx .zip), two texts, or folders of them."),
]
SrcLangOption = Annotated[str | None, Option(metavar="CODE", help="Source language. Default: from the files.")]
TgtLangOption = Annotated[str | None, Option(metavar="CODE", help="Target language. Default: from the files.")]
ModelsOption = Annotated[list[str] | None, run_option("--model", help="A run; may be repeated. Default: the newest.")]
RunOption = Annotated[str | None, run_option("--model", help="A run, by name or folder. Default: the newest.")]
PrecisionOption = Annotated[
    Literal["fp32", "bf16", "fp16"] | None, Option(help="Precision in PyTorch. Default: the run's.")
]
DeviceOption = Annotated[str | None, Option(help="Device: auto, cpu, cuda, cuda:N or mps. Default: auto.")]
EngineOption = Annotated[str | None, Option(help="Engine: auto, torch or ctranslate2. Default: auto.")]
TestOption = Annotated[
    Path | None,
    Option("--src", metavar="FILE", help="Sources; without --ref, a file of pairs. Default: the run's test sets."),
]
ReferencesOption = Annotated[list[Path] | None, Option("--ref", metavar="FILE", help="References; may be repeated.")]
PageOption = Annotated[Path | None, Option(metavar="FILE.html", help="Also write an HTML page.")]
OpenOption = Annotated[bool, Option("--open", help="Open the written file in a browser.")]
JsonOption = Annotated[bool, Option("--json", help="Print JSON.")]


_BLEU_TOKENIZER_HELP = f"BLEU tokenizer: {', '.join(get_args(BleuTokenizer))}. Default: the run's, or by language."


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoringOptions:
    """The options of scoring; None or empty means the value of the run's configuration, or the default."""

    tgt_lang: Annotated[str | None, Option(help="Language of the references, if it is not known.")] = None
    bleu_tokenizer: Annotated[BleuTokenizer | None, Option(metavar="NAME", help=_BLEU_TOKENIZER_HELP)] = None
    metric: Annotated[list[str] | None, Option(help="Metric: bleu, chrf, chrf++ or ter; may be repeated.")] = None
    lowercase: Annotated[bool, Option("--lowercase", help="Ignore case in BLEU and chrF.")] = False

    def __post_init__(self) -> None:
        if unknown := [name for name in self.metric or () if name not in get_args(Metric)]:
            raise ConfigError(f"--metric {unknown[0]}: should be one of {', '.join(get_args(Metric))}")

    def settings(self, configured: EvaluationConfig) -> EvaluationConfig:
        """The configured settings, except those that the command line replaces."""
        given = {"metrics": self.metric and tuple(self.metric), "bleu_tokenizer": self.bleu_tokenizer}
        return configured.model_copy(update={name: value for name, value in given.items() if value})

    def metrics(self, configured: EvaluationConfig, known_language: str) -> "dict[Metric, SacreMetric]":
        """The metrics for references in `known_language`, '' if it is not known."""
        from nmt.evaluation.evaluate import reference_language
        from nmt.evaluation.metrics import configured_metrics

        settings = self.settings(configured)
        return configured_metrics(settings, reference_language(self.tgt_lang, known_language), self.lowercase)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """The options of a search; None or False means not given."""

    beam_size: Annotated[int | None, Option(help="Beam size; 1 is greedy search. Default: the run's.")] = None
    length_penalty: Annotated[float | None, Option(help="Length penalty. Default: the run's.")] = None
    min_length: Annotated[int | None, Option(help="Minimum length in pieces. Default: the run's.")] = None
    max_length: Annotated[int | None, Option(help="Maximum length in pieces. Default: the run's.")] = None
    max_length_ratio: Annotated[float | None, Option(help="Maximum length relative to the source.")] = None
    forbid: Annotated[list[str] | None, Option(metavar="WORD", help="Word to forbid; may be repeated.")] = None
    sample: Annotated[bool, Option("--sample", help="Sample translations instead of searching (PyTorch only).")] = False
    mbr: Annotated[int | None, Option(min=2, max=MAX_BEAMS, help="Minimum Bayes risk: sample N, rank by chrF.")] = None
    temperature: Annotated[float | None, Option(help="Sampling temperature; lower is less random. Default: 1.")] = None
    top_k: Annotated[int | None, Option(min=1, help="Sample among the K likeliest pieces.")] = None
    top_p: Annotated[float | None, Option(help="Sample among the likeliest, up to this total probability.")] = None
    seed: Annotated[int | None, Option(help="Sampling seed; each line is sampled on its own. Default: 1.")] = None
    precision: PrecisionOption = None
    device: DeviceOption = None
    engine: EngineOption = None

    def given(self) -> dict[str, Any]:
        """The options that were given, with their values."""
        return {name: value for name, value in vars(self).items() if not (value is None or value is False)}

    def settings(self, decoding: DecodingConfig) -> DecodingConfig:
        """The run's search settings, with the given options in their place, and forbidden words added.

        Raises `ConfigError` if a value is invalid.
        """
        given = {name: value for name, value in self.given().items() if name in DecodingConfig.model_fields}
        words = [*decoding.forbidden_words, *(self.forbid or ())]
        try:
            return DecodingConfig.model_validate({**decoding.model_dump(), **given, "forbidden_words": words})
        except ValidationError as error:
            (first, *_) = error.errors()
            key = ".".join(["decoding", *(str(part) for part in first["loc"][:1])])
            what = first["msg"].removeprefix("Value error, ")
            raise ConfigError(what if what.startswith("decoding.") else f"{key}: {what} ({first['input']!r})") from None

    def engine_to_load(self) -> str:
        """The engine: PyTorch for sampling, which is logged unless it was given; else as given."""
        if not (self.sample or self.mbr):
            return self.engine or "auto"
        if self.engine is None:
            log.info("samples are drawn with PyTorch")
        return "torch"

    def sampling(self, count: int = 1) -> "Sampling | None":
        """The sampling of `count` translations, or of those for --mbr; None for a search.

        Raises `ConfigError` if options contradict each other.
        """
        from nmt.decoding.hypothesis import Sampling

        if self.sample and self.mbr:
            raise ConfigError("--mbr draws samples itself; leave out --sample")
        names = ("temperature", "top_k", "top_p", "seed")
        given = {name: value for name, value in self.given().items() if name in names}
        if not (self.sample or self.mbr):
            if given:
                raise ConfigError(f"{' and '.join(map(spelled, given))}: only for sampling; add --sample or --mbr N")
            return None
        if self.engine == "ctranslate2":
            raise ConfigError("CTranslate2 cannot seed each sentence; --sample and --mbr need --engine torch")
        if self.beam_size is not None:
            drawing = "--mbr" if self.mbr else "--sample"
            raise ConfigError(f"--beam-size is for a search; {drawing} draws; leave out one")
        return Sampling(**given, count=self.mbr or count, by_risk=self.mbr is not None)


def spelled(name: str) -> str:
    """The option of a field, as it is typed: `--beam-size`."""
    return f"--{name.replace('_', '-')}"


class PanelCommand(TyperCommand):
    """A command that groups many options into panels of its help, such as `Search`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the options without a panel, and those of each panel."""
        parameters: Any = self.get_params(ctx)
        named = PANELS if len(parameters) >= _MIN_GROUPED else {}
        panels: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", "Options", *named)}
        for one in parameters:
            panel = next((name for name, names in named.items() if one.name in names.split()), "Options")
            panels["Arguments" if one.param_type_name == "argument" else panel].append(one.get_help_record(ctx))
        write_panels(formatter, {name: records for name, records in panels.items() if records})


def write_panels(formatter: Any, panels: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Write lists of names and texts, each below a head, which is bold on a terminal."""
    for name, records in panels.items():
        with formatter.section(typer.style(name, bold=True)):
            formatter.write_dl(records)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command that has dataclasses of options as parameters: their fields become its options."""
    own = inspect.signature(command).parameters
    groups: dict[str, Any] = {
        name: parameter.annotation for name, parameter in own.items() if dataclasses.is_dataclass(parameter.annotation)
    }
    fields = {name: inspect.signature(group).parameters for name, group in groups.items()}

    @functools.wraps(command)
    def run(**given: Any) -> None:
        built = {name: group(**{field: given.pop(field) for field in fields[name]}) for name, group in groups.items()}
        command(**given, **built)

    flat = [option for name, parameter in own.items() for option in fields.get(name, {name: parameter}).values()]
    vars(run)["__signature__"] = inspect.Signature(flat)  # from which typer reads the options
    return run


def configured_run(
    command: str,
    file: Path | None,
    overrides: list[str] | None,
    name: str | None,
    init_from: str | None = None,
    is_fresh: bool = False,
) -> tuple[Config, RunFolder]:
    """The configuration that the command line names, or the only one in this folder, and the folder of its run.

    `init_from` replaces `training.init_from`; with `is_fresh`, an existing run is ignored. Raises `ConfigError` if no
    file is named and there are none or several; the message shows `command`.
    """
    path = file or _only_config(command)
    run = run_named(path.stem if name is None else name)
    quoted = [] if init_from is None else [f"training.init_from={json.dumps(init_from)}"]
    return load_run_config(path, [*(overrides or ()), *quoted], run, is_fresh), run


def _only_config(command: str) -> Path:
    """The only *.yaml or *.yml of the current folder; hidden files belong to other programs."""
    named = (path for end in ("yaml", "yml") for path in Path().glob(f"[!.]*.{end}"))
    files = sorted(path for path in named if path.is_file())
    if len(files) == 1:
        return files[0]
    if not files:
        raise ConfigError(
            f"there is no configuration (*.yaml) in this folder; name one: nmt {command} FILE\n"
            f"nmt config > FILE.yaml writes one with every key explained"
        )
    commands = "\n".join(f"  nmt {command} {shlex.quote(str(path))}" for path in files)
    raise ConfigError(f"there are {len(files)} configurations in this folder; name one:\n{commands}")


def utf8(text: str) -> str:
    """The text unchanged; `DataError` if the shell passed bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError("the text is not UTF-8; convert it") from None
    return text


def check_output(output: Path | None, *suffixes: str, is_opened: bool = False) -> None:
    """Raise `ConfigError` if `output` is not a writable name that ends in one of the suffixes, or opens without one."""
    if output is None:
        if is_opened:
            raise ConfigError("--open opens the file of --output: add --output FILE")
    elif output.suffix.lower() not in suffixes:
        raise ConfigError(f"--output {output}: its name should end in {' or '.join(suffixes)}")
    elif output.is_dir() or not output.parent.is_dir():
        raise ConfigError(f"--output {output}: is not a file in an existing folder")


def show_result(as_json: bool, result: object, text: "Iterable[str | Text]", link: Path | str | None = None) -> None:
    """Print a result as JSON, in which dataclasses are objects, or as text for people."""
    if as_json:
        print(json.dumps(result, default=dataclasses.asdict))
    else:
        show(*text, link=link)


def show_written(path: Path, is_opened: bool = False) -> None:
    """Log a written file with a link; `is_opened` also opens it."""
    log.info(f"wrote {path}", extra={"link": path})
    if is_opened:
        open_file(path)


def open_file(path: Path) -> None:
    """Open a file in a browser, with a warning if there is none."""
    if not webbrowser.open(path.absolute().as_uri()):
        log.warning(f"{path}: no browser was found to open it")

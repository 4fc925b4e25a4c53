"""The options of `nmt translate` for the search, and for what is printed of it."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.config.inference import DecodingConfig
from nmt.config.section import MAX_BEAMS
from nmt.errors import ConfigError

if TYPE_CHECKING:  # imported when the command runs
    from nmt.decoding.request import Request

NBestOption = Annotated[
    int | None, typer.Option(min=1, max=MAX_BEAMS, help="With --json: this number of translations of each line.")
]
AlignOption = Annotated[bool, typer.Option("--align", help="With --json: the word alignment of each line.")]
SampleOption = Annotated[bool, typer.Option("--sample", help="Draw translations at random; PyTorch only.")]
MbrOption = Annotated[
    int | None,
    typer.Option(min=2, max=MAX_BEAMS, help="Draw N translations and take the most typical by chrF; PyTorch only."),
]
TemperatureOption = Annotated[
    float | None, typer.Option(help="Of sampling: below 1, probable words become more so. Default: 1.")
]
TopKOption = Annotated[int | None, typer.Option(min=1, help="Draw among the K most probable pieces.")]
TopPOption = Annotated[
    float | None, typer.Option(help="Draw among the most probable pieces that together have this probability.")
]
SeedOption = Annotated[
    int | None, typer.Option(help="Of sampling; a line's draws depend on it and the line. Default: 1.")
]
MinLengthOption = Annotated[int | None, typer.Option(help="Minimum length in pieces. Default: the run's.")]
MaxLengthOption = Annotated[int | None, typer.Option(help="Maximum length in pieces. Default: the run's.")]
RatioOption = Annotated[
    float | None,
    typer.Option("--max-length-ratio", help="Maximum length in source pieces, plus ten. Default: the run's."),
]
MinRatioOption = Annotated[
    float | None, typer.Option("--min-length-ratio", help="Minimum length in source pieces. Default: the run's.")
]
PrefixOption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Each translation begins with this text of the target language.")
]
PrefixesOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The same from a file, a line for each line of the input.")
]
ForbidOption = Annotated[
    list[str] | None, typer.Option(metavar="WORD", help="A word that no translation may contain; may be repeated.")
]
ForbidFileOption = Annotated[Path | None, typer.Option(metavar="FILE", help="The same from a file, a word a line.")]
TagOption = Annotated[
    str | None,
    typer.Option(metavar="TAG", help="The target language of an imported model of several: deu. Default: the run's."),
]
SentencesOption = Annotated[
    bool | None,
    typer.Option(
        help="Translate each sentence by itself and keep the white space. Default: of what is typed, not of files."
    ),
]


@dataclasses.dataclass(frozen=True)
class Sampled:
    """The options of sampling, as given; None: not given."""

    sample: bool
    mbr: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None


def limits(
    decoding: DecodingConfig,
    min_length: int | None,
    max_length: int | None,
    min_length_ratio: float | None,
    max_length_ratio: float | None,
    forbid: Sequence[str] | None,
    forbid_file: Path | None,
) -> DecodingConfig:
    """The search settings with the given lengths, and with forbidden words added; `ConfigError` if they are invalid."""
    from pydantic import ValidationError

    given = {
        "min_length": min_length,
        "max_length": max_length,
        "min_length_ratio": min_length_ratio,
        "max_length_ratio": max_length_ratio,
    }
    given = {key: value for key, value in given.items() if value is not None}
    words = [*decoding.forbidden_words, *(forbid or ())]
    if forbid_file is not None:
        from nmt.data.lines import read_lines

        words += [line for line in read_lines(forbid_file) if line.strip()]
    try:
        return DecodingConfig.model_validate({**decoding.model_dump(), **given, "forbidden_words": words})
    except ValidationError as error:
        (first, *_) = error.errors()
        key = ".".join(["decoding", *(str(part) for part in first["loc"][:1])])
        what = first["msg"].removeprefix("Value error, ")
        raise ConfigError(what if what.startswith("decoding.") else f"{key}: {what} ({first['input']!r})") from None


def request(
    decoding: DecodingConfig, as_json: bool, n_best: int | None, align: bool, beam_size: int | None, options: Sampled
) -> "Request":
    """What the translator is to return; `ConfigError` if options contradict each other."""
    from nmt.decoding.request import Request, Sampling

    if (n_best or align) and not as_json:
        raise ConfigError(
            f"{'--n-best' if n_best else '--align'} needs --json: without it, a line of input gives a line"
        )
    draws = options.mbr or n_best or 1
    settings = {"--temperature": options.temperature, "--top-k": options.top_k, "--top-p": options.top_p,
                "--seed": options.seed}  # fmt: skip
    if options.sample and options.mbr:
        raise ConfigError("--mbr draws samples by itself; leave out --sample")
    if not (options.sample or options.mbr):
        if given := [name for name, value in settings.items() if value is not None]:
            raise ConfigError(f"{' and '.join(given)}: for sampling; add --sample or --mbr N")
        if n_best and n_best > decoding.beam_size:
            raise ConfigError(
                f"--n-best {n_best}: the search keeps {decoding.beam_size} hypotheses; add --beam-size {n_best}"
            )
        return Request(n_best or int(as_json))
    if beam_size is not None:
        raise ConfigError(f"--beam-size is for a search; {'--mbr' if options.mbr else '--sample'} draws; leave out one")
    if n_best and n_best > draws:
        raise ConfigError(f"--n-best {n_best}: --mbr {draws} draws {draws} translations; draw at least {n_best}")
    sampling = Sampling(
        temperature=1.0 if options.temperature is None else options.temperature,
        top_k=options.top_k or 0,
        top_p=1.0 if options.top_p is None else options.top_p,
        seed=1 if options.seed is None else options.seed,
        count=draws,
        by_risk=options.mbr is not None,
    )
    return Request(n_best or int(as_json), sampling)

"""The options of `nmt translate` and `nmt eval` for the search, and for what is printed of it."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.config.inference import DecodingConfig
from nmt.config.section import MAX_BEAMS
from nmt.errors import ConfigError

if TYPE_CHECKING:  # imported when the command runs
    from nmt.decoding.request import Request, Sampling

NBestOption = Annotated[
    int | None, typer.Option(min=1, max=MAX_BEAMS, help="With --json: this number of translations of each line.")
]
AlignOption = Annotated[bool, typer.Option("--align", help="With --json: the word alignment of each line.")]
TokensOption = Annotated[
    bool, typer.Option("--tokens", help="With --json: the log-probability of each piece of each translation.")
]
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
PrefixOption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Each translation begins with this text of the target language.")
]
PrefixesOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The same from a file, a line for each line of the input.")
]
ForbidOption = Annotated[
    list[str] | None, typer.Option(metavar="WORD", help="A word that no translation may contain; may be repeated.")
]
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
class SearchOptions:
    """The options of a search that `nmt translate` and `nmt eval` share, as given; None, False or empty: not given."""

    beam_size: int | None
    length_penalty: float | None
    precision: str | None
    min_length: int | None
    max_length: int | None
    max_length_ratio: float | None
    forbid: Sequence[str] | None
    sample: bool
    mbr: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None

    def given(self) -> list[str]:
        """The names of those that were given."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return [
            f"--{name.replace('_', '-')}"
            for name, value in values.items()
            if not (value is None or value is False or value == [])
        ]

    def settings(self, decoding: DecodingConfig) -> DecodingConfig:
        """The run's search settings, where the command line does not replace them, with forbidden words added.

        Raises `ConfigError` if they are invalid.
        """
        from pydantic import ValidationError

        values = {
            "beam_size": self.beam_size,
            "length_penalty": self.length_penalty,
            "precision": self.precision,
            "min_length": self.min_length,
            "max_length": self.max_length,
            "max_length_ratio": self.max_length_ratio,
        }
        given = {key: value for key, value in values.items() if value is not None}
        words = [*decoding.forbidden_words, *(self.forbid or ())]
        try:
            return DecodingConfig.model_validate({**decoding.model_dump(), **given, "forbidden_words": words})
        except ValidationError as error:
            (first, *_) = error.errors()
            key = ".".join(["decoding", *(str(part) for part in first["loc"][:1])])
            what = first["msg"].removeprefix("Value error, ")
            raise ConfigError(what if what.startswith("decoding.") else f"{key}: {what} ({first['input']!r})") from None

    def sampling(self, count: int = 1) -> "Sampling | None":
        """How `count` translations are drawn, or those of --mbr; None for a search.

        Raises `ConfigError` if options contradict each other.
        """
        from nmt.decoding.request import Sampling

        if self.sample and self.mbr:
            raise ConfigError("--mbr draws samples by itself; leave out --sample")
        if not (self.sample or self.mbr):
            of_sampling = ("--temperature", "--top-k", "--top-p", "--seed")
            if given := [option for option in self.given() if option in of_sampling]:
                raise ConfigError(f"{' and '.join(given)}: for sampling; add --sample or --mbr N")
            return None
        if self.beam_size is not None:
            drawing = "--mbr" if self.mbr else "--sample"
            raise ConfigError(f"--beam-size is for a search; {drawing} draws; leave out one")
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=self.top_k or 0,
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=1 if self.seed is None else self.seed,
            count=self.mbr or count,
            by_risk=self.mbr is not None,
        )

    def request(
        self, decoding: DecodingConfig, as_json: bool, n_best: int | None, align: bool, tokens: bool
    ) -> "Request":
        """What a translator is to return for `nmt translate`; `ConfigError` if options contradict each other."""
        from nmt.decoding.request import Request

        given = [name for name, value in (("--n-best", n_best), ("--align", align), ("--tokens", tokens)) if value]
        if given and not as_json:
            raise ConfigError(f"{given[0]} needs --json: without it, a line of input gives a line")
        sampling = self.sampling(n_best or 1)
        if n_best and sampling is None and n_best > decoding.beam_size:
            raise ConfigError(
                f"--n-best {n_best}: the search keeps {decoding.beam_size} hypotheses; add --beam-size {n_best}"
            )
        if n_best and sampling and n_best > sampling.count:
            drawn = sampling.count
            raise ConfigError(f"--n-best {n_best}: --mbr {drawn} draws {drawn} translations; draw at least {n_best}")
        return Request((n_best or 1) if tokens else 0, sampling)

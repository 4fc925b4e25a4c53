"""How much a fine-tuned model may forget: section `guard`."""

from typing import Annotated, Literal

from pydantic import Field

from nmt.config.corpus import CorpusFiles
from nmt.config.section import Section


class GuardConfig(Section):
    """How much worse a fine-tuned model may become on other text than its own; `nmt adapt` writes this section."""

    max_drop: Annotated[float, Field(ge=0)] | None = None
    """With `training.init_from`: how far `drop_metric` may fall on `validation`, compared with the run that the
    training starts from. After the training, weights between the old and the new ones are scored, and the best for the
    new text whose drop is surely within this limit become the model: the upper end of a paired bootstrap's 95% interval
    counts. Of weights that the new text cannot tell from the best, those that lose least are taken. `null`: no
    guard."""
    drop_metric: Literal["bleu", "chrf", "loss"] = "bleu"
    """What is compared: points of `bleu` or `chrf`, or the `loss` in nats a token."""
    validation: CorpusFiles | None = None
    """General text with its translations, which decides. It is scored at every validation, too, and `training.patience`
    counts those with four times the allowed drop as not better. `null`: there is none, and `max_alpha` decides."""
    test: dict[str, CorpusFiles] = Field(default_factory=dict)
    """General text that decides nothing, by name: scored before and after, as are the old run's test sets."""
    alphas: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = (0.4, 0.6, 0.8, 0.9)
    """The weights between: each is (1 - alpha) times the old run's and alpha times the new ones. 0 and 1 are always
    tried."""
    max_alpha: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The largest alpha that is tried. `nmt adapt` writes 0.5 if there is no general text."""

    @property
    def is_on(self) -> bool:
        """Whether the model is chosen by this section."""
        return self.max_drop is not None

    @property
    def tried(self) -> tuple[float, ...]:
        """The alphas to try, in order, without 0."""
        return tuple(alpha for alpha in sorted({*self.alphas, 1.0, self.max_alpha}) if alpha <= self.max_alpha)

    def within(self, drop: float, times: float = 1.0) -> bool:
        """Whether a drop is at most this many times the allowed one."""
        return self.max_drop is not None and drop <= times * self.max_drop

    def check(self, has_base: bool, source_type: str) -> None:
        """`ValueError` for a guard that cannot work: without a run to start from, or not of text."""
        if not self.is_on:
            return
        if not has_base:
            raise ValueError(
                "guard.max_drop compares with the run that training.init_from names, and it names none; leave it out"
            )
        if source_type != "text":
            raise ValueError(f"guard.max_drop: for a source of text, and source.type is {source_type}; leave it out")
        known = {f"test.{name}": files for name, files in self.test.items()}
        for key, files in {"validation": self.validation, **known}.items():
            if files is not None and files.pairs is not None and None in (files.src_column, files.tgt_column):
                raise ValueError(f"guard.{key}: name src_column and tgt_column, too")

"""The rules that leave pairs out of the training text: section `data.cleaning`."""

from typing import Annotated, Literal, Self

from pydantic import Field

from nmt.config.section import Section


class CleaningConfig(Section):
    """Rules by which pairs are left out of the training text. Each is off by default.

    Pairs with an empty side, or with more than `data.max_length` pieces, are always left out.
    """

    duplicates: Literal["pair", "source", "target", "either"] | None = None
    """Leave out a pair if an earlier one, in any of the corpora, has the same pair of lines, the same `source`, the
    same `target`, or `either` of them. `null`: off."""
    length_ratio: Annotated[float, Field(gt=1)] | None = None
    """Leave out a pair if one side is more than this many times as long as the other, and 10 characters more, after
    dividing by the ratio that is usual in the corpora, so that it means the same for Chinese. `null`: off."""
    identical: bool = False
    """Leave out a pair whose sides are the same text, which teaches the model to copy. Text without letters is kept."""
    script: Annotated[float, Field(gt=0, le=1)] | None = None
    """Leave out a pair if less than this share of a side's letters is in a script of its language. A single letter is a
    symbol, and a word that is on both sides does not count. `null`: off."""
    encoding: bool = False
    """Leave out a pair with a line that is not UTF-8, which otherwise is an error, or that was encoded twice (`Ã¼` for
    `ü`), or has a replacement character (U+FFFD)."""
    html: bool = False
    """Leave out a pair with tags or entities (`<b>`, `&nbsp;`) in a line. A placeholder such as `<file>` is none."""
    numbers: bool = False
    """Leave out a pair whose sides have different numbers."""
    max_repeats: Annotated[int, Field(ge=1)] | None = None
    """Leave out a pair whose source or target sentence has been in this many pairs before: boilerplate. `null`: off."""
    overlap: bool = False
    """Leave out a pair that shares its source or its target sentence with the validation set or a test set. Of those
    drawn from the training text (`holdout`), pairs are always left out."""
    language: bool = False
    """Leave out a pair with a long line that is identified as another language. Needs `scripts/install langid`."""

    @property
    def is_on(self) -> bool:
        """Whether any rule is on."""
        return self != CleaningConfig()

    @property
    def of_text(self) -> list[str]:
        """The keys that are set and compare or judge text on both sides."""
        return [key for key in self.model_fields_set if key != "duplicates" and getattr(self, key)]

    @classmethod
    def recommended(cls) -> Self:
        """What suits most corpora, and what `nmt init` writes."""
        return cls(
            duplicates="pair", length_ratio=4, identical=True, script=0.5, encoding=True, html=True, max_repeats=20,
            overlap=True,
        )  # fmt: skip

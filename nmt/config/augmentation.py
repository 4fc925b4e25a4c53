"""Random changes to training pairs: the section `augmentation` of a configuration."""

from typing import Self

from pydantic import model_validator

from nmt.config.section import Rate, Section


class AugmentationConfig(Section):
    """Random changes to training pairs, different each time a pair is seen; never in validation or translation."""

    subword_sampling: Rate = 0.0
    """Split words into pieces at random. With `tokenizer.type: bpe`, each merge is skipped with this probability
    (BPE-dropout, Provilkov et al. 2020; 0.1 is usual). With `unigram`, a segmentation is sampled in proportion to its
    probability to the power of this value (Kudo 2018; 0.1 to 0.5). 0: off."""
    tgt_word_dropout: Rate = 0.0
    """Probability that a piece of the decoder's input is replaced by `<unk>`; the pieces to predict stay unchanged."""
    lower_case: Rate = 0.0
    """Share of the sources that are lowercased by the rules of `data.src_lang` (Turkish I becomes ı), so that the model
    can translate carelessly typed text. Targets stay unchanged. For input in capitals: `decoding.lower_capitals`."""
    drop_punctuation: Rate = 0.0
    """Share of the sources that lose their punctuation and symbols (Unicode's categories P and S), except inside words,
    so that the model can translate carelessly typed text. `lower_case`, `drop_punctuation` and `title_case` may sum to
    1 at most."""
    title_case: Rate = 0.0
    """Share of the sources in which each word begins with a capital, so that the model can translate headlines."""
    join: Rate = 0.0
    """Share of the batches in which every two pairs are concatenated into one, so that the model can translate lines of
    several sentences."""
    phrases: Rate = 0.0
    """Share of the batches in which each pair is replaced by a short phrase pair out of it, such as `woman` and `Frau`,
    so that the model can translate single words and short phrases. Phrases have 1 to 4 source words, mostly 1 or 2;
    pairs without a reliable one are left out of the batch. They are found by word alignment (IBM Model 1 in both
    directions), which takes seconds at the start and learns from 100,000 pairs at most. A batch of phrases is not
    joined. Not with imported models (`tokenizer.type: marian`)."""
    copies: Rate = 0.0
    """Share of the pairs into which a made-up text is inserted, the same on both sides and at the same place: an emoji
    or several, a number, a URL or an e-mail address. It teaches the model to copy what it has never seen. The place is
    the beginning, the end, before the final punctuation, or between two joined sentences. Needs
    `tokenizer.byte_fallback`, and no tokenizer of words: their vocabularies have no pieces for unseen text."""

    @property
    def source_changes(self) -> tuple[float, float, float]:
        """The shares of the sources that are changed in one of these ways."""
        return self.lower_case, self.drop_punctuation, self.title_case

    @property
    def of_source_text(self) -> list[str]:
        """The keys in use that need a source of text."""
        keys = {"lower_case": self.lower_case, "drop_punctuation": self.drop_punctuation, "title_case": self.title_case,
                "join": self.join, "phrases": self.phrases, "copies": self.copies}  # fmt: skip
        return [key for key, value in keys.items() if value]

    @property
    def changes_text(self) -> bool:
        """Whether sentences are tokenized again whenever they are seen."""
        return any((self.subword_sampling, self.copies, *self.source_changes))

    @property
    def is_on(self) -> bool:
        """Whether any augmentation is enabled."""
        return self.changes_text or any((self.tgt_word_dropout, self.join, self.phrases))

    @model_validator(mode="after")
    def _shares(self) -> Self:
        if sum(self.source_changes) > 1:
            raise ValueError(
                "augmentation.lower_case, drop_punctuation and title_case exclude each other: they may sum to 1 at most"
            )
        return self

"""Random changes to training pairs: the section `augmentation` of a configuration."""

from nmt.config.section import Rate, Section


class AugmentationConfig(Section):
    """Random changes to training pairs, different each time a pair is seen; never in validation or translation."""

    subword_sampling: Rate = 0.0
    """Split words into pieces at random. With `tokenizer.type: bpe`, each merge is skipped with this probability
    (BPE-dropout, Provilkov et al. 2020; 0.1 is usual). With `unigram`, a segmentation is sampled in proportion to its
    probability to the power of this value (Kudo 2018; 0.1 to 0.5). 0: off."""
    tgt_word_dropout: Rate = 0.0
    """Probability that a piece of the decoder's input is replaced by `<unk>`; the pieces to predict stay unchanged."""
    typed_input: Rate = 0.0
    """Share of the sources that are changed to what people type: one in three is lowercased by the rules of
    `data.src_lang` (Turkish I becomes ı), one loses its punctuation and symbols (Unicode's categories P and S), except
    inside words, and in one each word begins with a capital, as in headlines. Where the script of `data.src_lang` has
    no case, all of them lose their punctuation. Targets stay unchanged. 0.15 is usual, and 0.05 without case. For input
    in capitals: `decoding.lower_capitals`."""
    fragments: Rate = 0.0
    """Share of the batches whose lines are other than sentences; 0.1 is usual. In one half of them every two pairs are
    joined, so that the model can translate lines of several sentences. In the other half each pair is replaced by a
    short phrase pair out of it, such as `woman` and `Frau`, so that the model can translate single words. Phrases have
    1 to 4 source words, mostly 1 or 2; pairs without a reliable one are left out of the batch. They are found by word
    alignment (IBM Model 1 in both directions), which takes seconds at the start and learns from 100,000 pairs at most.
    With imported models (`tokenizer.type: marian`) there are no phrases: in all of these batches pairs are joined."""
    copies: Rate = 0.0
    """Share of the pairs into which a made-up text is inserted, the same on both sides and at the same place: an emoji
    or several, a number, a URL or an e-mail address. It teaches the model to copy what it has never seen. The place is
    the beginning, the end, before the final punctuation, or between two joined sentences. Needs
    `tokenizer.byte_fallback`, and no tokenizer of words: their vocabularies have no pieces for unseen text."""

    @property
    def changes_text(self) -> bool:
        """Whether sentences are tokenized again whenever they are seen."""
        return any((self.subword_sampling, self.copies, self.typed_input))

    @property
    def is_on(self) -> bool:
        """Whether any augmentation is enabled."""
        return any(dict(self).values())

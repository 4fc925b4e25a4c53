"""Label-smoothed cross-entropy, as sums.

Shapes: B batch, T target length, V vocabulary.
"""

from typing import NamedTuple

from torch import Tensor, nn

from nmt.data.batches import Batch
from nmt.data.vocabulary import PAD_ID
from nmt.models.interface import Seq2SeqModel


class LossSums(NamedTuple):
    """Sums over the real target positions of a batch; divide by their number where it is known whole."""

    smoothed: Tensor
    """What is minimised; (), nats."""
    cross_entropy: Tensor
    """Without smoothing: comparable between settings, and e to the mean of it is the perplexity; (), nats."""


def cross_entropy_sums(logits: Tensor, tgt_out: Tensor, label_smoothing: float, pad_id: int) -> LossSums:
    """Cross-entropy with the target distribution (1 - e) * one-hot + e / V (Szegedy et al. 2016, section 7).

    (B, T, V), (B, T) int64 -> two sums over the positions that are not `pad_id`.
    """
    log_probs = logits.float().log_softmax(dim=-1)  # (B, T, V)
    real = tgt_out != pad_id  # (B, T)
    of_target = -log_probs.gather(-1, tgt_out[..., None])[..., 0]  # (B, T)
    cross_entropy = (of_target * real).sum()
    if not label_smoothing:
        return LossSums(cross_entropy, cross_entropy.detach())
    of_uniform = -log_probs.mean(dim=-1)  # (B, T)
    smoothed = (1 - label_smoothing) * cross_entropy + label_smoothing * (of_uniform * real).sum()
    return LossSums(smoothed, cross_entropy.detach())


class Objective(nn.Module):
    """What training minimises, as a module, so that what wraps a model (data parallelism) sees one forward pass."""

    def __init__(self, model: Seq2SeqModel, label_smoothing: float) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing

    def forward(self, batch: Batch) -> LossSums:
        """The sums over a batch that is on the model's device."""
        logits = self.model(batch.src_ids, batch.src_mask, batch.tgt_in)  # (B, T, V)
        return cross_entropy_sums(logits, batch.tgt_out, self.label_smoothing, PAD_ID)

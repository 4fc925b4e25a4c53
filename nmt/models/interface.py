"""The interfaces of a model, and the embeddings and initial weights that all trained models share.

Searches use only `Seq2SeqModel`, training only `TrainableModel`.

Shapes: B batch (sentences), K beams (1 in greedy search), S source length, T target length, H heads, D width,
V vocabulary.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from torch import Tensor, nn

from nmt.config.inference import ModelConfig
from nmt.config.section import ModelPart
from nmt.config.source import SourceConfig
from nmt.errors import RunError
from nmt.models.dropout import Dropout
from nmt.models.embeddings import PositionEmbeddings, VectorLayer
from nmt.models.joined import sentences_of
from nmt.models.source import Source


class DecoderState(Protocol):
    """A model's state between the steps of a search: B sentences with K hypotheses each, 1 at first."""

    def select_beams(self, beams: Tensor) -> None:
        """Replace hypothesis k of sentence b by hypothesis `beams[b, k]`; `beams`, (B, K), sets the new K."""

    def select_sentences(self, sentences: Tensor) -> None:
        """Keep only these sentences, in this order; `sentences` is (B',) int64, B' <= B."""


M = TypeVar("M")
"""A model's memory: its encoded sources."""
S = TypeVar("S", bound=DecoderState)
"""A model's decoder state."""
L = TypeVar("L", bound=nn.Module)
Backend = str | Callable[..., Any]
"""A backend of torch.compile: "inductor", or a function that compiles a graph."""


class Seq2SeqModel(nn.Module, ABC, Generic[M, S]):
    """A model of P(target | source) over target ids."""

    @abstractmethod
    def encode(self, source: Source) -> M:
        """Encode the sources."""

    @abstractmethod
    def forward(self, source: Source, tgt_in: Tensor) -> Tensor:
        """Logits of the next token after every prefix: B sources, (B, T) int64 -> (B, T, V).

        Targets are padded on the right; the logits at padded positions are undefined.
        """

    @abstractmethod
    def start(self, memory: M, beam_size: int, max_length: int) -> S:
        """The state before the first of at most `max_length` steps, with at most `beam_size` hypotheses a source."""

    @abstractmethod
    def step(self, tokens: Tensor, state: S) -> Tensor:
        """Feed each hypothesis its latest token: (B, K) int64 -> logits of the next token, (B, K, V).

        Changes `state`. The logits equal those of `forward` on the whole prefix; the caller may overwrite them.
        At the first step every prefix is the start id alone, and K is 1.
        """

    @abstractmethod
    def attention_weights(self, source: Source, tgt_in: Tensor) -> dict[str, Tensor]:
        """The attention weights of every layer and head by name, for the arguments of `forward`.

        "encoder.0.self" is (B, H, S, S), "decoder.0.self" (B, H, T, T) and "decoder.0.cross" (B, H, T, S), as far as a
        layer has them. Rows sum to 1 over the positions that may be attended to.
        """

    @abstractmethod
    def attention(self, source: Source, tgt_in: Tensor) -> Tensor:
        """The cross-attention that aligns words, for the arguments of `forward`: (B, T, S)."""


class Layers(nn.ModuleList, Generic[L]):
    """A ModuleList with a static type for its modules."""

    if TYPE_CHECKING:

        def __init__(self, modules: Iterable[L]) -> None: ...
        def __iter__(self) -> Iterator[L]: ...


class TrainableModel(Seq2SeqModel[M, S]):
    """A model whose last operation is a linear map, so that the loss can compute logits and their gradients in chunks.

    Initial weights: linear maps are Xavier-uniform (Glorot and Bengio 2010), with zero biases. Embeddings are normal
    with standard deviation D^-1/2 (as in tensor2tensor, the code of the Transformer's paper): scaled by sqrt(D) they
    have unit variance, and tied to the output they give logits of about unit variance. Learned positions are normal
    with 0.02. Other modules, such as recurrent layers and norms, initialise themselves.
    """

    output: nn.Linear
    """(..., D) -> logits (..., V), with or without a bias."""
    src_positions: nn.Module
    """Adds positions to scaled source embeddings."""
    alignment_layer = 0
    """Index of the decoder layer whose cross-attention aligns words."""

    def __init__(
        self, config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int, source: SourceConfig, d_embedding: int
    ) -> None:
        """Make the embeddings; a source of vectors has a `VectorLayer` instead."""
        super().__init__()
        self.scale = math.sqrt(d_embedding)
        self.src_vectors: VectorLayer | None = None
        if source.type == "text":
            self.src_embedding = nn.Embedding(src_vocab_size, d_embedding)
        else:
            self.src_vectors = VectorLayer(source, config.source_width, config.max_positions, config.dropout)
        if source.type == "text" and config.tie_embeddings == "all":
            if src_vocab_size != tgt_vocab_size:
                raise ValueError("tie_embeddings: all needs one vocabulary for both sides")
            self.tgt_embedding = self.src_embedding
        else:
            self.tgt_embedding = nn.Embedding(tgt_vocab_size, d_embedding)
        self.dropout = Dropout(config.dropout)

    def initialise(self, tie_embeddings: str) -> None:
        """Set the initial weights, once the model has all of its modules, and tie the output to the embeddings."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
            elif isinstance(module, PositionEmbeddings):
                module.initialise()
        if tie_embeddings != "none":
            self.output.weight = self.tgt_embedding.weight

    def embed_sources(self, source: Source) -> Source:
        """Replace ids by their embeddings, which `encode` and `forward` also accept: (B, S) -> (B, S, D).

        Scale and positions are applied when they are encoded; vectors stay as they are. A gradient with respect to
        them shows the influence of each source position.
        """
        if self.src_vectors is not None or source.values.is_floating_point():
            return source
        return source._replace(values=self.src_embedding(source.values))

    def first_states(self, source: Source) -> Source:
        """Sources of ids, of their embeddings, or of vectors -> the input of the first encoder layer, (B, S, D)"""
        if self.src_vectors is not None:
            vectors: Source = self.src_vectors(source)
            return vectors
        embedded = self.embed_sources(source).values * self.scale
        if source.joined is None:
            placed = self.src_positions(embedded)
        else:
            placed = self.src_positions(embedded, sentences_of(source.joined.src_starts, embedded.shape[1])[1])
        return source._replace(values=self.dropout(placed))

    @abstractmethod
    def states(self, source: Source, tgt_in: Tensor) -> Tensor:
        """The decoder's states, the input of `output`, for the arguments of `forward`: (B, T, D)."""

    def forward(self, source: Source, tgt_in: Tensor) -> Tensor:
        """B sources, (B, T) -> logits (B, T, V)"""
        logits: Tensor = self.output(self.states(source, tgt_in))
        return logits

    def attention(self, source: Source, tgt_in: Tensor) -> Tensor:
        """The mean over the heads of `alignment_layer`: B sources, (B, T) -> (B, T, S); `RunError` if it has none."""
        weights = self.attention_weights(source, tgt_in).get(f"decoder.{self.alignment_layer}.cross")
        if weights is None:
            raise RunError("the model has no attention (model.attention: none), so it cannot align words")
        return weights.mean(dim=1)

    def compile_layers(self, backend: Backend, dynamic: bool = True) -> None:
        """Compile the layers with a backend of torch.compile; by default does nothing.

        They are compiled for batches of any shape, or, if not `dynamic`, again for each shape.
        """

    def padding_rows(self, src_pad: int, tgt_pad: int) -> list[tuple[Tensor, int]]:
        """The rows for `<pad>` in embeddings, output and its bias that must not be trained; usually none.

        A new model has zeros in these rows of its matrices.
        """
        return []

    def part_of(self, name: str) -> ModelPart:
        """The part of the model that a parameter belongs to, by its name; a shared one has several names and parts.

        Positions and a `VectorLayer` belong to the embeddings, a final norm to its layers, and a recurrent decoder's
        other modules to the decoder.
        """
        match name.split(".")[0]:
            case "output":
                return "output"
            case "encoder" | "encoder_norm":
                return "encoder"
            case "src_embedding" | "src_vectors" | "src_positions" | "tgt_embedding" | "tgt_positions":
                return "embeddings"
        return "decoder"

    def parameter_counts(self) -> dict[str, int]:
        """The number of parameters in embeddings (with the output), encoder and decoder; shared ones count once."""
        counts = {"embeddings": 0, "encoder": 0, "decoder": 0}
        for name, parameter in self.named_parameters():  # names shared parameters once
            part = self.part_of(name)
            counts["embeddings" if part == "output" else part] += parameter.numel()
        return counts

"""The encoder-decoder Transformer (Vaswani et al. 2017, "Attention Is All You Need").

    source -> Embedding (VectorLayer for vectors) -> EncoderLayer x N -> memory
    tgt_in -> Embedding -> DecoderLayer x N (attending to memory) -> states -> output -> logits

Shapes: B batch, K beams, H heads, S source length, T target length, D d_model, V vocabulary.
Masks are bool, True = may attend.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.config.inference import TransformerConfig
from nmt.config.source import TEXT, SourceConfig
from nmt.models.attention import KeyValueCache, Moves, MultiHeadAttention, WeightsRecord, attention_bias
from nmt.models.dropout import Dropout
from nmt.models.embeddings import PositionEmbeddings
from nmt.models.interface import Backend, L, Layers, TrainableModel
from nmt.models.joined import Joined, Spans, sentences_of
from nmt.models.source import Source, for_heads

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "gelu": F.gelu,
    "swish": F.silu,
    "swiglu": F.silu,
}


class FeedForward(nn.Module):
    """Feed-forward network: two linear maps with an activation between them, applied to each position (section 3.3).

    `swiglu` (Shazeer 2020, "GLU Variants Improve Transformer") adds a gate: (silu(x W) * x V) U.
    """

    def __init__(self, d_model: int, d_ff: int, activation: str = "relu") -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.inner = nn.Linear(d_model, d_ff)
        self.gate = nn.Linear(d_model, d_ff) if activation == "swiglu" else None
        self.outer = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        # Flattened first, because autograd copies a view that is changed in place (relu_).
        rows = x.flatten(0, 1)  # (B * T, D)
        inner = self.inner(rows)  # (B * T, d_ff)
        inner = self.activation(inner) if self.gate is None else self.activation(self.gate(rows)) * inner
        outer: Tensor = self.outer(inner)  # (B * T, D)
        return outer.view_as(x)


class Residual(nn.Module):
    """Residual connection: pre-norm, x + dropout(part(norm(x))), or post-norm, norm(x + dropout(part(x)))."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.norm = nn.LayerNorm(config.d_model, eps=config.family.norm_epsilon)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        x = x + self.dropout(part(self.norm(x) if self.pre_norm else x))
        return x if self.pre_norm else self.norm(x)


class EncoderLayer(nn.Module):
    """Encoder layer: self-attention over the source, then a feed-forward network.

    >>> layer = EncoderLayer(TransformerConfig(d_model=8, num_heads=2, d_ff=16))
    >>> layer(torch.randn(1, 3, 8), torch.ones(1, 1, 1, 3, dtype=torch.bool)).shape
    torch.Size([1, 3, 8])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config.d_model, config.num_heads)
        self.self_residual = Residual(config)
        self.feed_forward = FeedForward(config.d_model, config.d_ff, config.activation)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, src_mask: Tensor | Spans, recorded: WeightsRecord = None) -> Tensor:
        """(B, S, D), mask (B, 1, 1, S) -> (B, S, D)"""
        x = self.self_residual(x, lambda y: self.self_attention(y, y, src_mask, recorded=recorded))
        fed: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return fed


class LayerState(NamedTuple):
    """The caches of one decoder layer while it decodes B sentences with K hypotheses each."""

    prefixes: KeyValueCache
    """Keys and values of the target: K places for each step, one for each hypothesis at that step."""
    memory: KeyValueCache
    """Keys and values of the source, computed once and shared by the K hypotheses."""


class DecoderLayer(nn.Module):
    """Decoder layer: causal self-attention, cross-attention to the memory, then a feed-forward network."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config.d_model, config.num_heads)
        self.self_residual = Residual(config)
        self.cross_attention = MultiHeadAttention(config.d_model, config.num_heads)
        self.cross_residual = Residual(config)
        self.feed_forward = FeedForward(config.d_model, config.d_ff, config.activation)
        self.feed_forward_residual = Residual(config)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        src_mask: Tensor | Spans,
        recorded: WeightsRecord = None,
        tgt_spans: Spans | None = None,
    ) -> Tensor:
        """(B, T, D), (B, S, D), mask (B, 1, 1, S) -> (B, T, D)

        Targets are padded on the right, so the look-ahead mask alone keeps real positions from attending to padding.
        """
        x = self.self_residual(x, lambda y: self.self_attention(y, y, tgt_spans, is_causal=True, recorded=recorded))
        x = self.cross_residual(x, lambda y: self.cross_attention(y, memory, src_mask, recorded=recorded))
        fed: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return fed

    def step(self, x: Tensor, prefix_bias: Tensor, src_bias: Tensor, state: LayerState) -> Tensor:
        """One new position of every hypothesis: (B, K, D), biases (B, 1, K, places), (B, 1, 1, S) -> (B, K, D)"""

        # A sentence's hypotheses are K queries to one shared cache of prefixes and one shared memory.
        def self_attention(y: Tensor) -> Tensor:
            state.prefixes.append(*self.self_attention.keys_values(y))
            return self.self_attention.attend_cached(y, state.prefixes, prefix_bias)

        x = self.self_residual(x, self_attention)
        x = self.cross_residual(x, lambda y: self.cross_attention.attend_cached(y, state.memory, src_bias))
        fed: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return fed


class Memory(NamedTuple):
    """The encoder's output for B sources."""

    states: Tensor
    """(B, S, D)"""
    mask: Tensor
    """(B, S) bool, True = may attend"""
    joined: Joined | None = None
    """Where the pairs begin if each row holds several"""


class TransformerState:
    """The decoder's state in a search: B sentences, K hypotheses each, `length` positions so far.

    A step adds K places to a sentence's cache, one for each hypothesis. Places never move: an attention bias selects
    the places of a hypothesis's own prefix. So reordering hypotheses changes this small bias and copies no keys or
    values. Example: two hypotheses after two steps, both extending the first one (0 = may attend, - = may not):

        place of    step 1: first  second    step 2: first  second
        first                0      -                 0      -
        second               0      -                 -      0
    """

    def __init__(self, layers: list[LayerState], src_bias: Tensor) -> None:
        self.layers = layers
        self.src_bias = src_bias  # (B, 1, 1, S)
        self.prefix_bias = src_bias.new_empty(len(src_bias), 1, 0)  # (B, K, places)
        self.length = 0

    def add_places(self, beam_size: int) -> None:
        """Give each hypothesis a new place to which only it may attend."""
        own = torch.eye(beam_size, dtype=torch.bool, device=self.src_bias.device)  # (K, K)
        own_bias = attention_bias(own, self.src_bias).expand(self.src_bias.shape[0], -1, -1)  # (B, K, K)
        self.prefix_bias = torch.cat([self.prefix_bias, own_bias], dim=2)
        self.length += 1

    def select_beams(self, beams: Tensor) -> None:
        """(B, K): replace hypothesis k of sentence b by hypothesis `beams[b, k]`."""
        places = self.prefix_bias.shape[2]
        self.prefix_bias = self.prefix_bias.gather(1, beams[:, :, None].expand(-1, -1, places))

    def select_sentences(self, sentences: Tensor) -> None:
        """(B',): keep only these sentences, in this order."""
        self.src_bias, self.prefix_bias = self.src_bias[sentences], self.prefix_bias[sentences]
        moves = Moves.of(sentences)
        for layer in self.layers:
            layer.prefixes.select(moves)
            layer.memory.select(moves)


class Transformer(TrainableModel[Memory, TransformerState]):
    """Embeddings, encoder, decoder and output projection."""

    src_positions: PositionEmbeddings

    def __init__(
        self, config: TransformerConfig, src_vocab_size: int, tgt_vocab_size: int, source: SourceConfig = TEXT
    ) -> None:
        super().__init__(config, src_vocab_size, tgt_vocab_size, source, config.d_model)
        layout = config.family
        if not layout.scale_embeddings:
            self.scale = 1.0
        self.zero_bos_embedding = layout.zero_bos_embedding
        if source.type == "text":
            self.src_positions = PositionEmbeddings(config.d_model, config.max_positions, config.position_kind)
        self.tgt_positions = PositionEmbeddings(config.d_model, config.max_positions, config.position_kind)
        shared = config.share_layers
        self.encoder = layers_of(lambda: EncoderLayer(config), config.num_encoder_layers, shared)
        self.decoder = layers_of(lambda: DecoderLayer(config), config.num_decoder_layers, shared)
        # Post-norm layers end in a norm; pre-norm layers need a final one.
        pre_norm = config.norm == "pre"
        self.encoder_norm = nn.LayerNorm(config.d_model, eps=layout.norm_epsilon) if pre_norm else nn.Identity()
        self.decoder_norm = nn.LayerNorm(config.d_model, eps=layout.norm_epsilon) if pre_norm else nn.Identity()
        self.output = nn.Linear(config.d_model, tgt_vocab_size, bias=layout.output_bias)
        self.initialise(config.tie_embeddings)
        # Of two or three layers, the second aligns words as well as the mean over all (docs/lab/speed.md), and
        # CTranslate2 returns the attention of a single layer.
        self.alignment_layer = config.num_decoder_layers // 2

    def states(self, source: Source, tgt_in: Tensor) -> Tensor:
        """B sources, (B, T) -> (B, T, D)"""
        return self.decode(tgt_in, self.encode(source))

    def encode(self, source: Source, recorded: WeightsRecord = None) -> Memory:
        """Sources of ids, of their embeddings, or of vectors -> states (B, S, D) and mask (B, S)"""
        x, src_mask, joined = self.first_states(source)
        mask: Tensor | Spans
        if joined is None:
            mask = for_heads(src_mask)
        else:
            mask = Spans.of(x, joined.src_starts, x, joined.src_starts, joined.max_length)
        for layer in self.encoder:
            x = layer(x, mask, recorded)
        return Memory(self.encoder_norm(x), src_mask, joined)

    def decode(self, tgt_in: Tensor, memory: Memory, recorded: WeightsRecord = None) -> Tensor:
        """(B, T), memory of B sources -> (B, T, D)"""
        x, joined = self._embed_targets(tgt_in, memory.joined), memory.joined
        mask: Tensor | Spans
        spans = None
        if joined is None:
            mask = for_heads(memory.mask)
        else:
            mask = Spans.of(x, joined.tgt_starts, memory.states, joined.src_starts, joined.max_length)
            spans = Spans.of(x, joined.tgt_starts, x, joined.tgt_starts, joined.max_length)
        for layer in self.decoder:
            x = layer(x, memory.states, mask, recorded, spans)
        states: Tensor = self.decoder_norm(x)
        return states

    def _embed_targets(self, tgt_in: Tensor, joined: Joined | None) -> Tensor:
        """(B, T) -> (B, T, D)"""
        vectors = self.tgt_embedding(tgt_in) * self.scale
        positions = None if joined is None else sentences_of(joined.tgt_starts, tgt_in.shape[1])[1]  # (T,)
        if self.zero_bos_embedding:  # position 0 always holds the start id
            if positions is None:
                vectors = F.pad(vectors[:, 1:], (0, 0, 1, 0))
            else:
                vectors = vectors.masked_fill((positions == 0)[:, None], 0)
        embedded: Tensor = self.dropout(self.tgt_positions(vectors, positions))
        return embedded

    def attention_weights(self, source: Source, tgt_in: Tensor) -> dict[str, Tensor]:
        """B sources, (B, T) -> "encoder.N.self" (B, H, S, S), "decoder.N.self" (B, H, T, T), ".cross" (B, H, T, S)"""
        recorded: list[Tensor] = []
        self.decode(tgt_in, self.encode(source, recorded), recorded)
        names = [f"encoder.{number}.self" for number in range(len(self.encoder))]
        names += [f"decoder.{number}.{kind}" for number in range(len(self.decoder)) for kind in ("self", "cross")]
        return dict(zip(names, recorded, strict=True))

    def start(self, memory: Memory, beam_size: int, max_length: int) -> TransformerState:
        """Compute the keys and values of the memory once for each layer's cross-attention."""
        states = memory.states
        layers = []
        for layer in self.decoder:
            attention = layer.cross_attention
            prefixes = KeyValueCache(states, attention.num_heads, max_length * beam_size)
            source = KeyValueCache(states, attention.num_heads, states.shape[1])
            source.append(*attention.keys_values(states))
            layers.append(LayerState(prefixes, source))
        return TransformerState(layers, attention_bias(for_heads(memory.mask), states))

    def step(self, tokens: Tensor, state: TransformerState) -> Tensor:
        """(B, K) -> logits (B, K, V)"""
        x = self.tgt_embedding(tokens) * self.scale  # (B, K, D), every token at position `state.length`
        if self.zero_bos_embedding and state.length == 0:
            x = torch.zeros_like(x)
        x = self.tgt_positions(x, state.length)
        state.add_places(tokens.shape[1])
        prefix_bias = state.prefix_bias[:, None]  # (B, 1, K, places)
        for layer, layer_state in zip(self.decoder, state.layers, strict=True):
            x = layer.step(x, prefix_bias, state.src_bias, layer_state)
        logits: Tensor = self.output(self.decoder_norm(x))
        return logits

    def compile_layers(self, backend: Backend, dynamic: bool = True) -> None:
        """As `TrainableModel.compile_layers`. Layers of one kind share their code, so only two are compiled."""
        for layer in (*self.encoder, *self.decoder):
            layer.compile(dynamic=dynamic, backend=backend)

    def padding_rows(self, src_pad: int, tgt_pad: int) -> list[tuple[Tensor, int]]:
        """As `TrainableModel.padding_rows`."""
        if not self.zero_bos_embedding:
            return []
        rows: list[tuple[Tensor, int]] = [(self.tgt_embedding.weight, tgt_pad), (self.output.weight, tgt_pad)]
        if self.src_vectors is None:
            rows.append((self.src_embedding.weight, src_pad))
        if self.output.bias is not None:
            rows.append((self.output.bias, tgt_pad))
        return rows


def layers_of(make: Callable[[], L], count: int, shared: bool) -> Layers[L]:
    """`count` layers, or if `shared`, one layer `count` times."""
    return Layers([make()] * count if shared else [make() for _ in range(count)])

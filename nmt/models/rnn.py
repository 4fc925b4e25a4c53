"""The recurrent encoder-decoder, with attention (Bahdanau et al. 2015, Luong et al. 2015) or without it.

    source -> Embedding (or, of vectors, VectorLayer) -> Bidirectional x N -> memory
    tgt_in -> Embedding -> Recurrence x N -> s -> attention to memory -> states -> output -> logits

One decoder serves all kinds of attention. With e the embedding of a piece and s_t the state of the last layer:

    v = [last state of the left-to-right encoder; last state of the right-to-left encoder]
    initial states of each decoder layer = tanh(W_b v + b)               the bridge
    s_t = cell([e(y_{t-1}); a_{t-1}], s_{t-1})                           a_0 = 0; no a without input feeding
    c_t = sum over the source of softmax(e(s_t, h)) h                    SourceAttention
    a_t = tanh(W_c [s_t; c_t])                                           the attentional vector; s_t without attention
    logits = W_o (W_r a_t)                                               no W_r where d_embedding = d_model

Differences from the papers:

- Luong et al. 2015 has unidirectional LSTMs of 4 layers, and each decoder layer starts from the last state of its
  encoder layer, without a bridge. The scores and input feeding are the same.
- Bahdanau et al. 2015 attends with the state before the step, s_{t-1}, gives c_t to the cell, and has a maxout layer
  before the logits. Here the additive score, too, follows Luong's order: c_t reaches the cell through a_t, one step
  later.
- Sutskever et al. 2014 has unidirectional LSTMs of 4 layers and reverses the source instead of reading it in both
  directions. Each decoder layer starts from the last state of its encoder layer, without a bridge.

Without encoder layers (N = 0; vectors and images only), the decoder attends to the output h of the first layer, and v
is its mean: Xu et al. 2015, "Show, Attend and Tell", with Luong's order of attention.

Embeddings are scaled by sqrt(E), as in the Transformer. Shapes: B batch, K beams, S source length, T target length,
E d_embedding, D d_model, G gates, V vocabulary. Masks are bool, True = may attend.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from nmt.config.inference import RnnConfig
from nmt.config.source import TEXT, SourceConfig
from nmt.models.attention import attention_bias
from nmt.models.interface import Layers, TrainableModel
from nmt.models.recurrence import NUM_GATES, NUM_STATES, Bidirectional, Recurrence, States, reordered, reversal_within
from nmt.models.source import Source


class RnnMemory(NamedTuple):
    """The encoder's output for B sources."""

    states: Tensor
    """(B, S, D)"""
    mask: Tensor
    """(B, S) bool, True = may attend"""
    last: Tensor
    """v, (B, D): the last states of both directions, or without encoder layers the mean of the states. A decoder
    without attention sees nothing else of the source."""


class Attended(NamedTuple):
    """Input of the decoder's attention, computed once for B sources."""

    keys: Tensor
    """(B, S, D)"""
    memory: Tensor
    """(B, S, D)"""
    bias: Tensor
    """(B, 1, S)"""


class SourceAttention(nn.Module):
    """Attention with a single head: weights a = softmax over the source of e(s, h), and the context c = sum of a h.

        additive    e = v . tanh(W s + U h + b)     Bahdanau et al. 2015, appendix A.1.2
        dot         e = s . h                       Luong et al. 2015, section 3.1
        general     e = s . W h                     the same

    The keys, U h + b or W h, are computed once for each source.
    """

    def __init__(self, score: Literal["additive", "dot", "general"], d_model: int) -> None:
        super().__init__()
        self.score = score
        self.query = nn.Linear(d_model, d_model, bias=False) if score == "additive" else None
        if score == "additive":
            self.vector = nn.Linear(d_model, 1, bias=False)
        if score != "dot":
            self.key = nn.Linear(d_model, d_model, bias=score == "additive")

    def keys(self, memory: Tensor) -> Tensor:
        """(B, S, D) -> (B, S, D)"""
        return memory if self.score == "dot" else self.key(memory)

    def forward(self, query: Tensor, keys: Tensor, memory: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (B, T, D), keys and memory (B, S, D), bias (B, 1, S) -> contexts (B, T, D), weights (B, T, S)

        A query is s, or W s for the additive score. `bias` is 0 where a position may be attended to and a low number
        elsewhere.
        """
        if self.score == "additive":
            scores = self.vector((query[:, :, None] + keys[:, None]).tanh_())[..., 0]  # from (B, T, S, D)
        else:
            scores = query.to(keys.dtype) @ keys.transpose(1, 2)  # (B, T, S)
        weights = torch.softmax(scores + bias, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
        return weights.to(memory.dtype) @ memory, weights


class RnnState:
    """The decoder's state in a search: B sentences, K hypotheses each."""

    def __init__(self, layers: list[States], fed: Tensor | None, source: Attended | None) -> None:
        self.layers = layers  # (B, K, D) each
        self.fed = fed  # the last attentional vector, (B, K, D), if it is fed to the next step
        self.source = source  # None without attention

    def select_beams(self, beams: Tensor) -> None:
        """(B, K): replace hypothesis k of sentence b by hypothesis `beams[b, k]`."""
        self._change(lambda part: part.gather(1, beams[:, :, None].expand(-1, -1, part.shape[2])))

    def select_sentences(self, sentences: Tensor) -> None:
        """(B',): keep only these sentences, in this order."""
        self._change(lambda part: part[sentences])
        self.source = None if self.source is None else Attended(*(part[sentences] for part in self.source))

    def _change(self, change: Callable[[Tensor], Tensor]) -> None:
        self.layers = [tuple(map(change, states)) for states in self.layers]
        self.fed = None if self.fed is None else change(self.fed)


class Rnn(TrainableModel[RnnMemory, RnnState]):
    """Embeddings, bidirectional encoder, bridge, decoder with or without attention, and output projection."""

    def __init__(
        self, config: RnnConfig, src_vocab_size: int, tgt_vocab_size: int, source: SourceConfig = TEXT
    ) -> None:
        width, d_embedding = config.d_model, config.d_embedding
        super().__init__(config, src_vocab_size, tgt_vocab_size, source, d_embedding)
        self.cell = config.cell
        self.src_positions = nn.Identity()
        self.encoder = Layers(
            Bidirectional(config.cell, width if number else d_embedding, width)
            for number in range(config.num_encoder_layers)
        )
        self.bridge = nn.Linear(width, config.num_decoder_layers * NUM_STATES[config.cell] * width)
        self.decoder = Layers(
            Recurrence(config.cell, width if number else d_embedding, width)
            for number in range(config.num_decoder_layers)
        )
        self.feed = nn.Linear(width, NUM_GATES[config.cell] * width, bias=False) if config.input_feeding else None
        self.source_attention = None if config.attention == "none" else SourceAttention(config.attention, width)
        self.combine = None if config.attention == "none" else nn.Linear(2 * width, width)
        self.readout = nn.Linear(width, d_embedding, bias=False) if d_embedding != width else nn.Identity()
        self.output = nn.Linear(d_embedding, tgt_vocab_size, bias=False)
        self.initialise(config.tie_embeddings)

    def encode(self, source: Source) -> RnnMemory:
        """Sources of ids, of their embeddings, or of vectors -> states (B, S, D), their mask, and v (B, D)"""
        x, mask, _ = self.first_states(source)  # (B, S, E), or (B, S, D) without encoder layers
        if not len(self.encoder):
            real = mask[:, :, None].to(x.dtype)
            return RnnMemory(x, mask, (x * real).sum(dim=1) / real.sum(dim=1))
        reversal = reversal_within(mask)
        for layer in self.encoder:
            x = self.dropout(layer(x, reversal))  # (B, S, D)
        # The first of the reversed positions is the last real one.
        rightward, leftward = reordered(x, reversal)[:, 0], x[:, 0]
        half = x.shape[2] // 2
        return RnnMemory(x, mask, torch.cat([rightward[:, :half], leftward[:, half:]], dim=-1))

    def states(self, source: Source, tgt_in: Tensor) -> Tensor:
        """B sources, (B, T) -> (B, T, E)"""
        return self._decode(tgt_in, self.encode(source))[0]

    def attention_weights(self, source: Source, tgt_in: Tensor) -> dict[str, Tensor]:
        """B sources, (B, T) -> "decoder.0.cross" (B, 1, T, S), or nothing if the model has no attention"""
        weights = self._decode(tgt_in, self.encode(source))[1]
        return {} if weights is None else {"decoder.0.cross": weights[:, None]}

    def _decode(self, tgt_in: Tensor, memory: RnnMemory) -> tuple[Tensor, Tensor | None]:
        """(B, T), memory of B sources -> states (B, T, E) and attention weights (B, T, S), None without attention"""
        x = self.dropout(self.tgt_embedding(tgt_in) * self.scale)  # (B, T, E)
        state = self.start(memory, 1, tgt_in.shape[1])
        if self.feed is not None:
            inputs = next(iter(self.decoder)).products(x)  # (B, T, G D), of all pieces at once
            steps = [self._advance(step[:, None], state) for step in inputs.unbind(dim=1)]
            vectors, weights = (torch.cat(parts, dim=1) for parts in zip(*steps, strict=True))
            return self.readout(vectors), weights
        for number, (layer, first) in enumerate(zip(self.decoder, state.layers, strict=True)):
            x = layer(self.dropout(x) if number else x, tuple(part[:, 0] for part in first))
        vectors, some_weights = self._attend(x, state)
        return self.readout(vectors), some_weights

    def start(self, memory: RnnMemory, beam_size: int, max_length: int) -> RnnState:
        """Compute the bridge, and the keys of the memory."""
        firsts = torch.tanh(self.bridge(memory.last)).to(self.tgt_embedding.weight.dtype)[:, None]  # (B, 1, ...)
        layers = [layer.chunk(NUM_STATES[self.cell], dim=-1) for layer in firsts.chunk(len(self.decoder), dim=-1)]
        fed = torch.zeros_like(layers[0][0]) if self.feed is not None else None  # (B, 1, D)
        source = None
        if (attention := self.source_attention) is not None:
            states, device = memory.states, memory.states.device.type
            if torch.is_autocast_enabled(device):
                states = states.to(torch.get_autocast_dtype(device))  # once, not in each step
            source = Attended(attention.keys(states), states, attention_bias(memory.mask[:, None], states))
        return RnnState(layers, fed, source)

    def step(self, tokens: Tensor, state: RnnState) -> Tensor:
        """(B, K) -> logits (B, K, V)"""
        x = self.tgt_embedding(tokens) * self.scale  # (B, K, E)
        vectors, _ = self._advance(next(iter(self.decoder)).products(x), state)
        logits: Tensor = self.output(self.readout(vectors))
        return logits

    def _advance(self, inputs: Tensor, state: RnnState) -> tuple[Tensor, Tensor | None]:
        """Advance every hypothesis by one piece, given the first layer's products for it; changes `state`.

        (B, K, G D) -> attentional vectors (B, K, D), attention weights (B, K, S)
        """
        if self.feed is not None and state.fed is not None:
            inputs = inputs + self.feed(state.fed)
        layers: list[States] = []
        for layer, before in zip(self.decoder, state.layers, strict=True):
            if layers:
                inputs = layer.products(self.dropout(layers[-1][0]))
            layers.append(layer.step(inputs, before))
        state.layers = layers
        vectors, weights = self._attend(layers[-1][0], state)
        state.fed = vectors if self.feed is not None else None
        return vectors, weights

    def _attend(self, s: Tensor, state: RnnState) -> tuple[Tensor, Tensor | None]:
        """States of the last layer (B, T, D) -> attentional vectors (B, T, D), attention weights (B, T, S)"""
        attention, source = self.source_attention, state.source
        if attention is None or source is None or self.combine is None:
            return self.dropout(s), None
        query = s if attention.query is None else attention.query(s)
        context, weights = attention(query, source.keys, source.memory, source.bias)
        return self.dropout(torch.tanh(self.combine(torch.cat([s, context.to(s.dtype)], dim=-1)))), weights

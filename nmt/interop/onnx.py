"""Export of a Transformer as two ONNX graphs, traced from its own `encode`, `start` and `step`, and verified.

    input_ids (B, S), attention_mask (B, S) -> present.N.encoder.{key,value}
    input_ids (B, 1), encoder_attention_mask (B, S), past_key_values.N.{decoder,encoder}.{key,value}
        -> logits (B, 1, V), present.N.decoder.{key,value}

Keys and values are (B, H, P or S, d). Shapes: B rows, K hypotheses of each sentence, S source length, P earlier target
positions (0 at first), H heads, d width of a head, V vocabulary.
"""

import dataclasses
import logging
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from nmt.config.inference import DecodingConfig
from nmt.decoding.torch_engine import TorchEngine
from nmt.decoding.translator import Translator
from nmt.errors import import_extra
from nmt.interop.verification import ExportedRun, describe, greedy_and_beam, prepare, verify
from nmt.models.attention import KeyValueCache, attention_bias
from nmt.models.interface import Seq2SeqModel
from nmt.models.source import Source, for_heads
from nmt.models.transformer import LayerState, Transformer, TransformerState
from nmt.runs.folder import RunFolder
from nmt.system.files import replacing, write_json

Inputs = dict[str, Tensor]  # of a graph, by name
ENCODER, DECODER = "encoder.onnx", "decoder.onnx"


class Graph(nn.Module):
    """The encoder with the cross-attention's keys and values; with a past, a step of the decoder."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model.eval()

    def forward(self, input_ids: Tensor, mask: Tensor, past: list[Tensor] | None = None) -> tuple[Tensor, ...]:
        if past is None:
            state = self.model.start(self.model.encode(Source(input_ids, mask != 0)), 1, 0)
            return tuple(part for layer in state.layers for part in layer.memory.all())
        parts = zip(*[iter(past)] * 4, strict=True)  # of each layer
        layers = [LayerState(_GivenCache(*part[:2]), _GivenCache(*part[2:])) for part in parts]
        state = TransformerState(layers, attention_bias(for_heads(mask != 0), past[0]))
        state.length = past[0].shape[2]
        state.prefix_bias = state.src_bias.new_zeros(input_ids.shape[0], 1, state.length)
        return self.model.step(input_ids, state), *(part for layer in layers for part in layer.prefixes.all())


class _GivenCache(KeyValueCache):
    """Cache whose keys and values are inputs of a graph."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self._keys, self._values = keys, values

    def append(self, key: Tensor, value: Tensor) -> None:
        self._keys, self._values = torch.cat([self._keys, key], dim=2), torch.cat([self._values, value], dim=2)

    def all(self) -> tuple[Tensor, Tensor]:
        return self._keys, self._values


def write_graphs(model: Transformer, start: int, folder: Path) -> None:
    """Write both graphs of a model whose targets begin with the id `start` into an existing folder."""
    parts = [f"{side}.{part}" for side in ("decoder", "encoder") for part in ("key", "value")]
    names = [f"{layer}.{part}" for layer in range(len(model.decoder)) for part in parts]
    ours, theirs = ([f"present.{name}" for name in names if side in name] for side in ("decoder", "encoder"))
    # The lengths of the example all differ, and none is 0 or 1, which the exporter would take for constants; nor are
    # two inputs one tensor, which it would take for one input.
    ids, mask = torch.zeros(2, 7).long(), torch.ones(2, 7).long()
    heads = next(iter(model.decoder)).self_attention.num_heads
    past = [torch.zeros(2, heads, 5 if "decoder" in name else 7, model.output.in_features // heads) for name in names]
    auto: Any = torch.export.Dim.AUTO
    rows = {0: auto, 1: auto}
    _write(Graph(model), (ids, mask), (rows, rows), ["input_ids", "attention_mask"], theirs, folder / ENCODER)
    if model.zero_bos_embedding:  # in the example the position is not the first, where `step` does this
        model.tgt_embedding.register_forward_hook(lambda _, given, found: found * (given[0] != start)[..., None])
    inputs = ["input_ids", "encoder_attention_mask", *(f"past_key_values.{name}" for name in names)]
    dynamic = ({0: auto}, rows, [{0: auto, 2: auto}] * len(names))
    _write(Graph(model), (ids[:, :1], mask, past), dynamic, inputs, ["logits", *ours], folder / DECODER)


def _write(graph: nn.Module, example: Any, dynamic: Any, inputs: list[str], outputs: list[str], file: Path) -> None:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it reports missing packages
    with warnings.catch_warnings(action="ignore"):  # of torch about itself
        program: Any = torch.onnx.export(
            graph, example, input_names=inputs, output_names=outputs, dynamic_shapes=dynamic, dynamo=True, verbose=False
        )
        program.save(str(file))


class OnnxState:
    """Inputs of the decoder, except the tokens, for sentences with K hypotheses each."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs, self.beams = inputs, 1

    def select_beams(self, beams: Tensor) -> None:
        self._select(torch.arange(len(beams))[:, None] * self.beams + beams)
        self.beams = beams.shape[1]

    def select_sentences(self, sentences: Tensor) -> None:
        self._select(sentences[:, None] * self.beams + torch.arange(self.beams))

    def _select(self, rows: Tensor) -> None:
        self.inputs = {name: part[rows.flatten()] for name, part in self.inputs.items()}


class OnnxModel(Seq2SeqModel[Inputs, OnnxState]):
    """Model made of the graphs in a folder, run by onnxruntime on the CPU, for our searches."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(1))  # its device is that of the search
        session: Any = import_extra("onnxruntime", "onnx").InferenceSession
        self._encoder, self._decoder = (
            session(folder / n, providers=["CPUExecutionProvider"]) for n in (ENCODER, DECODER)
        )

    def encode(self, source: Source) -> Inputs:
        mask = source.mask.long()
        return {"encoder_attention_mask": mask, **_run(self._encoder, input_ids=source.values, attention_mask=mask)}

    def start(self, memory: Inputs, beam_size: int, max_length: int) -> OnnxState:
        shapes = {one.name: one.shape for one in self._decoder.get_inputs() if ".decoder." in one.name}
        rows = len(memory["encoder_attention_mask"])
        return OnnxState(memory | {name: torch.zeros(rows, size[1], 0, size[3]) for name, size in shapes.items()})

    def step(self, tokens: Tensor, state: OnnxState) -> Tensor:
        found = _run(self._decoder, input_ids=tokens.reshape(-1, 1), **state.inputs)
        logits = found.pop("logits")
        state.inputs = state.inputs | found
        return logits.view(*tokens.shape, -1)

    def forward(self, source: Source, tgt_in: Tensor) -> NoReturn:
        raise NotImplementedError("a graph computes one target position, and gives no attention weights")

    attention_weights = attention = forward


def _run(graph: Any, **inputs: Tensor) -> Inputs:
    """Run a graph; outputs that belong to the cache have the names of the inputs."""
    names = [one.name.replace("present", "past_key_values") for one in graph.get_outputs()]
    arrays = graph.run(None, {name: part.numpy() for name, part in inputs.items()})
    return dict(zip(names, map(torch.from_numpy, arrays), strict=True))


def export_onnx(
    run: RunFolder, src: Path | None = None, ref: Path | None = None, device: str = "auto", max_lines: int | None = None
) -> ExportedRun:
    """Write the run's model to RUN/export/onnx/, if onnxruntime gives the same translations as PyTorch.

    They are compared on the text of `export_ctranslate2`, with nmt's search. Raises `RunError` for a model that is no
    Transformer, and `ExportError` if the translations differ too much.
    """
    prepared = prepare(run, "ONNX", _require_packages, src, ref, device, max_lines)
    config, tokenizers, special = prepared.config, prepared.tokenizers, prepared.tokenizers.tgt.special
    folder = run.exports / "onnx"

    def translate(lines: Sequence[str], decoding: DecodingConfig) -> list[str]:
        engine = TorchEngine(OnnxModel(temporary).eval(), tokenizers)
        languages = (config.data.src_lang, config.data.tgt_lang)
        return Translator(tokenizers, engine, decoding, config.data.max_length, languages).translate(lines)

    with replacing(folder) as temporary:
        temporary.mkdir()
        write_graphs(prepared.model, special.start, temporary)
        shutil.copytree(run.tokenizer, temporary / "tokenizer")
        usage = (
            f"onnxruntime.InferenceSession runs {ENCODER}, and then {DECODER} once a piece; docs/exporting.md",
            f"ids: of tokenizer/; sources ... {tokenizers.src.special.eos}, targets {special.start} ... {special.eos}",
        )
        comparisons = verify(prepared, folder, greedy_and_beam(config.decoding), translate, is_exact=True)
        result = describe(run, folder, "onnx", usage, comparisons)
        write_json(temporary / "export.json", dataclasses.asdict(result))
    return result


def _require_packages() -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        import_extra(package, "onnx")

"""Runs with random weights and real SentencePiece models, for tests of exports."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import yaml
from conftest import RUN_CONFIG

from nmt.config.inference import TokenizerConfig
from nmt.models.transformer import Transformer
from nmt.runs.folder import RunFolder
from nmt.runs.weights import save_weights
from nmt.tokenizers.tokenizer import SentencePieceTokenizer, Tokenizers, WordTokenizer, save_tokenizers

WORDS = "ein mann schläft auf dem sofa und eine frau sitzt neben ihm im grünen park mit ihrem hund während es regnet"
LINES = 16


def text(count: int = LINES, seed: int = 0) -> list[str]:
    """Lines of 1 to 9 words, the last with what is seldom in text."""
    random = np.random.default_rng(seed)
    lines = [" ".join(random.choice(WORDS.split(), size=random.integers(1, 10))) for _ in range(count - 1)]
    return [*lines, "Ein 😀 „Mann“ ½ 北京 – e\u0301"]


def made_run(
    folder: Path,
    model: dict[str, object],
    joint: bool = True,
    words: bool = False,
    biased: bool = True,
    tags: Sequence[str] = (),
) -> RunFolder:
    """`folder`/runs/made: a random model, whose outputs are no special pieces, and a validation set of `LINES`."""
    for name, seed in (("val.en", 0), ("val.de", 1)):
        (folder / name).write_text("".join(f"{line}\n" for line in text(seed=seed)), encoding="utf-8")
    settings = yaml.safe_load(RUN_CONFIG)
    settings["data"]["validation"] = {"src": str(folder / "val.en"), "tgt": str(folder / "val.de")}
    settings["tokenizer"] = {"type": "word" if words else "bpe", "vocab_size": 310, "joint": joint, "tags": [*tags]}
    settings["model"] |= {
        "num_decoder_layers": 2,
        "max_positions": 320,
        "tie_embeddings": "none",
        **({} if model.get("preset") == "marian" else {"layout": "marianmt-own-start" if biased else "nmt"}),
    } | model
    settings["data"]["max_length"] = 60
    settings["decoding"] = {"beam_size": 4, "max_length": 30}
    run = RunFolder(folder / "runs" / "made")
    run.path.mkdir(parents=True)
    run.config_file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    tokenizers = made_tokenizers(TokenizerConfig(**settings["tokenizer"]))
    save_tokenizers(tokenizers, run.tokenizer, "")
    save_weights(random_model(run, tokenizers), run.model_file)
    return run


def made_tokenizers(config: TokenizerConfig) -> Tokenizers:
    """Trained on `text`; two if they are not to be joint."""
    kind = WordTokenizer if config.type == "word" else SentencePieceTokenizer
    src = kind.train(text(200, seed=2), config)
    return Tokenizers(src, src if config.joint else kind.train(text(200, seed=3)[::2], config))


def random_model(run: RunFolder, tokenizers: Tokenizers) -> Transformer:
    """No parameter has its initial value; special pieces and bytes have almost no probability, and `</s>` a high one,
    since outputs of random models are else endless.
    """
    torch.manual_seed(0)
    config, special = run.inference_config().model, tokenizers.tgt.special
    model = Transformer(config, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.25 * torch.randn_like(parameter)
        if config.family.zero_bos_embedding:
            for table in (model.src_embedding.weight, model.tgt_embedding.weight, model.output.weight):
                table[special.pad] = 0
        if not config.family.output_bias:
            return model
        model.output.bias[[special.pad, special.start, special.unk, *tokenizers.tgt.byte_ids]] = -30.0
        model.output.bias[special.eos] += 5.5
    return model

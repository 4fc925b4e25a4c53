"""The summary of a training that is printed before its first step."""

from typing import Any

import torch

from nmt.batches.batches import Plan, share_of_real_positions
from nmt.batches.mixture import describe_mixture
from nmt.cleaning.selection import table
from nmt.config.training import Config, TrainingConfig
from nmt.evaluation.metrics import bleu_tokenizer
from nmt.models.interface import TrainableModel
from nmt.runs.folder import RunFolder
from nmt.system.console import log
from nmt.system.devices import bf16_slowdown
from nmt.training.preparation import Prepared
from nmt.training.stopping import total_steps


def announce(
    config: Config, run: RunFolder, prepared: Prepared, model: TrainableModel[Any, Any], plan: Plan, memory: str
) -> None:
    """Print the summary; `plan` is the current epoch's, `memory` describes the memory for the worst batch."""
    data, settings, corpus, tokenizers = config.data, config.training, prepared.corpus, prepared.tokenizers
    src_size, tgt_size = tokenizers.src.vocab_size, tokenizers.tgt.vocab_size
    sizes = f"joint, {src_size:,} pieces" if tokenizers.joint else f"{src_size:,} and {tgt_size:,} pieces"
    if config.source.type != "text":
        sizes = f"{tgt_size:,} pieces for the target; the sources are {config.source.as_read()}"
    counts = model.parameter_counts()
    parts = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    threads = f" ({torch.get_num_threads()} threads)" if prepared.device.type == "cpu" else ""
    limits = {"steps": settings.max_steps, "epochs": settings.max_epochs, "minutes": settings.max_minutes}
    num_frozen = sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)
    frozen = f"; {', '.join(settings.freeze)} frozen, {num_frozen:,} parameters" if settings.freeze else ""
    cut = f"; cut into {settings.parts} parts each" if settings.parts > 1 else ""
    tokenizer = bleu_tokenizer(data.tgt_lang, config.evaluation.bleu_tokenizer)
    kept, cleaning = str(corpus.counts), ""
    if prepared.selection is not None and corpus.counts.left_out:
        kept = f"{corpus.counts.kept:,} of {corpus.counts.read:,} pairs"
        cleaning = "\ncleaning    ".join(table(corpus.counts)) + f"\n            examples: {run.cleaning_file}"
    lines = {
        "run": str(run.path),
        "data": f"{data.src_lang} -> {data.tgt_lang}: training {kept}, "
        f"validation {len(prepared.validation.src):,} pairs",
        "cleaning": cleaning,
        "mixture": describe_mixture(corpus.sizes, data),
        "starts from": f"{settings.init_from}{frozen}" if settings.init_from is not None else "",
        "vocabulary": f"{config.tokenizer.type}, {sizes}",
        "model": f"{sum(counts.values()):,} parameters ({parts})",
        "device": f"{prepared.device}{threads}, {str(prepared.dtype).removeprefix('torch.')}",
        "memory": memory,
        "batches": f"{len(plan):,} an epoch, {settings.batches_per_update} an update, at most "
        f"{settings.micro_batch_tokens:,} tokens each, {share_of_real_positions(corpus, plan):.1%} of them real{cut}",
        "scores": f"BLEU's tokenizer is {tokenizer}, for {data.tgt_lang}",
        "average": f"exponential, decay {settings.ema_decay:g}" if settings.ema_decay is not None else "",
        "until": " or ".join(f"{limit:,} {unit}" for unit, limit in limits.items() if limit is not None),
    }
    for name, text in lines.items():
        if text:
            log.info(f"{name:11} {text}")
    warn_of_warmup(settings, total_steps(settings, len(plan)))
    is_bf16_on_a_cpu = prepared.device.type == "cpu" and prepared.dtype == torch.bfloat16
    if is_bf16_on_a_cpu and (slowdown := bf16_slowdown()) >= 2:  # less may be chance
        log.warning(
            f"this CPU has no instructions for bf16: a matrix product takes {slowdown:.0f} times as long as in fp32; "
            f"stop (Ctrl-C), and start over with --set training.precision=fp32 --fresh"
        )


def warn_of_warmup(settings: TrainingConfig, steps: float | None) -> None:
    """Warn if a training of `steps` updates (None: unknown) ends before its warm-up does."""
    if steps is not None and steps <= settings.warmup_steps:
        log.warning(
            f"the learning rate never reaches its peak: training.warmup_steps is {settings.warmup_steps:,}, of "
            f"{steps:,.0f} steps in all; lower it"
        )

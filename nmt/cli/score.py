"""`nmt score`."""

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmt.cli import options
from nmt.config.corpus import CorpusFiles
from nmt.runs import open_runs

if TYPE_CHECKING:  # imported when the command runs
    from nmt.decoding.scoring import ScoredPair, Totals


def score(
    src: Annotated[Path, typer.Option(metavar="FILE", help="Sources, a line each; or vectors, or a list of images.")],
    tgt: Annotated[Path, typer.Option(metavar="FILE", help="Their translations, a line each.")],
    tokens: Annotated[bool, typer.Option("--tokens", help="Print the log-probability of each piece, too.")] = False,
    models: options.ModelsOption = None,
    engine: options.EngineOption = None,
    device: options.DeviceOption = None,
    precision: options.PrecisionOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Print the log-probability of each given translation, and the perplexity of all.

    They are the model's own, without the constraints of a search. With several models, each --model RUN, their
    probabilities are averaged.
    """
    from nmt.data.corpus import count_pairs
    from nmt.decoding.scoring import Totals, load_scorer, pairs_to_score

    files, source = CorpusFiles(src=src, tgt=tgt), open_runs(models)[0].inference_config().source
    if source.type == "text" and not (src.is_fifo() or tgt.is_fifo()):  # which can be read only once
        count_pairs([files])  # a mistake is reported before anything is scored
    scorer = load_scorer(models, device or "auto", engine or "auto", precision, own_process=True)
    totals = Totals()
    for pair in scorer.stream(pairs_to_score(files, source)):
        totals.add(pair)
        line = json.dumps(_object(pair, tokens), ensure_ascii=False) if as_json else _line(pair, tokens)
        sys.stdout.buffer.write(f"{line}\n".encode())
    _print_totals(totals, as_json)


def _line(pair: "ScoredPair", tokens: bool) -> str:
    pieces = zip(pair.tokens, pair.log_probs, strict=True) if tokens else ()
    return "\t".join([f"{pair.log_prob:.4f}", *(f"{piece} {log_prob:.4f}" for piece, log_prob in pieces)])


def _object(pair: "ScoredPair", tokens: bool) -> dict[str, Any]:
    log_prob = round(pair.log_prob, 6) if pair.tokens else None
    found: dict[str, Any] = {"log_prob": log_prob, "num_tokens": len(pair.tokens)}
    if tokens:
        found["tokens"] = list(pair.tokens)
        found["log_probs"] = [round(one, 6) for one in pair.log_probs]
    return found


def _print_totals(totals: "Totals", as_json: bool) -> None:
    """The sums: in JSON the last line of standard output, else on standard error."""
    perplexity = totals.perplexity
    if as_json:
        summary = {
            "pairs": totals.pairs,
            "not_scored": totals.not_scored,
            "num_tokens": totals.tokens,
            "log_prob": round(totals.log_prob, 6),
            "perplexity": None if math.isnan(perplexity) else round(perplexity, 6),
        }
        print(json.dumps(summary))
        return
    print(
        f"{totals.pairs:,} pairs, {totals.tokens:,} tokens with </s>: log-probability {totals.log_prob:.2f}, "
        f"{totals.log_prob / max(1, totals.tokens):.4f} a token, perplexity {perplexity:.4f}"
        + (f"; {totals.not_scored:,} too long and not scored" if totals.not_scored else ""),
        file=sys.stderr,
    )

"""`nmt score`."""

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from nmt.cli import options
from nmt.runs.folder import open_runs
from nmt.system.console import RESULT, log

if TYPE_CHECKING:  # imported when the command runs
    from nmt.decoding.hypothesis import ScoredTokens
    from nmt.decoding.scoring import Totals


def score(
    corpora: options.CorporaArgument = None,
    src: Annotated[Path | None, Option(metavar="FILE", help="Sources: text, vectors or a list of images.")] = None,
    tgt: Annotated[Path | None, Option(metavar="FILE", help="Translations of --src, a line each.")] = None,
    tokens: Annotated[bool, Option("--tokens", help="Also print the log-probability of each piece.")] = False,
    models: options.ModelsOption = None,
    engine: options.EngineOption = None,
    device: options.DeviceOption = None,
    precision: options.PrecisionOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Print the log-probability of each given translation, and the perplexity of all.

    Scores are the model's own, without the constraints of a search. Several models (--model, repeated) form an
    ensemble.
    """
    from nmt.corpora.pairs import count_pairs
    from nmt.decoding.scoring import Totals, files_to_score, load_scorer, pairs_to_score

    config = open_runs(models)[0].inference_config()
    files = files_to_score(corpora or (), src, tgt, config)
    is_read_once = any(path.is_fifo() for one in files for path in (one.src_file, one.tgt_file))
    if config.source.type == "text" and not is_read_once:
        count_pairs(files)  # a mistake is reported before anything is scored
    scorer = load_scorer(models, device or "auto", engine or "auto", precision, own_process=True)
    totals = Totals()
    for pair in scorer.stream(pair for one in files for pair in pairs_to_score(one, config.source)):
        totals.add(pair)
        line = json.dumps(_object(pair, tokens), ensure_ascii=False) if as_json else _line(pair, tokens)
        sys.stdout.buffer.write(f"{line}\n".encode())
    _print_totals(totals, as_json)


def _line(pair: "ScoredTokens", tokens: bool) -> str:
    pieces = zip(pair.tokens, pair.log_probs, strict=True) if tokens else ()
    return "\t".join([f"{pair.log_prob:.4f}", *(f"{piece} {log_prob:.4f}" for piece, log_prob in pieces)])


def _object(pair: "ScoredTokens", tokens: bool) -> dict[str, Any]:
    log_prob = round(pair.log_prob, 6) if pair.tokens else None
    return {"log_prob": log_prob, "num_tokens": len(pair.tokens), **(pair.to_json() if tokens else {})}


def _print_totals(totals: "Totals", as_json: bool) -> None:
    """Print the sums: as the last line of standard output in JSON, otherwise on standard error."""
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
    log.info(
        f"{totals.pairs:,} pairs, {totals.tokens:,} tokens with </s>: log-probability {totals.log_prob:.2f}, "
        f"{totals.log_prob / max(1, totals.tokens):.4f} a token, perplexity {perplexity:.4f}"
        + (f"; {totals.not_scored:,} too long and not scored" if totals.not_scored else ""),
        extra=RESULT,
    )

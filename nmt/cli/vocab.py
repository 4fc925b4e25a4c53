"""`nmt vocab`."""

import dataclasses
import json

from nmt.cli.options import ConfigArgument, JsonOption, NameOption, SetOption, configured_run
from nmt.system.console import show


def vocab(
    file: ConfigArgument = None, overrides: SetOption = None, name: NameOption = None, as_json: JsonOption = False
) -> None:
    """Build the vocabulary of a run, and report how well it covers the validation set."""
    settings, run = configured_run("vocab", file, overrides, name)
    from nmt.cleaning.holdout import with_hold_outs
    from nmt.corpora.tmx_cache import with_parsed_tmx
    from nmt.tokenizers.statistics import vocabulary_report

    settings = with_hold_outs(with_parsed_tmx(settings))
    report, tokenizer = vocabulary_report(settings, run), settings.tokenizer
    if as_json:
        print(json.dumps({side: dataclasses.asdict(of_side) for side, of_side in report.items()}))
        return
    show(f"{tokenizer.type}{', joint' if tokenizer.joint and len(report) > 1 else ''}, in {run.tokenizer}")
    for side, of_side in report.items():
        show(
            f"{side} ({of_side.language}): {of_side.vocab_size:,} pieces; on the validation set "
            f"{of_side.pieces_per_word:.2f} pieces a word, {of_side.characters_per_piece:.2f} characters a piece, "
            f"{of_side.unknown_share:.2%} <unk>, {of_side.byte_share:.2%} bytes\n"
            f"  its first line: {' '.join(of_side.first_line)}"
        )

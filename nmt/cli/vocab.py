"""`nmt vocab`."""

from nmt.cli.options import ConfigArgument, JsonOption, NameOption, SetOption, configured_run, show_result


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
    head = f"{tokenizer.type}{', joint' if tokenizer.joint and len(report) > 1 else ''}, in {run.tokenizer}"
    sides = (
        f"{side} ({one.language}): {one.vocab_size:,} pieces; on the validation set {one.pieces_per_word:.2f} pieces a "
        f"word, {one.characters_per_piece:.2f} characters a piece, {one.unknown_share:.2%} <unk>, "
        f"{one.byte_share:.2%} bytes\n  its first line: {' '.join(one.first_line)}"
        for side, one in report.items()
    )
    show_result(as_json, report, [head, *sides], link=run.tokenizer)

"""The pure parts of the scripts behind docs/tutorials/attention.md."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sacrebleu
import torch

from nmt.config.inference import RnnConfig, TransformerConfig
from nmt.insight.systems import Output, System, TranslatedSet
from nmt.models.factory import build_model

REPOSITORY = Path(__file__).parents[2]


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script, lengths = load_script("what_attention_bought"), load_script("sequence_lengths")


def test_quarters_are_of_equal_size_and_in_the_order_of_length() -> None:
    sizes = [7, 3, 3, 12, 9, 3, 5, 8, 20, 4]
    parts = script.quarters(sizes)
    assert sorted(position for part in parts for position in part) == list(range(10))
    assert [len(part) for part in parts] == [2, 3, 2, 3]
    assert [size for part in parts for size in sorted(sizes[position] for position in part)] == sorted(sizes)
    assert parts[0] == [1, 2]  # of equal lengths, the earlier lines


def test_the_score_of_a_quarter_is_sacrebleus_of_these_lines() -> None:
    references = ["Ein Hund rennt über die Wiese .", "Zwei Kinder spielen im Park .", "Eine Frau liest ein Buch ."]
    hypotheses = ["Ein Hund rennt über eine Wiese .", "Kinder spielen im Park .", "ein Mann schläft ."]
    systems = (System("a", (Output("a", hypotheses),)), System("b", (Output("b", references),)))
    test_set = TranslatedSet("test", references, [references], systems)
    expected = sacrebleu.corpus_bleu(hypotheses[:2], [references[:2]]).score
    assert 0 < expected < 100
    assert script.bleu_of(test_set, [0, 1]) == pytest.approx([expected, 100])


def test_gains_compare_each_model_with_the_one_before() -> None:
    rows = script.gains("test", [[10, 21, 20.5, 24.04]]).splitlines()[2:]
    assert [row.split(" | ")[1].rstrip(" |") for row in rows] == ["+11.0", "-0.5", "+3.5", "+14.0"]


@pytest.mark.parametrize(
    ("line", "square", "expected"),
    [
        ([2, 4, 8], [0.8, 3.2, 12.8], 25),  # 0.2 n and 0.008 n^2
        ([2, 4, 8], [1, 2, 7.9], None),
        ([2, 4, 8], [3, 5, 9], 10),  # from the first length on
        ([2, 4, 8, 16], [1, 4.1, 7.9, 64], 40.2),  # a crossing and back, by noise, is not the last one
    ],
)
def test_where_a_square_crosses_a_line(line: list[float], square: list[float], expected: float | None) -> None:
    sizes = (10, 20, 40, 80)
    crossing = lengths.crossing(dict(zip(sizes, line, strict=False)), dict(zip(sizes, square, strict=False)))
    assert crossing == (None if expected is None else pytest.approx(expected, rel=0.02))


def test_only_lengths_that_both_have_are_compared() -> None:
    assert lengths.crossing({10: 2.0, 20: 4.0}, {10: 1.0, 20: 3.0, 40: 1000.0}) is None
    assert lengths.crossing({10: 2.0, 20: 4.0, 40: 0.1}, {10: 1.0, 20: 3.0}) is None


@pytest.fixture(scope="module")
def transformer() -> Any:
    torch.manual_seed(1)
    config = TransformerConfig(d_model=16, num_heads=2, d_ff=32, num_encoder_layers=2, num_decoder_layers=1)
    return build_model(config, 30, 30).double().eval()


def test_a_transformer_without_positions_does_not_see_the_order(transformer: Any) -> None:
    ids, permutation = torch.arange(4, 12)[None], torch.tensor([3, 0, 7, 1, 6, 2, 5, 4])
    assert script.order_difference(transformer, ids, permutation) > 0.1
    rnn = build_model(RnnConfig(d_embedding=16, d_model=16, attention="dot"), 30, 30).double().eval()
    assert script.order_difference(rnn, ids, permutation) > 0.1
    assert script.order_difference(script.without_source_positions(transformer), ids, permutation) < 1e-6


def test_shuffled_lines_have_the_same_words_each_time() -> None:
    lines = ["a b c d e f g h", "one", ""]
    mixed = script.shuffled(lines)
    assert [sorted(line) for line in mixed] == [sorted(line) for line in lines]
    assert mixed[0] != lines[0]
    assert mixed == script.shuffled(lines)


def test_a_table_takes_its_place_on_the_page() -> None:
    page = "# Title\n<!-- a -->\nold\n<!-- /a -->\nbetween\n<!-- b -->\nkept\n<!-- /b -->\n"
    assert script.filled(page, "a", "new") == page.replace("old", "new")
    with pytest.raises(SystemExit, match=r"^the page needs one line <!-- c -->"):
        script.filled(page, "c", "new")


def test_a_table_of_lengths_leaves_out_what_was_not_run() -> None:
    series = [
        lengths.Series("training", "no attention", {10: 0.001, 20: 0.002}, {10: 0.2, 20: 30.0}),
        lengths.Series("training", "Transformer", {5: 0.0002, 10: 0.0005}, {5: 0.4, 10: 2.0}),
    ]
    assert lengths.table(series[:1], "training").splitlines()[2:] == [
        "| no attention, ms | 1.0 | 2.0 | x 2.0 |",
        "| no attention, MB | < 1 | 30 |  |",
    ]
    of_both = lengths.table(series, "training").splitlines()
    assert of_both[3] == "| Transformer, ms | 0.2 | 0.5 | - | x 2.5 |"
    assert of_both[5] == "| Transformer, MB | < 1 | 2.0 | - |  |"


@pytest.mark.slow
def test_the_memory_of_a_work_is_measured_in_a_process_of_its_own() -> None:
    """200 million bytes, less those of the shorter length."""
    program = (
        "import torch, sequence_lengths as script\n"
        "print(script._peak_bytes(lambda length: torch.ones(length * 250_000), 200, 8))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY / "scripts", stdout=subprocess.PIPE, text=True, check=True
    )
    assert 180e6 < int(done.stdout) < 210e6

"""`nmt compare`: systems from runs and files, what differs between them, and the page."""

import dataclasses
import json
import math
import re
import shutil
import statistics
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Browser
from conftest import Cli, Screen
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from test_evaluation import SENTENCES, corrupted, sacrebleu_command

from nmt.config.source import TEXT
from nmt.config.training import EvaluationConfig
from nmt.corpora.pairs import Side
from nmt.evaluation.buckets import SourceLengths
from nmt.evaluation.stored import stored_hypotheses
from nmt.insight.comparison import changed_words, compare
from nmt.insight.comparison_output import comparison_text, marked, write_page
from nmt.insight.systems import (
    ComparedFiles,
    Material,
    Output,
    Sources,
    System,
    Trainings,
    TranslatedSet,
    read_material,
)
from nmt.insight.verdict import gap_exceeds_spread
from nmt.runs.folder import RunFolder
from nmt.runs.history import History, Validation
from nmt.system.console import show

WriteLines = Callable[[str, list[str]], Path]
TRUTH = [f"{line} ({number})" for number in range(6) for line in SENTENCES["de"]]
NEAR, FAR = corrupted(TRUTH, seed=1), corrupted(corrupted(TRUTH, seed=2), seed=3)
OTHER_WORDS = (
    [line.replace("Mädchen", "Kind") for line in NEAR],
    [
        line.replace("Hund", "Ball").replace("Männer", "Frauen") if number < 12 else line
        for number, line in enumerate(FAR)
    ],
)
WORDS = st.lists(st.sampled_from("abc"), max_size=6)
SENTENCE_PAIRS = st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=4)


@pytest.fixture
def two_runs(tmp_path: Path, solved: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The solved run, not evaluated, and one with noise in its weights, in a folder of their own."""
    folder = tmp_path / "runs"
    for name in ("copy", "worse"):
        shutil.copytree(solved / "runs" / "copy", folder / name, ignore=shutil.ignore_patterns("evaluation", "export"))
        config = folder / name / "config.yaml"
        config.write_text(config.read_text().replace(str(solved), str(tmp_path)))
    for path in solved.glob("*.??"):
        shutil.copy(path, tmp_path)
    weights = folder / "worse" / "model.safetensors"
    save_file(
        {name: value.roll(1, 0) * 0.8 if value.dim() == 1 else value for name, value in load_file(weights).items()},
        weights,
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def material(*systems: tuple[list[str], ...], src: list[str] | None = None, train: tuple[Side, ...] = ()) -> Material:
    """German systems, each with the outputs of its seeds."""
    named = [
        System(f"system {number}", tuple(Output(f"{number}.{seed}", lines) for seed, lines in enumerate(outputs, 1)))
        for number, outputs in enumerate(systems)
    ]
    sources = None if src is None else Sources(src, SourceLengths.of(src, TEXT, "en"))
    return Material(
        (TranslatedSet("set", sources, [TRUTH], tuple(named)),), "de", EvaluationConfig(), train, Trainings((), {}, ())
    )


def test_it_ends_with_the_next_commands(two_runs: Path, cli: Cli) -> None:
    code, _, err = cli("compare", "copy", "runs/worse", "--samples", "2")
    assert code == 0, err
    page, seeds = err.partition("next:\n")[2].splitlines()
    assert page.endswith("--output compare.html --open")
    assert seeds.endswith("nmt compare copy,copy-2 runs/worse,worse-2")
    code, _, err = cli("compare", "--hyp", "val.de", "--hyp", "val.de", "--ref", "val.de", "--output", "a.html")
    assert (code, err) == (0, "wrote a.html\n")


def test_two_runs_are_translated_once_and_scored_as_sacrebleus_command_does(two_runs: Path, cli: Cli) -> None:
    code, out, err = cli("compare", "copy", "worse", "--json", "--samples", "50", "--output", "compare.html")
    assert code == 0
    assert [line for line in err.splitlines() if "translating" in line] == [
        "runs/copy: translating test", "runs/worse: translating test"
    ]  # fmt: skip
    result = json.loads(out)
    (test_set,) = result["test_sets"]
    assert (test_set["name"], test_set["num_lines"], result["test"], result["samples"]) == ("test", 50, "bs", 50)
    for system in test_set["systems"]:
        (output,) = system["outputs"]
        shown = sacrebleu_command(
            two_runs / "runs" / output["name"] / "evaluation" / "test.hyp", [two_runs / "test.de"]
        )
        for tested in output["scores"].values():
            expected = shown[tested["score"]["name"]]
            assert round(tested["score"]["value"], 6) == expected["score"]
            assert tested["score"]["signature"] == expected["signature"]
    scores = [system["outputs"][0]["scores"]["bleu"] for system in test_set["systems"]]
    assert scores[0]["score"]["value"] > scores[1]["score"]["value"]
    assert scores[1]["difference"] == scores[1]["score"]["value"] - scores[0]["score"]["value"]
    assert scores[0]["p"] is None
    assert 1 / 51 <= scores[1]["p"] < 0.2
    assert "worse compared with copy" in (two_runs / "compare.html").read_text(encoding="utf-8")

    again = cli("compare", "copy", "worse", "--samples", "50")
    assert "translating" not in again[2]
    assert re.search(r"^worse +\d+\.\d\d +\d+\.\d\d–\d+\.\d\d +-\d+\.\d\d  p 0\.\d\d\d ", again[1], re.MULTILINE)
    assert "nothing about seeds" in again[1]


@pytest.mark.slow
def test_translations_are_made_again_where_they_would_not_be_the_same(two_runs: Path, cli: Cli) -> None:
    """Other weights, other search settings, other sources, a file that was cut; but not another batch size."""
    arguments = ("compare", "copy", "worse", "--samples", "2")
    assert "translating" in cli(*arguments)[2]
    assert cli("eval", "--model", "copy", "--beam-size", "1")[0] == 0
    assert "translating" not in cli(*arguments)[2]
    config = two_runs / "runs/copy/config.yaml"
    config.write_text(config.read_text().replace("beam_size: 3", "beam_size: 1"))
    assert "translating" not in cli(*arguments)[2]  # as configured now
    config.write_text(config.read_text().replace("beam_size: 1", "beam_size: 2"))
    assert "copy: translating test" in cli(*arguments)[2]
    config.write_text(config.read_text().replace("beam_size: 2", "beam_size: 3"))  # as that of the other
    shutil.copy("runs/worse/model.safetensors", "runs/copy/model.safetensors")
    _, out, err = cli(*arguments)
    assert "copy: translating test" in err
    assert "worse against copy: 0 lines differ" in out
    hypotheses = two_runs / "runs/copy/evaluation/test.hyp"
    hypotheses.write_text("".join(hypotheses.read_text().splitlines(keepends=True)[:-1]))
    assert "copy: translating test" in cli(*arguments)[2]
    config.write_text(config.read_text().replace("batch_tokens: 2048", "batch_tokens: 512"))
    assert "translating" not in cli(*arguments)[2]
    for side in ("en", "de"):
        path = two_runs / f"test.{side}"
        path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    assert cli(*arguments)[2].count("translating test") == 2


def test_translations_of_other_weights_are_not_used(two_runs: Path, cli: Cli) -> None:
    assert cli("eval", "--model", "copy")[0] == 0
    run = RunFolder(Path("runs/copy"))
    stored = stored_hypotheses(run, Side(Path("test.en")))
    assert stored == (run.evaluation / "test.hyp").read_text().splitlines()
    shutil.copy("runs/worse/model.safetensors", run.model_file)
    assert stored_hypotheses(run, Side(Path("test.en"))) is None


def test_a_comparison_leaves_a_runs_scores_as_configured(two_runs: Path, cli: Cli) -> None:
    def stored() -> Any:
        return json.loads(Path("runs/copy/evaluation/test.json").read_text())["scores"]

    assert cli("compare", "copy", "worse", "--tgt-lang", "zh", "--samples", "2")[0] == 0
    by_comparison = stored()
    shutil.rmtree("runs/copy/evaluation")
    assert cli("eval", "--model", "copy")[0] == 0
    assert by_comparison == stored()


def test_a_comparison_by_the_options_of_eval(two_runs: Path, cli: Cli) -> None:
    """Metrics, tokenizer and case as sacreBLEU's command takes them; the engine and device are those that translate."""
    scoring = ("--metric", "chrf++", "--metric", "bleu", "--bleu-tokenizer", "char", "--lowercase")
    shouted = Path("test.de").read_text().replace("1", "A").replace("2", "a")
    Path("shouted.de").write_text(shouted)
    files = ("--hyp", "test.de", "--hyp", "shouted.de", "--ref", "shouted.de", *scoring)
    (of_files,) = json.loads(cli("compare", *files, "--samples", "2", "--json")[1])["test_sets"]
    options = ["-lc", "-tok", "char", "--chrf-lowercase", "--chrf-word-order", "2"]
    shown = sacrebleu_command(Path("test.de"), [Path("shouted.de")], *options)
    scores = of_files["systems"][0]["outputs"][0]["scores"]
    assert list(scores) == ["chrf++", "bleu"]
    for one in (tested["score"] for tested in scores.values()):
        expected = shown[one["name"]]
        assert (round(one["value"], 6), one["signature"]) == (expected["score"], expected["signature"])

    command = ("compare", "copy", "worse", "--samples", "2", "--device", "cpu", *scoring)
    assert cli("export", "ctranslate2", "--model", "copy", "--quantization", "float32")[0] == 0
    for engine, name in (("auto", "ctranslate2, float32"), ("torch", "torch")):
        code, _, err = cli(*command, "--engine", engine)
        assert code == 0, err
        found = [json.loads(path.read_text()) for path in Path("runs/copy/evaluation").glob("test*.json")]
        assert name in [one["engine"] for one in found if one["requested_engine"] == engine]


def test_the_settings_that_differ_between_runs(two_runs: Path) -> None:
    config = two_runs / "runs/worse/config.yaml"
    text = config.read_text().replace("beam_size: 3", "beam_size: 2").replace("seed: 1\n", "seed: 7\n")
    config.write_text(text.replace("html: false", "html: true"))
    trainings = Trainings.of([RunFolder(Path("runs/copy")), RunFolder(Path("runs/worse"))], ["copy", "worse"])
    assert trainings.settings == {
        "data.cleaning.html": ["false", "true"], "decoding.beam_size": ["3", "2"], "training.seed": ["1", "7"]
    }  # fmt: skip
    assert trainings.histories[0].validations == trainings.histories[1].validations != ()


def test_the_same_translations_are_not_called_different(write_lines: WriteLines, cli: Cli) -> None:
    names = [str(write_lines(name, lines)) for name, lines in (("a.de", NEAR), ("b.de", NEAR), ("ref.de", TRUTH))]
    systems = ("--hyp", names[0], "--hyp", names[1], "--ref", names[2])
    code, out, err = cli("compare", *systems)
    assert code == 0, err
    assert len(re.findall(r"^b\.de +\d+\.\d\d +\d+\.\d\d–\d+\.\d\d +\+0\.00  same ", out, re.MULTILINE)) == 3
    assert "b.de against a.de: 0 lines differ" in out
    assert "p 0." not in out
    (test_set,) = json.loads(cli("compare", *systems, "--json", "--test", "ar", "--samples", "20")[1])["test_sets"]
    assert [tested["p"] for tested in test_set["systems"][1]["outputs"][0]["scores"].values()] == [None] * 3


def test_the_comparison_on_a_terminal(
    screen: Screen, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = [f"{line} {' '.join(TRUTH[:4])}" for line in TRUTH]
    compared = compare(material((NEAR, NEAR), (FAR, FAR), src=long), samples=40)
    show(comparison_text(compared))
    out = capsys.readouterr().out
    words = {word for line in screen.lines(out) for word in line.split()}
    monkeypatch.delenv("FORCE_COLOR")
    piped = comparison_text(compared).plain
    assert max(map(len, piped.splitlines())) > screen.width  # sentences are whole
    assert [word for word in words - {*piped.split()} if "-" not in word] == []
    assert re.search(r"\x1b\[1m *\d\d\.\d\d", out)  # the best
    assert ("\x1b[31mp 0.0" in out) == screen.has_color
    assert "p 0.0" in piped


def test_swapped_systems_mirror_each_other() -> None:
    forth, back = (
        compare(material(*order), samples=20).test_sets[0] for order in (((NEAR,), (FAR,)), ((FAR,), (NEAR,)))
    )
    one, other = forth.differences[0], back.differences[0]
    assert one.num_changed == other.num_changed == sum(a != b for a, b in zip(NEAR, FAR, strict=True))
    assert [sentence.line for sentence in one.sentences] == [sentence.line for sentence in other.sentences]
    assert [sentence.scores for sentence in one.sentences] == [sentence.scores[::-1] for sentence in other.sentences]
    for kind in ("right", "superfluous", "missing"):
        for more, less in ((one, other), (other, one)):
            mirrored = [
                dataclasses.replace(word, counts=word.counts[::-1]) for word in less.words[f"{kind} less often"]
            ]
            assert [*more.words[f"{kind} more often"]] == mirrored
    for first, second in zip(forth.buckets, back.buckets, strict=True):
        assert [*first.rows] == [row[::-1] for row in second.rows]
    for metric in ("bleu", "chrf", "ter"):
        assert forth.systems[1].outputs[0].scores[metric].p == back.systems[1].outputs[0].scores[metric].p
        assert forth.systems[1].seeds[metric].gap == -back.systems[1].seeds[metric].gap


def test_every_table_holds_the_whole_set(write_lines: WriteLines) -> None:
    train = write_lines("train.de", SENTENCES["de"][:2] * 3 + ["Ball, Ball"])
    (test_set,) = compare(material((NEAR,), (FAR,), src=TRUTH, train=(Side(train),)), samples=2).test_sets
    by_source, by_difference, by_score, by_frequency = test_set.buckets
    for table in (by_source, by_difference, by_score):
        assert [sum(row[system].count for row in table.rows) for system in (0, 1)] == [len(TRUTH)] * 2
    assert [row[0].label for row in by_source.rows] == ["below 10", "10 to 19"]
    bleu = {row[0].label: row[0] for row in by_source.rows}
    short = [number for number, line in enumerate(TRUTH) if len(line.split()) < 10]
    alone = sacrebleu_command(
        write_lines("hyp.de", [NEAR[line] for line in short]), [write_lines("ref.de", [TRUTH[line] for line in short])]
    )
    assert bleu["below 10"].count == len(short)
    assert round(bleu["below 10"].score or 0, 6) == alone["BLEU"]["score"]
    whole = sacrebleu_command(write_lines("hyp.de", NEAR), [write_lines("ref.de", TRUTH)])["BLEU"]
    assert f"ref_len = {sum(row[0].count for row in by_frequency.rows)})" in whole["verbose_score"]


def test_seeds_by_hand() -> None:
    better = [corrupted(TRUTH, seed=10 + number) for number in range(3)]
    worse = [corrupted(corrupted(corrupted(TRUTH, seed=20 + number), seed=5), seed=6) for number in range(2)]
    (test_set,) = compare(material(tuple(worse), tuple(better), (worse[1],)), samples=2).test_sets
    for metric in ("bleu", "ter"):
        values = [[output.scores[metric].score.value for output in system.outputs] for system in test_set.systems]
        base, several, single = (system.seeds[metric] for system in test_set.systems)
        assert [len(system.outputs) for system in test_set.systems] == [2, 3, 1]
        assert several.mean == pytest.approx(sum(values[1]) / 3)
        assert several.deviation == pytest.approx(
            math.sqrt(sum((value - several.mean) ** 2 for value in values[1]) / 2)
        )
        assert (several.low, several.high) == (min(values[1]), max(values[1]))
        assert several.gap == pytest.approx(statistics.fmean(values[1]) - statistics.fmean(values[0]))
        assert several.result == "better"
        assert (base.gap, base.result) == (0, "equal")
        assert single.deviation is None
        assert single.result == "not judged"


@pytest.mark.parametrize(("count", "once_in"), [(2, 5), (3, 20), (5, 400)])
def test_how_often_chance_exceeds_the_spread(count: int, once_in: int) -> None:
    """As docs/comparing.md says: for two systems whose scores have the same normal distribution."""
    draws = np.random.default_rng(0).normal(size=(8000, 2, count)).tolist()
    share = statistics.fmean(gap_exceeds_spread(before, after) for before, after in draws)
    assert share == pytest.approx(1 / once_in, rel=0.15 if count < 5 else 0.4)


@settings(max_examples=40)
@given(SENTENCE_PAIRS)
def test_words_and_ngrams_by_brute_force(triples: list[tuple[list[str], list[str], list[str]]]) -> None:
    """Counted one occurrence at a time, each crossed out of the reference when it has been found."""
    baseline, other, references = ([triple[side] for triple in triples] for side in range(3))
    right: list[Counter[str]] = [Counter(), Counter()]
    superfluous: list[Counter[str]] = [Counter(), Counter()]
    missing: list[Counter[str]] = [Counter(), Counter()]
    for number, system in enumerate((baseline, other)):
        for words, reference in zip(system, references, strict=True):
            for n in (1, 2, 3, 4):
                left = [" ".join(reference[i : i + n]) for i in range(len(reference) - n + 1)]
                for ngram in (" ".join(words[i : i + n]) for i in range(len(words) - n + 1)):
                    if ngram in left:
                        left.remove(ngram)
                        right[number][ngram] += n == 1
                    else:
                        superfluous[number][ngram] += 1
                missing[number].update(left if n > 1 else ())
    lists = changed_words(baseline, other, references, limit=999)
    for kind, (before, after) in (("right", right), ("superfluous", superfluous), ("missing", missing)):
        for often, sign in (("more", 1), ("less", -1)):
            listed = lists[f"{kind} {often} often"]
            gaps = {one.text: sign * (one.counts[1] - one.counts[0]) for one in listed}
            assert [*gaps.values()] == sorted(gaps.values(), reverse=True)
            assert all(one.counts == (before[one.text], after[one.text]) for one in listed)
            changed = {ngram for ngram in before | after if sign * (after[ngram] - before[ngram]) > 0}
            assert gaps.keys() <= changed
            for ngram in changed - gaps.keys():  # left out as a part of a longer one
                assert any(ngram in one.text and one.counts == (before[ngram], after[ngram]) for one in listed)


TEXT_OF_FEW = st.text("ab ,中\t", max_size=12)


@settings(max_examples=40)
@given(TEXT_OF_FEW, TEXT_OF_FEW, TEXT_OF_FEW, st.booleans())
def test_marked_parts_make_the_texts_and_agree_where_unmarked(
    one: str, other: str, reference: str, by_character: bool
) -> None:
    parts = marked((one, other), reference, by_character)
    assert ["".join(part.text for part in side) for side in parts] == [one, other]
    unmarked = ["".join(part.text for part in side if not part.kind) for side in parts]
    assert "".join(unmarked[0].split()) == "".join(unmarked[1].split())
    spans = [part for side in parts for part in side if part.kind]
    assert not [part for part in spans if part.text.split() != [part.text]]  # no mark holds a space
    assert spans or "".join(one.split()) == "".join(other.split())
    for side in parts:
        kinds = {kind: "".join(part.text for part in side if part.kind == kind) for kind in ("", "right", "wrong")}
        if by_character:
            assert Counter(kinds["right"]) <= Counter(reference)
            assert not Counter(kinds["wrong"]) & (
                Counter(reference) - Counter(kinds[""]) - Counter(kinds["right"]) - Counter(" \t")
            )


def test_marks_say_what_the_reference_has() -> None:
    reference = "Die Katze sitzt auf der Matte ."
    one, other = marked(("Die Hund sitzt auf der Matte .", "Die Katze Katze liegt auf der Matte ."), reference, False)
    assert [tuple(part) for part in one] == [
        ("Die ", ""), ("Hund", "wrong"), (" ", ""), ("sitzt", "right"), (" auf der Matte .", "")
    ]  # fmt: skip
    assert [tuple(part) for part in other if part.kind] == [
        ("Katze", "right"), ("Katze", "wrong"), ("liegt", "wrong")
    ]  # fmt: skip
    both = marked(("Mann mit einem Hut und mit der Hand", "Mann in einem Hut und mit der Hand"), reference, False)
    assert [part.text for side in both for part in side if part.kind] == ["mit", "in"]


def test_all_sentences_that_changed_have_the_rows_they_belong_to() -> None:
    (test_set,) = compare(material(*((lines,) for lines in OTHER_WORDS), src=TRUTH), samples=2).test_sets
    (one,) = test_set.differences
    changed = [number for number, texts in enumerate(zip(*OTHER_WORDS, strict=True), 1) if texts[0] != texts[1]]
    assert sorted(sentence.line for sentence in one.sentences) == changed
    changes = [abs(sentence.change) for sentence in one.sentences]
    assert changes == sorted(changes, reverse=True)
    for sentence in one.sentences:
        for score in sentence.scores:
            low = 20 * min(4, int(score // 20))
            label = "below 20" if not low else "80 or more" if low == 80 else f"{low} to {low + 20}"
            assert f"chrF of the sentence: {label}" in sentence.rows
    words = [(title, word) for title, listed in one.words.items() if title.startswith("right") for word in listed]
    assert {"Mädchen", "Hund", "Männer"} <= {word.text for _, word in words}
    for title, word in words:
        tagged = [sentence for sentence in one.sentences if f"{title}: {word.text}" in sentence.rows]
        gained = [
            min(after.split().count(word.text), expected.split().count(word.text))
            - min(before.split().count(word.text), expected.split().count(word.text))
            for expected, (before, after) in ((sentence.reference, sentence.hypotheses) for sentence in tagged)
        ]
        if word.text.isalpha():  # others are parts of what stands between spaces
            assert all(gained)
            assert sum(gained) == word.counts[1] - word.counts[0]


def test_a_page_that_would_be_too_large_has_the_largest_differences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.insight.comparison_output.MAX_SENTENCE_BYTES", 20_000)
    compared = compare(material((NEAR,), (FAR,), src=TRUTH), samples=2)
    (one,) = compared.test_sets[0].differences
    assert len(one.sentences) == one.num_changed
    write_page(compared, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    lines = [int(line) for line in re.findall(r'data-line="(\d+)"', page)]
    assert 3 < len(lines) < one.num_changed
    assert lines == [sentence.line for sentence in one.sentences[: len(lines)]]
    assert f"<strong>{len(lines)} of {one.num_changed}</strong>" in page
    examples = page[page.index('<div class="sentences">') : page.index('class="more"')]
    assert 18_000 < len(examples.encode()) <= 20_100


def test_settings_that_differ_and_validations_are_on_the_page(tmp_path: Path) -> None:
    def history(*scores: float) -> History:
        records = [Validation(step, None, None, {"bleu": score}, None) for step, score in enumerate(scores, start=1)]
        return History(validations=tuple(records))

    histories = history(1.0, 2.0), history(1.5, 3.0)
    trainings = Trainings(("one", "two"), {"model.num_layers": ("2", "6")}, histories)
    compared = compare(material((NEAR,), (FAR,))._replace(trainings=trainings), samples=2)
    write_page(compared, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    parts = ('class="verdict"', ">model.num_layers<", "<figure>", 'class="strip"')
    assert [page.index(part) for part in parts] == sorted(map(page.index, parts))
    assert "one from 1 to 2, two from 1.5 to 3" in page


class _Tags(HTMLParser):
    """Every tag with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_page_requests_nothing_and_shows_text_as_text(tmp_path: Path) -> None:
    attack = ["<script>alert('1')</script> & <b>", *FAR[1:]]
    compared = compare(material((NEAR,), (attack,), src=attack), samples=2)
    write_page(compared, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    parser = _Tags()
    parser.feed(page)
    assert [tag for tag, _ in parser.tags if tag in ("script", "b", "iframe", "object")] == ["script"]  # the page's own
    addresses = [value for _, attributes in parser.tags for key in ("src", "href") if (value := attributes.get(key))]
    assert addresses == ["data:,"]
    assert "url(" not in page
    assert "&lt;b&gt;" in page
    assert page.count("<mark class=") > 10


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(1400, False), (390, True), (360, False)])
def test_the_page_in_a_browser(browser: Browser, tmp_path: Path, width: int, dark: bool) -> None:
    """It requests nothing, fits a phone, and its strips and bars lie where the scores say."""
    page = tmp_path / "page.html"
    compared = compare(material((NEAR, NEAR[::-1]), (FAR,), src=TRUTH, train=()), samples=20)
    write_page(compared, page)
    browser.open_page(page, width, dark)
    browser.check_page(page)
    browser.check_accessibility()
    (test_set,) = compared.test_sets
    outputs = [output.scores["bleu"] for system in test_set.systems for output in system.outputs]
    lowest = min(tested.interval.low for tested in outputs)
    widest = max(tested.interval.high for tested in outputs) - lowest
    places = browser.run(
        "return [...document.querySelector('.scores').querySelectorAll('td:nth-of-type(1) .strip')].map((strip) => {"
        "const dot = strip.querySelector('i').getBoundingClientRect(), area = strip.getBoundingClientRect();"
        "return ((dot.left + dot.right) / 2 - area.left) / area.width; })"
    )
    expected = [0.04 + 0.92 * (tested.score.value - lowest) / widest for tested in outputs]
    assert places == pytest.approx(expected, abs=0.01)
    widths = browser.run(
        "return [...document.querySelector('.buckets').querySelectorAll('.bar span')].map((bar) => "
        "bar.getBoundingClientRect().width / bar.parentElement.getBoundingClientRect().width)"
    )
    cells = [cell for row in test_set.buckets[0].rows for cell in row if cell.score is not None]
    assert widths == pytest.approx([(cell.score or 0) / 100 for cell in cells], abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 390])
def test_a_page_of_four_systems_shows_all_of_them_on_tracks_of_one_width(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    page = tmp_path / "page.html"
    others = [(corrupted(NEAR, seed=seed),) for seed in (7, 8)]
    write_page(compare(material((NEAR,), (FAR,), *others, src=TRUTH), samples=5), page)
    browser.open_page(page, width)
    browser.check_page(page)
    browser.check_accessibility()
    widths = browser.run(
        "return [...document.querySelectorAll('.bar')].map((bar) => bar.getBoundingClientRect().width)"
    )
    assert len(set(widths)) == 1
    assert widths[0] > 100
    cut = browser.run(
        "return [...document.querySelectorAll('.scroll, .buckets, .columns > div, .lists table, .panel')]"
        ".filter((one) => one.scrollWidth > one.clientWidth + 1 || one.getBoundingClientRect().right > innerWidth)"
        ".map((one) => one.className + ' ' + one.getAttribute('aria-label'))"
    )
    assert cut == []


@pytest.mark.slow
def test_sentences_are_searched_sorted_and_filtered_on_the_page(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    compared = compare(material(*((lines,) for lines in OTHER_WORDS), src=TRUTH), samples=2)
    write_page(compared, page)
    browser.open_page(page)
    browser.wait("document.documentElement.dataset.ready")
    (one,) = compared.test_sets[0].differences
    changes = {sentence.line: sentence.change for sentence in one.sentences}

    def shown() -> list[int]:
        lines = browser.run("return [...document.querySelectorAll('.sentence')].map((one) => +one.dataset.line)")
        return [int(line) for line in lines]

    def choose(selector: str, value: str, event: str = "change") -> None:
        browser.run(
            "const one = document.querySelector(arguments[0]); one.value = arguments[1];"
            "one.dispatchEvent(new Event(arguments[2]))",
            selector,
            value,
            event,
        )

    def click(selector: str) -> None:
        browser.run("document.querySelector(arguments[0]).click()", selector)

    by_change = sorted(changes, key=lambda line: (-abs(changes[line]), line))
    assert shown() == by_change[:10]
    while browser.run("return !document.querySelector('.more').hidden"):
        click(".more")
    assert shown() == by_change
    choose(".sort", "line")
    assert shown() == sorted(changes)[:10]
    choose(".show", "up")
    assert shown() == sorted(line for line in changes if changes[line] > 0)[:10]
    choose(".show", "all")
    wanted = one.sentences[0].reference
    choose(".tools input", wanted.upper(), "input")
    assert shown() == [one.sentences[0].line]
    choose(".tools input", "", "input")

    tag = f"right less often: {one.words['right less often'][0].text}"
    expected = sorted(sentence.line for sentence in one.sentences if tag in sentence.rows)
    click(f"button[data-tag='{tag}']")
    assert shown() == expected[:10]
    assert browser.text(".count").startswith(f"{len(expected)} sentence")
    assert browser.run(f"return document.querySelector(\"[data-tag='{tag}']\").getAttribute('aria-pressed')") == "true"
    click(".clear")
    assert shown() == sorted(changes)[:10]
    bucket = browser.run("return document.querySelector('.buckets button').dataset.tag")
    click(".buckets button")
    assert shown() == sorted(sentence.line for sentence in one.sentences if bucket in sentence.rows)[:10]

    browser.allow_scripts(False)
    try:
        browser.open_page(page)
        assert browser.run("return document.querySelectorAll('.sentence').length") == len(changes)
    finally:
        browser.allow_scripts(True)


@pytest.mark.slow
def test_runs_of_other_seeds_are_joined_by_a_comma(two_runs: Path, cli: Cli) -> None:
    config = two_runs / "runs/worse/config.yaml"
    config.write_text(config.read_text().replace("  seed: 1\n", "  seed: 2\n"))
    shutil.copytree("runs/worse", "runs/third")
    code, out, err = cli("compare", "copy,worse", "third", "worse,copy", "--samples", "2")
    assert code == 0
    assert "joined" not in err
    assert re.search(r"^BLEU +copy \(2 seeds\) +2 ", out, re.MULTILINE)
    assert re.search(r"^ +third +1 .* [+-]\d+\.\d\d  not judged$", out, re.MULTILINE)
    assert re.search(r"^ +worse \(2 seeds\) +2 .* \+0\.00  equal$", out, re.MULTILINE)
    config.write_text(config.read_text().replace("label_smoothing: 0.0\n", "label_smoothing: 0.1\n"))
    err = cli("compare", "copy,worse", "third", "--samples", "2")[2]
    assert "copy and worse are joined" in err and "training.label_smoothing" in err


def test_a_run_beside_another_programs_translations(two_runs: Path, cli: Cli) -> None:
    lines = (two_runs / "test.de").read_text().splitlines(keepends=True)
    (two_runs / "other.de").write_text("".join(reversed(lines)))
    arguments = ("copy", "--hyp", "other.de", "--src", "test.en", "--ref", "test.de")
    code, out, err = cli("compare", *arguments, "--samples", "2")
    assert code == 0, err
    assert "test.de: 50 lines, baseline copy" in out or "test.en: 50 lines, baseline copy" in out
    assert "words in the training text" not in out
    assert "occurrences of the word in the training text" in out


def test_a_file_with_both_sides_is_compared_as_two_texts(two_runs: Path, cli: Cli) -> None:
    sides = [(two_runs / f"test.{side}").read_text().splitlines() for side in ("en", "de")]
    (two_runs / "both.csv").write_text("de,en\n" + "".join(f"{tgt},{src}\n" for src, tgt in zip(*sides, strict=True)))
    (two_runs / "other.de").write_text("".join(f"{line}\n" for line in reversed(sides[1])))
    of_runs = ("copy", "--hyp", "other.de", "--samples", "2", "--json")
    of_files = ("--hyp", "test.de", "--hyp", "other.de", "--samples", "2", "--json")
    for systems, texts in ((of_runs, ("--src", "test.en", "--ref", "test.de")), (of_files, ("--ref", "test.de"))):
        (one,), (other,) = (
            json.loads(cli("compare", *systems, *text)[1])["test_sets"] for text in (("--src", "both.csv"), texts)
        )
        assert one["name"] == "both.csv"
        assert (one["systems"], one["differences"][0]["num_changed"]) == (other["systems"], 50)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["copy"], "name two systems or more"),
        ([], "name two systems or more"),
        (["--hyp", "test.de", "--hyp", "test.en"], "--hyp FILE needs the references: add --ref FILE"),
        (["copy", "worse", "--src", "test.en"], "--src and --ref go together, unless --src is a file with both sides"),
        (["copy", "worse", "--ref", "test.de"], "--ref FILE needs the text to translate; add --src FILE"),
        (["copy", "no-run"], "no-run: no such run"),
        (["copy", "worse", "--output", "page.txt"], "its name should end in .html"),
        (["copy", "worse", "--output", "no/page.html"], "is not a file in an existing folder"),
        (["--hyp", "test.de", "--hyp", "val.de", "--ref", "train.de"], "test.de has 50 lines, train.de has"),
        (["--hyp", "test.de", "--hyp", "none.de", "--ref", "test.de"], "none.de: no such file"),
        (["--hyp", "test.de", "--hyp", "test.en", "--ref", "plain"], "language of the references is not known"),
        (["copy", "worse", "--train", "none.de"], "none.de: no such file"),
        (["copy", "worse", "--metric", "meteor"], "--metric meteor: should be one of bleu, chrf, chrf++, ter"),
        (["copy", "worse", "--engine", "fast"], "engine 'fast': should be one of auto, torch, ctranslate2"),
        (["--hyp", "test.de", "--hyp", "val.de", "--ref", "test.de", "--device", "cpu"], "--device is for runs"),
    ],
)
def test_mistakes_are_named(two_runs: Path, cli: Cli, arguments: list[str], message: str) -> None:
    shutil.copy("test.de", "plain")
    code, out, err = cli("compare", *arguments)
    assert (code, out) == (2, "")
    assert message in err.splitlines()[-1]


@pytest.mark.slow
def test_other_languages_are_refused(two_runs: Path, cli: Cli) -> None:
    config = two_runs / "runs/worse/config.yaml"
    config.write_text(config.read_text().replace("tgt_lang: de", "tgt_lang: fr"))
    code, _, err = cli("compare", "copy", "worse")
    assert code == 2
    assert "runs/copy translates from en to de, runs/worse from en to fr" in err


@pytest.mark.slow
def test_without_its_training_text_a_run_is_compared_without_word_frequencies(two_runs: Path, cli: Cli) -> None:
    (two_runs / "train.de").unlink()
    code, out, err = cli("compare", "copy", "worse", "--samples", "2")
    assert code == 0
    assert "train.de: no such file, so words are not compared by frequency" in err
    assert "occurrences of the word" not in out


def test_outputs_are_named_by_their_paths_where_names_are_alike(write_lines: WriteLines, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    files = [write_lines(name, TRUTH[:4]) for name in ("a/test.hyp", "test.hyp", "a,b", "ref.de")]
    arguments: Any = [str(path) for path in files[:3]]
    read = read_material([], arguments, ComparedFiles([files[3]]), None)
    names = [system.name for system in read.test_sets[0].systems]
    assert names == [str(files[0]), str(files[1]), "a,b"]

"""nmt report: the page, its pictures, and the command that repeats a training."""

import hashlib
import html
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from browser import Browser
from conftest import COPY_TASK, Cli
from huggingface_hub import ModelCard
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from safetensors.torch import load_file

import nmt
import nmt.insight.drawing
import nmt.insight.report_output
import nmt.insight.validation_set
from nmt.cli.main import main
from nmt.config.reading import load_config
from nmt.config.values import changed_settings
from nmt.decoding.torch_engine import TorchEngine, load_model
from nmt.evaluation.stored import stored_evaluations
from nmt.insight.drawing import Curve, bars, curves
from nmt.insight.report import gather
from nmt.insight.validation_set import choose_examples, translate_validation_set
from nmt.models.source import source_of
from nmt.runs.folder import RunFolder
from nmt.runs.weights import write_weights
from nmt.system.files import read_json, write_json
from nmt.tokenizers.tokenizer import load_tokenizers

REPOSITORY = Path(__file__).parents[2]


def called(*arguments: str) -> None:
    """A command that succeeds, for a fixture of the module."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sys, "argv", ["nmt", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
    assert not end.value.code


def copied(solved: Path, folder: Path) -> RunFolder:
    """A copy of the solved run in a folder of its own, without what other commands wrote into it."""
    kept = shutil.ignore_patterns("checkpoints", "export", "evaluation", "report")
    shutil.copytree(solved / "runs/copy", folder / "runs/copy", ignore=kept)
    return RunFolder(Path("runs/copy"))


@pytest.fixture
def run(solved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run without a report, in the current folder; its reports have no pictures, which take a second."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nmt.insight.report_output, "_charts", lambda report: iter(()))
    return copied(solved, tmp_path)


@pytest.fixture(scope="module")
def _reported(solved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reported")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        copied(solved, folder)
        called("eval", "--model", "copy")
        called(
            "report",
            "--with-data",
            "--model",
            "copy",
            "--license",
            "cc-by-4.0",
            "--dataset",
            "someone/digits",
            "--dataset",
            "other",
        )
    return folder


@pytest.fixture
def reported(_reported: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run in the current folder, after `nmt eval` and `nmt report`; not to be changed."""
    monkeypatch.chdir(_reported)
    return RunFolder(Path("runs/copy"))


class _Text(HTMLParser):
    """The text of a page, a space for each tag, and its tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.tags = "", []
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.text += " "
        self.tags.append((tag, dict(attrs)))


def text_of(page: str) -> str:
    """What a page shows, with one space for all white space."""
    return " ".join(_Text(page).text.split())


def text_after_report(cli: Cli) -> str:
    """What the page shows that `nmt report` writes."""
    code, stdout, stderr = cli("report", "--model", "copy", "--with-data")
    assert (code, stdout, stderr) == (0, "runs/copy/report/index.html\n", "wrote runs/copy/report/README.md\n")
    return text_of(Path(stdout.strip()).read_text(encoding="utf-8"))


def test_the_page_shows_the_run(reported: RunFolder, solved: Path) -> None:
    text = text_of((reported.report / "index.html").read_text(encoding="utf-8"))
    lines = [json.loads(line) for line in reported.metrics_file.read_text().splitlines()]
    best = max((line for line in lines if line["kind"] == "validation"), key=lambda line: (line["bleu"], -line["loss"]))
    # The report translates the validation set as the training did.
    assert f"validation 50 BLEU {best['bleu']:.2f}" in text
    assert f"chosen checkpoint {best['step']} of 500 updates" in text
    lengths = [len(line.split()) for line in (solved / "val.en").read_text().splitlines()]
    assert f"below 10 {sum(length < 10 for length in lengths)}" in text
    pairs = len((solved / "train.en").read_text().splitlines())
    assert f"read {pairs:,}" in text
    assert f"trained on {pairs:,}" in text
    assert "training.schedule linear inverse_sqrt" in text
    assert "evaluation.report false true" in text
    example = best["example"]
    assert f"source {example['src']} reference {example['reference']} from update translation 250 " in text
    sources = (solved / "val.en").read_text().splitlines()
    assert sorted(map(len, sources))[25] == len(example["src"])
    assert f"nmt {nmt.__version__}" in text
    assert "Not recorded" not in text


def test_the_page_is_complete_in_itself(reported: RunFolder) -> None:
    page = (reported.report / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"(?:src|href|url)\s*[=(]\s*[\"']?(?:https?:|//|file:)", page)
    for name in ("loss", "validation", "learning_rate", "gradient_norm", "speed", "length"):
        assert (reported.report / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert f'id="{name}-' in page
    ids = [attributes["id"] for _, attributes in _Text(page).tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = re.findall(r"url\(#([^)]+)\)", page) + re.findall(r'href="#([^"]+)"', page)
    assert set(named) <= set(ids)


def test_a_browser_shows_it_in_light_and_dark_at_any_width(reported: RunFolder, browser: Browser) -> None:
    page = reported.report / "index.html"
    colours = []
    for width, dark in ((1280, False), (390, True)):
        browser.open_page(page, width, dark)
        browser.wait("document.readyState === 'complete'")
        browser.check_page(page)
        assert browser.text("h1") == "copy"
        line = "[...document.querySelectorAll('figure path')].find((one) => /--accent/.test(one.style.stroke))"
        colours.append(browser.run(f"return getComputedStyle({line}).stroke"))
        assert browser.run(f"const area = {line}.getBoundingClientRect(); return area.width") > width / 5
    assert colours[0] != colours[1]


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 390])
def test_it_is_short_and_everybody_can_use_it(reported: RunFolder, browser: Browser, width: int) -> None:
    page = reported.report / "index.html"
    browser.open_page(page, width)
    browser.check_accessibility()
    hidden = (
        "[...document.querySelectorAll('.map, #learning_rate-figure_1')].filter((one) => !one.checkVisibility()).length"
    )
    height = "document.documentElement.scrollHeight"
    closed, maps = browser.run(f"return [{height}, {hidden}]")
    assert maps == 13  # of twelve examples, and a chart
    browser.run("document.querySelector('.example summary').focus()")
    browser.press("Enter")
    assert browser.run(f"return {hidden}") == maps - 1
    browser.run("for (const one of document.querySelectorAll('details')) one.open = true")
    browser.check_page(page)
    browser.check_accessibility()
    assert browser.run(f"return {height}") > closed + 1000
    cut = "[...document.querySelectorAll('main *')].filter((one) => !one.closest('svg, .scroll, .hidden-text, pre')"
    assert browser.run(f"return {cut} && one.scrollWidth > one.clientWidth + 1 && one.clientWidth)") == []


def test_paper_has_the_whole_page(reported: RunFolder, browser: Browser) -> None:
    browser.open_page(reported.report / "index.html", 718)  # A4, without its margins
    browser.print_media(True)
    try:
        assert browser.run("return [...document.querySelectorAll('.map')].every((one) => one.checkVisibility())")
        assert not browser.run(
            "return [...document.querySelectorAll('nav, button')].some((one) => one.checkVisibility())"
        )
        outside = (
            "const {right, bottom} = one.getBoundingClientRect(), box = one.parentElement.getBoundingClientRect();"
        )
        outside += "return right > innerWidth || bottom > box.bottom + 1"
        assert browser.run(f"return [...document.querySelectorAll('table')].filter((one) => {{{outside}}})") == []
    finally:
        browser.print_media(False)


@pytest.mark.parametrize("width", [1400, 390])
def test_a_chart_shows_the_values_of_an_update(reported: RunFolder, browser: Browser, width: int) -> None:
    records = [json.loads(line) for line in reported.metrics_file.read_text().splitlines()]
    losses = {
        kind: {one["step"]: one["loss"] for one in records if one["kind"] == kind} for kind in ("train", "validation")
    }

    def expected(step: int) -> str:
        parts = [f"update {step}"]
        for name, kind in (("training", "train"), ("validation", "validation")):
            near = min(losses[kind], key=lambda other: (abs(other - step), other))
            value = float(f"{losses[kind][near]:.4g}")
            parts.append(f"{name} {value:.12f}".rstrip("0") + (f" (update {near})" if near != step else ""))
        return ", ".join(parts)

    def found() -> str:
        text, read = browser.run(f"return [{readout}, chart.ariaValueText]")
        assert text == read
        return read

    browser.open_page(reported.report / "index.html", width)
    chart = "document.querySelector('.chart')"
    readout = f"[...{chart}.nextElementSibling.childNodes].map((one) => one.textContent).join(', ')"
    browser.run("globalThis.chart = " + chart)
    steps = sorted({*losses["train"], *losses["validation"]})
    assert found() == expected(steps[-1])
    browser.run("chart.focus()")
    for key, step in (("Home", steps[0]), ("ArrowRight", steps[1]), ("ArrowLeft", steps[0]), ("End", steps[-1])):
        browser.press(key)
        assert found() == expected(step)
    # The picture's own lines lead through the same places.
    for colour, number, step in (("accent", 0, steps[0]), ("warm", 0, 250), ("warm", 1, 500)):
        place = browser.run(
            "const [colour, number] = arguments;"
            "const line = [...chart.querySelectorAll('path')].find((one) => one.style.stroke === `var(--${colour})`);"
            "const corner = line.getAttribute('d').match(/[\\d.]+ [\\d.]+/g)[number].split(' ');"
            "const {x, y} = new DOMPoint(...corner).matrixTransform(line.getScreenCTM()); return [x, y]",
            colour,
            number,
        )
        browser.tap(*place) if width < 600 else browser.move_pointer(*place)
        assert found() == expected(step)
        mark = "const {left, top, width} = chart.querySelectorAll('circle')[arguments[0]].getBoundingClientRect();"
        centre = browser.run(f"{mark} return [left + width / 2, top + width / 2]", int(colour == "warm"))
        assert centre == pytest.approx(place, abs=1)


def test_a_command_is_copied(reported: RunFolder, browser: Browser) -> None:
    page = reported.report / "index.html"
    command = "nmt train runs/copy/config.yaml --name copy-again"
    browser.open_page(page)
    assert browser.text("#repeat ~ .command button") == "Copy"
    browser.run("document.querySelector('#repeat ~ .command button').focus()")
    browser.press("Enter")
    browser.wait("document.activeElement.textContent === 'Copied'")
    assert browser.clipboard() == command
    name = browser.before_scripts("delete Navigator.prototype.clipboard")
    try:
        browser.open_page(page)
        browser.click(*browser.centre("#repeat ~ .command button"))
        browser.wait("document.querySelector('#repeat ~ .command button').textContent.startsWith('Selected')")
        assert browser.run("return getSelection().toString()") == command
    finally:
        browser.no_longer(name)


def test_the_curves_of_a_second_run_are_drawn_too(
    solved: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, browser: Browser
) -> None:
    monkeypatch.chdir(tmp_path)
    run, other = copied(solved, tmp_path), RunFolder(Path("runs/other"))
    shutil.copytree(run.path, other.path)
    config = other.config_file.read_text()
    other.config_file.write_text(re.sub(r"(?m)^  max_steps: 500", "  max_steps: 400", config))
    records = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    kept = [one | {"loss": 9.5} for one in records if one["kind"] == "train" and one["step"] <= 400]
    other.metrics_file.write_text("".join(json.dumps(one) + "\n" for one in kept))
    assert cli("report", "--model", "copy")[0] == 0
    card, picture = (run.report / name for name in ("README.md", "loss.png"))
    alone = card.read_bytes(), picture.read_bytes()
    code, stdout, _ = cli("report", "--model", "copy", "--overlay", "other")
    assert code == 0
    assert (card.read_bytes(), picture.read_bytes()) == alone  # what is published is of the run alone
    page = Path(stdout.strip())
    for width in (1400, 390):
        browser.open_page(page, width)
        browser.check_page(page)
        browser.check_accessibility()
        shown = browser.text(".readout").split("\n")
        assert [re.sub(r" \d.*", "", one) for one in shown] == [
            "update",
            "copy: training",
            "other: training",
            "copy: validation",
        ]
        assert "other: training 9.5 (update 399)" in shown
        assert browser.text("#differences ~ .scroll tbody").split() == ["training.max_steps", "500", "400"]
    other.metrics_file.unlink()
    code, stdout, stderr = cli("report", "--model", "copy", "--overlay", "other")
    assert (code, stdout) == (2, "")
    assert re.match("nmt: --overlay: runs/other has no metrics.jsonl", stderr)


def test_test_scores_are_those_of_the_evaluation(reported: RunFolder) -> None:
    text = text_of((reported.report / "index.html").read_text(encoding="utf-8"))
    hypotheses = (reported.evaluation / "test.hyp").read_text().splitlines()
    references = reported.config().data.test["test"].tgt.read_text().splitlines()
    expected = BLEU().corpus_score(hypotheses, [references], n_bootstrap=1000)
    found = re.search(rf"test 50 BLEU {expected.score:.2f} (\d+\.\d\d) to (\d+\.\d\d) nrefs:1\|case:mixed\|", text)
    assert found is not None
    low, high = map(float, found.groups())
    assert (high - low) / 2 == pytest.approx(expected._ci, abs=0.01)
    assert low <= round(expected.score, 2) <= high
    assert "There are no test scores yet" not in text


def test_huggingface_hub_reads_the_same_scores(
    reported: RunFolder, solved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object) -> None:
        raise AssertionError("a card is read without a network")

    monkeypatch.setattr(socket.socket, "connect", refused)
    card = ModelCard.load(reported.report / "README.md")
    data = card.data
    assert (data.language, data.license, data.library_name) == (["en", "de"], "cc-by-4.0", "nmt")
    assert (data.pipeline_tag, data.datasets) == ("translation", ["someone/digits", "other"])
    assert data.metrics == ["bleu", "chrf", "ter"]
    scores = read_json(reported.evaluation / "test.json")["scores"]
    read = {(one.dataset_split, one.metric_type): one for one in data.eval_results}
    assert len(read) == 6  # of the test set, and of the validation set
    for metric, score in scores.items():
        one = read["test", metric]
        assert (one.metric_value, one.metric_name) == (round(score["value"], 2), score["name"])
        assert one.metric_args == {"signature": score["signature"]}
        assert (one.task_type, one.dataset_name, one.dataset_config) == ("translation", "test", "en-de")
        assert score["signature"] in card.text.replace("\\|", "|")
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", card.text):
        assert (reported.report / picture).is_file()
    assert str(solved) not in card.content  # names of files, and no path of this machine
    assert "`train.en`" in card.text
    assert "pieces of its vocabulary is translated in parts" in card.text


def test_examples_and_their_attention_are_the_models(reported: RunFolder) -> None:
    config, tokenizers = reported.config(), load_tokenizers(reported.tokenizer)
    model = load_model(reported, tokenizers).eval()
    validation = translate_validation_set(config, tokenizers, TorchEngine(model, tokenizers))
    translator = nmt.load("runs/copy", decoding=validation.decoding, engine="torch")
    sources = config.data.validation.src.read_text().splitlines()
    page = (reported.report / "index.html").read_text(encoding="utf-8")
    for example in [one for kind in validation.examples.values() for one in kind]:
        assert example.src == sources[example.line - 1]
        assert example.hypothesis == translator.translate([example.src])[0]
        assert example.score == pytest.approx(CHRF().sentence_score(example.hypothesis, [example.reference]).score)
        src_ids, tgt_ids = tokenizers.src.encode(example.src), tokenizers.tgt.encode(example.hypothesis)
        weights = model.attention_weights(source_of([src_ids], tokenizers.src.special), torch.tensor([[1, *tgt_ids]]))
        heads = [value.detach().numpy()[0] for name, value in weights.items() if name.endswith(".cross")]
        expected = np.mean(np.concatenate(heads), axis=0)[: len(tgt_ids), : len(src_ids)]
        np.testing.assert_allclose(example.attention, expected, atol=1e-5)
        assert example.src_tokens == tuple(example.src.split())
        # Each cell of the page's table is one weight; one that nobody could see is left out.
        (table,) = re.findall(
            rf'aria-label="Attention of line {example.line}">.*?<tbody>(.*?)</table>', page, re.DOTALL
        )
        cells = re.findall(r'<td>(?:<i style="opacity:([0-9.]+)"></i>)?</td>', table)
        shown = np.array([float(cell or 0) for cell in cells]).reshape(expected.shape)
        np.testing.assert_allclose(shown, np.where(expected < 0.02, 0, expected), atol=0.0051)


def test_copied_lines_and_lines_in_parts_have_no_attention(reported: RunFolder) -> None:
    config, tokenizers = reported.config(), load_tokenizers(reported.tokenizer)
    engine = TorchEngine(load_model(reported, tokenizers).eval(), tokenizers)
    copying = config.decoding.model_copy(update={"copied": ("numbers",)})
    shorter = config.data.model_copy(update={"max_length": 5})
    for changed, longest in (({"decoding": copying}, 0), ({"data": shorter}, 5)):
        validation = translate_validation_set(config.model_copy(update=changed), tokenizers, engine)
        for example in [one for kind in validation.examples.values() for one in kind]:
            words = example.src.split()
            assert example.src_tokens == (tuple(words) if len(words) <= longest else ())
            assert example.attention.shape == (len(example.tgt_tokens), len(example.src_tokens))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 12, 13, 40])
def test_best_worst_and_typical(count: int) -> None:
    random = Random(count)
    scores = [random.choice([0.0, 20.0, 50.0, 51.0, 80.0, 100.0]) for _ in range(count)]
    lengths = [random.randint(1, 9) for _ in range(count)]
    chosen = choose_examples(scores, lengths)
    indices = [index for kind in chosen.values() for index in kind]
    assert len(indices) == len(set(indices)) == min(count, 3 * max(1, min(4, count // 3)))
    others = [score for index, score in enumerate(scores) if index not in indices]
    assert all(scores[index] >= max(others, default=0) for index in chosen["best"])
    assert all(scores[index] <= min(others, default=100) for index in chosen["worst"])
    for index in chosen["best"]:  # the longest of the equally good
        rivals = [
            length for other, length in enumerate(lengths) if scores[other] == scores[index] and other not in indices
        ]
        assert lengths[index] >= max(rivals, default=0)
    if count >= 12:
        median = statistics.median(scores)
        farthest = max(abs(scores[index] - median) for index in chosen["typical"])
        assert farthest <= min((abs(score - median) for score in others), default=farthest) + 50


def test_a_large_validation_set_is_sampled_evenly(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nmt.insight.validation_set, "MAX_LINES", 10)
    report = gather(run, with_data=True)
    assert report.validation is not None
    assert (report.validation.num_lines, report.validation.num_translated) == (50, 10)
    assert {one.line for kind in report.validation.examples.values() for one in kind} <= set(range(1, 51, 5))


def test_scores_of_another_model_are_named_as_such_and_are_not_the_cards(
    run: RunFolder, cli: Cli, _reported: Path
) -> None:
    shutil.copytree(_reported / "runs/copy/evaluation", run.evaluation)
    weights = {name: value * 1.01 for name, value in load_file(run.model_file).items()}
    write_weights(weights, run.model_file)
    record = read_json(run.record_file)
    record["validation"]["tgt"]["sha256"] = "0" * 64
    write_json(run.record_file, record)
    text = text_after_report(cli)
    assert "test an earlier model; run nmt eval again 50 BLEU" in text
    assert "The validation set has changed since the training" in text
    assert "| test (test) |" not in (run.report / "README.md").read_text()


OTHERS = (
    (["--forbid", "1", "--beam-size", "1", "--lowercase"], "beam_size 1, forbidden_words ['1'], case ignored"),
    (["--metric", "chrf++"], "metrics chrf++"),
    (["--sample"], "drawn at random"),
    (["--bleu-tokenizer", "char"], "another BLEU tokenizer"),
    (["--tgt-lang", "zh"], "another BLEU tokenizer"),
    (["--engine", "torch"], "engine torch"),
)


def test_other_evaluations_are_stored_apart_and_shown_as_such(run: RunFolder, cli: Cli) -> None:
    """Only the run's own evaluation is in the list of runs, the headline and the model card."""

    def evaluated(*options: str) -> Path:
        code, out, err = cli("eval", "--model", "copy", "--json", *options)
        assert code == 0, err
        return Path(json.loads(out)["hypotheses"])

    own = evaluated()
    assert own == run.evaluation / "test.hyp"
    content = own.with_suffix(".json").read_bytes()
    value = json.loads(content)["scores"]["bleu"]["value"]
    others = [evaluated(*options) for options, _ in OTHERS]
    assert len({own, *others}) == 1 + len(OTHERS)
    assert all(path.is_file() and path.name.startswith("test.") for path in others)
    assert others[0] == evaluated(*OTHERS[0][0])  # the same again has the same name
    assert own.with_suffix(".json").read_bytes() == content

    (status,) = json.loads(cli("runs", "--json")[1])
    assert list(status["test_scores"]) == ["test"]
    assert status["test_scores"]["test"]["bleu"] == value
    shown = cli("show", "--model", "copy")[1]
    text = text_after_report(cli)
    for _, why in OTHERS:
        assert why in shown and why in html.unescape(text)
    tests = gather(run, with_data=True).tests
    assert [one.stored.name for one in tests if not one.stored.deviation] == ["test"]
    card = ModelCard.load(run.report / "README.md").data
    (bleu,) = [one for one in card.eval_results if (one.dataset_split, one.metric_type) == ("test", "bleu")]
    assert bleu.metric_value == round(value, 2)
    assert text.count("BLEU on test") == 1

    write_weights({name: value * 1.01 for name, value in load_file(run.model_file).items()}, run.model_file)
    (status,) = json.loads(cli("runs", "--json")[1])
    assert status["test_scores"] == {}
    assert "(an earlier model; run nmt eval again)" in cli("show", "--model", "copy")[1]


def test_a_run_scored_by_another_metric_alone_has_a_headline(run: RunFolder, cli: Cli) -> None:
    config = run.config_file.read_text()
    run.config_file.write_text(re.sub(r"(?m)^  metrics: null\n", "  metrics: [chrf++]\n", config))
    assert cli("eval", "--model", "copy")[0] == 0
    assert "chrF2++ on test" in text_after_report(cli)


def test_test_sets_with_one_file_name_do_not_replace_each_other(run: RunFolder, cli: Cli, solved: Path) -> None:
    lines = (solved / "test.en").read_text().splitlines(keepends=True)
    for name, part in (("a", lines[:4]), ("b", lines[4:9])):
        Path(name).mkdir()
        for side in ("en", "de"):
            Path(name, f"test.{side}").write_text("".join(part))
        assert cli("eval", "--model", "copy", "--src", f"{name}/test.en", "--ref", f"{name}/test.de")[0] == 0
    found = {one.name: one for one in stored_evaluations(run)}
    assert sorted(one.content.lines for one in found.values()) == [4, 5]
    assert [one.deviation for one in found.values()] == ["not a text of data.test"] * 2
    status = json.loads(cli("show", "--model", "copy", "--json")[1])
    assert (status["test_scores"], {name for name, *_ in status["other_scores"]}) == ({}, set(found))


def test_scores_of_another_text_or_another_configuration_are_not_the_runs(
    run: RunFolder, cli: Cli, solved: Path
) -> None:
    Path("test.en").write_bytes((solved / "test.en").read_bytes())
    config = run.config_file.read_text()
    run.config_file.write_text(config.replace(f"{solved}/test.en", f"{Path.cwd()}/test.en"))
    assert cli("eval", "--model", "copy", "--beam-size", "1")[0] == cli("eval", "--model", "copy")[0] == 0

    def deviations() -> dict[str, str]:
        return {one.hypotheses.stem: one.deviation for one in stored_evaluations(run)}

    (other,) = set(deviations()) - {"test"}
    assert deviations() == {"test": "", other: "beam_size 1"}
    lines = Path("test.en").read_text().splitlines(keepends=True)
    Path("test.en").write_text("".join(reversed(lines)))
    assert deviations() == {
        "test": "not a text of data.test; run nmt eval again", other: "beam_size 1, not a text of data.test"
    }  # fmt: skip
    Path("test.en").unlink()  # as on another machine
    assert deviations() == {"test": "", other: "beam_size 1"}
    if hasattr(os, "mkfifo"):
        os.mkfifo("test.en")  # which would never end
        assert deviations() == {"test": "", other: "beam_size 1"}
        Path("test.en").unlink()
    Path("test.en").write_text("".join(lines))
    run.config_file.write_text(run.config_file.read_text().replace("beam_size: 3", "beam_size: 1"))
    assert deviations() == {"test": "beam_size 3; run nmt eval again", other: "an earlier configuration"}


def test_what_a_run_lacks_is_said(run: RunFolder, cli: Cli) -> None:
    run.record_file.unlink()
    config = run.config_file.read_text()
    one_file = re.sub(r"src: \S+/train\.en\n +tgt: \S+", "pairs: /gone/train.tsv", config, count=1)
    run.config_file.write_text(one_file.replace("/val.en", "/gone.en"))
    run.metrics_file.unlink()
    text = text_after_report(cli)
    assert "There are no test scores yet" in text
    assert "Not recorded: this run has no training.json. Its configuration names these training files: /gone/train" in (
        " ".join(text.split())
    )
    assert "Not recorded: there is no metrics.jsonl" in text
    assert "The validation set was not translated: " in text
    averaged = {"average": "a", "runs": ["/home/ada/runs/one", "runs/two"], "run_scores": [], "average_scores": {}}
    write_json(run.average_file, averaged | {"steps": [250, 500]})
    text = text_after_report(cli)
    assert "the mean of the checkpoints of another run at the steps 250, 500" in text
    assert "nmt train" not in text
    write_json(run.average_file, averaged | {"steps": []})
    text = text_after_report(cli)
    assert "the mean of the models of the runs one, two" in text
    assert "ada" not in text


def test_nothing_outside_a_run_is_read_unless_it_is_asked_for(run: RunFolder, cli: Cli, solved: Path) -> None:
    """As Python reports each file that it opens: the configuration of a run from another source may name any file."""
    assert cli("eval", "--model", "copy")[0] == 0
    secret = solved / "val.en"
    opened: list[str] | None = []

    def watch(event: str, values: tuple[object, ...]) -> None:
        if opened is not None and event == "open" and isinstance(values[0], str | Path):
            opened.append(os.path.realpath(values[0]))

    sys.addaudithook(watch)  # for good
    code, stdout, stderr = cli("report", "--model", "copy")
    read, opened = opened, None
    assert (code, stderr) == (0, "wrote runs/copy/report/README.md\n")
    assert str(run.config_file.resolve()) in read
    assert [path for path in read if Path(path).parent == solved] == []
    text = Path(stdout.strip()).read_text(encoding="utf-8")
    assert secret.read_text(encoding="utf-8").split("\n")[0] not in text
    assert "The validation set was not translated: nmt report --with-data reads the files" in text_of(text)
    assert re.search(r"\btest 50 BLEU \d+\.\d\d", text_of(text))


def test_scores_of_training_text_are_marked_everywhere(run: RunFolder, cli: Cli) -> None:
    config = run.config_file.read_text()
    run.config_file.write_text(config.replace("/val.", "/train."))
    text = text_after_report(cli)
    assert "The validation scores are of the training text." in text
    assert re.search(r"BLEU on training text \d+\.\d", text)
    assert "validation 50 BLEU" not in text
    card = ModelCard.load(run.report / "README.md")
    assert card.data.eval_results is None
    assert "and say nothing about other text." in card.text
    assert json.loads(cli("show", "--model", "copy", "--json")[1])["validates_on_training_text"]
    assert "\nvalidation    ! scores of the training text" in cli("show", "--model", "copy")[1]
    table = cli("runs")[1]
    assert re.search(r"copy .* ! \d+\.\d\d  ", table)
    assert table.endswith("! scores of the training text, which say nothing about other text\n")
    run.config_file.write_text(config)
    assert "training text" not in text_after_report(cli) + cli("runs")[1] + cli("show", "--model", "copy")[1]


def test_the_command_names_the_runs_own_file(run: RunFolder, cli: Cli) -> None:
    page = Path("elsewhere/report/index.html")
    run.path.rename("elsewhere")
    assert cli("report", "--model", "elsewhere")[:2] == (0, f"{page}\n")
    assert "nmt train elsewhere/config.yaml --name elsewhere-again" in text_of(page.read_text(encoding="utf-8"))


def test_an_unfinished_training_is_named_as_such(run: RunFolder, cli: Cli) -> None:
    run.config_file.write_text(run.config_file.read_text().replace("max_steps: 500", "max_steps: 900"))
    text = text_after_report(cli)
    assert "This training is not finished. It was interrupted." in text


def test_other_files_in_the_folder_are_kept_and_names_are_escaped(run: RunFolder, cli: Cli) -> None:
    run.path.rename("runs/<b>&")
    report = Path("runs/<b>&/report")
    (report / "mine").mkdir(parents=True)
    (report / "mine/notes.txt").write_text("mine")
    (report / "index.html").write_text("an earlier one")
    assert cli("report", "--model", "<b>&")[0] == 0
    assert (report / "mine/notes.txt").read_text() == "mine"
    page = (report / "index.html").read_text()
    assert "&lt;b&gt;&amp;</h1>" in page
    assert "<b>" not in page


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: run.record_file.write_text("{"), r"nmt: runs/copy/training\.json: cannot be read"),
        (lambda run: run.record_file.write_text("{}"), r"nmt: runs/copy/training\.json: folder: .*restore or remove"),
        (lambda run: write_json(run.average_file, {"steps": "x"}), r"nmt: runs/copy/average\.json: average: .*average"),
    ],
)  # fmt: skip
def test_a_damaged_run_is_one_plain_message(
    run: RunFolder, cli: Cli, damage: Callable[[RunFolder], object], message: str
) -> None:
    damage(run)
    code, stdout, stderr = cli("report", "--model", "copy")
    assert (code, stdout) == (2, "")
    assert re.match(message, stderr)
    assert not run.report.exists()


# --------------------------------------------------------------------------------------- after a training


def with_report(folder: Path) -> None:
    (folder / "copy.yaml").write_text(COPY_TASK.replace("report: false", "report: true"))


@pytest.mark.slow
def test_a_training_makes_its_report_and_a_finished_one_no_second(copy_task: Path, cli: Cli) -> None:
    with_report(copy_task.parent)
    page = Path("runs/copy/report/index.html")
    assert cli("train", "copy.yaml", "--dry-run")[0] == 0
    assert not page.exists()
    code, stdout, stderr = cli("train", "copy.yaml")
    assert (code, stdout) == (0, "")
    assert re.search(r"nmt: |^report: runs/copy/report/index\.html \(\d+\.\d s\)\n\Z", stderr, re.MULTILINE)
    assert "There are no test scores yet" in page.read_text()
    written = page.stat().st_mtime_ns
    code, _, stderr = cli("train", "copy.yaml")
    assert "this run is finished" in stderr
    assert "report" not in stderr
    assert page.stat().st_mtime_ns == written


@pytest.mark.slow
def test_a_report_that_fails_is_a_line_and_the_training_is_done(
    copy_task: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_report(copy_task.parent)

    def fails(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(nmt.insight.report_output, "write_report", fails)
    code, _, stderr = cli("train", "copy.yaml")
    assert code == 0
    last = stderr.splitlines()[-1]
    assert last.startswith("warning: no report was made: ")
    assert last.endswith("No space left on device; to try again: nmt report --with-data --model runs/copy")


# ------------------------------------------------------------------------------------------ repeating it


@pytest.mark.slow
def test_the_pages_command_gives_the_same_weights_to_the_bit(tmp_path: Path) -> None:
    """Through the shell, on the tiny corpus: vocabulary, dropout, augmentation, averaging."""
    (tmp_path / "nmt").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m nmt "$@"\n')
    (tmp_path / "nmt").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)}
    settings = ["training.max_steps=10", "training.validate_every=5", "training.warmup_steps=3", "training.threads=1",
                "training.batches_per_update=2", "augmentation.subword_sampling=0.1", "model.d_model=32",
                "model.d_ff=64", "training.device=cpu", "training.max_minutes=60"]  # fmt: skip
    tiny = str(REPOSITORY / "configs/tiny.yaml")
    command = ["nmt", "train", tiny, "--name", "a b", *(part for one in settings for part in ("--set", one))]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    page = (tmp_path / "runs/a b/report/index.html").read_text()
    found = re.search(r"<pre[^>]*>(nmt train .*?)</pre>", page)
    assert found is not None
    subprocess.run(html.unescape(found[1]), shell=True, cwd=tmp_path, env=environment, check=True, capture_output=True)
    weights = (tmp_path / "runs/a b-again/model.safetensors").read_bytes()
    assert weights == (tmp_path / "runs/a b/model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() in page


def test_a_setting_is_listed_by_its_own_key(copy_task: Path) -> None:
    def settings(*overrides: str) -> set[tuple[str, str, str]]:
        return set(changed_settings(load_config(copy_task, overrides)))

    given = ["data.cleaning={html: true, duplicates: pair}", "evaluation.metrics=[chrf]", "model.dropout=0",
             "training.learning_rate=1e-5", "training.clip_norm=null"]  # fmt: skip
    assert settings(*given) - settings() == {
        ("data.cleaning.duplicates", "pair", "null"),
        ("data.cleaning.html", "true", "false"),
        ("evaluation.metrics", '["chrf"]', "null"),
        ("model.dropout", "0", "0.1"),
        ("training.learning_rate", "1e-05", "0.001"),
        ("training.clip_norm", "null", "1"),
    }
    assert not [key for key, _, _ in settings() if key.startswith(("data.train", "data.validation", "data.test"))]


# ------------------------------------------------------------------------------------------------ charts


def test_the_legend_has_the_names_of_runs_as_they_are() -> None:
    names = ("_base", "b$x$c")
    svg = curves("x", "Title", "unit", [Curve(name, [(0.0, 1.0), (1.0, 2.0)]) for name in names]).svg
    texts = svg.partition("legend_1")[2].split("x-text_")[1:]
    assert [text.count('xlink:href="#x-DejaVuSans') for text in texts] == list(map(len, names))  # a glyph a character


def test_a_curve_passes_through_its_points_in_the_pages_colours() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    points = [(0.0, 4.0), (50.0, 1.0), (100.0, 2.0)]
    chart = curves("x", "Title", "unit", [Curve("one", points), Curve("two", points[1:])], (50, "chosen"))
    assert dict(matplotlib.rcParams) == before
    root = ElementTree.fromstring(chart.svg.replace("xlink:href", "href"))
    strokes = {
        element.get("style"): [
            tuple(map(float, pair)) for pair in re.findall(r"[ML] (\S+) (\S+)", element.get("d", ""))
        ]
        for element in root.iter("path")
        if "clip-path" in element.attrib and "stroke: var(--accent); stroke-width: 1.6" in (element.get("style") or "")
    }
    (drawn, *_) = [path for path in strokes.values() if len(path) == 3]
    # Lengths in the picture are in proportion to the data; y runs down.
    (x0, y0), (x1, y1), (x2, y2) = drawn
    assert (x1 - x0) == pytest.approx(x2 - x1, abs=0.05)
    assert (y1 - y0) / (y1 - y2) == pytest.approx(3, abs=0.01)
    colours = set(re.findall(r"#[0-9a-f]{6}", chart.svg))
    assert colours == set(), "every colour follows the page"
    assert chart.description == "Title: one from 4 to 2, two from 1 to 2. chosen: update 50."


def test_the_axes_of_scores_end_at_100(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(nmt.insight.drawing, "_chart", lambda axes, *texts: drawn.append(axes))
    for top in (100.0, 40.0):
        curves("x", "Scores", "score", [Curve("BLEU", [(0.0, 5.0), (100.0, top)])], highest=100)
        bars("y", "BLEU by length", "BLEU", [("a", 9.0, "1 line"), ("b", top, "2 lines")])
    assert drawn[0].get_ylim()[1] == 100
    assert max(drawn[1].get_yticks()) == 100
    assert [top < axes.get_ylim()[1] < 60 for axes in drawn[2:]] == [True, True]


def test_bars_name_their_heights() -> None:
    chart = bars("y", "BLEU by length", "BLEU", [("a", 10.0, "1 line"), ("b", 20.0, "2 lines")])
    assert chart.description == "BLEU by length. a: 10.0, b: 20.0."
    assert not re.findall(r"#[0-9a-f]{6}", chart.svg)

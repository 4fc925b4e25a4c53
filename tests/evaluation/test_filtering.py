"""`nmt filter`: scores by hand from `nmt score`, round-trip chrF from sacreBLEU, what is kept, and what it refuses."""

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from made_runs import made_run, text
from sacrebleu import sentence_chrf

import nmt
from nmt.config.reading import load_config
from nmt.runs.folder import RunFolder


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Random models `forward`, en to de, and `backward`, de to en, and a corpus with what no model needs to see."""
    monkeypatch.chdir(tmp_path)
    for name, languages in (("forward", ("en", "de")), ("backward", ("de", "en"))):
        (tmp_path / name).mkdir()
        run = made_run(tmp_path / name, {"d_model": 16})
        config = run.config_file.read_text()
        if name == "backward":
            config = config.replace("src_lang: en", "src_lang: XX").replace("tgt_lang: de", "tgt_lang: en")
            config = config.replace("src_lang: XX", "src_lang: de")
        run.config_file.write_text(config)
        assert (load_config(run.config_file).data.src_lang, load_config(run.config_file).data.tgt_lang) == languages
        Path("runs").mkdir(exist_ok=True)
        run.path.rename(tmp_path / "runs" / name)
    lines = list(zip(text(20, seed=1)[:-1], text(20, seed=4)[:-1], strict=True))
    lines[3:3] = [("", "leer"), ("ein hund", "ein  hund"), lines[0], (f"{lines[1][0]} ", lines[1][1])]
    for side, language in enumerate(("en", "de")):
        Path(f"pairs.{language}").write_text("".join(f"{pair[side]}\n" for pair in lines))
    return tmp_path


def pairs_of(folder: str) -> list[tuple[str, str]]:
    src, tgt = (Path(f"{folder}pairs.{language}").read_text().splitlines() for language in ("en", "de"))
    return list(zip(src, tgt, strict=True))


def scored(cli: Cli, model: str, src: str, tgt: str) -> list[float]:
    code, out, err = cli("score", "--model", model, "--src", src, "--tgt", tgt, "--json", "--engine", "torch")
    assert code == 0, err
    return [-one["log_prob"] / one["num_tokens"] for one in map(json.loads, out.splitlines()[:-1])]


def filtered(cli: Cli, *arguments: str) -> dict[str, Any]:
    code, out, err = cli("filter", "pairs.en", "pairs.de", "--json", "--engine", "torch", *arguments)
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_pairs_are_ranked_by_the_cross_entropy_of_nmt_score(runs: Path, cli: Cli) -> None:
    forward, backward = scored(cli, "forward", "pairs.en", "pairs.de"), scored(cli, "backward", "pairs.de", "pairs.en")
    costs = [(one + other) / 2 for one, other in zip(forward, backward, strict=True)]
    pairs = pairs_of("")
    usable = [index for index in range(len(pairs)) if index not in (3, 4, 5, 6)]
    for options, expected in (
        (("--forward", "forward", "--backward", "backward"), costs),
        (("--forward", "forward"), forward),
        (("--backward", "backward"), backward),
    ):
        best = sorted(sorted(usable, key=lambda index: expected[index])[: round(0.6 * len(usable))])
        folder = "-".join(options)
        found = filtered(cli, *options, "--keep", "0.6", "--write", folder)
        assert pairs_of(f"{folder}/") == [pairs[index] for index in best]
        assert found["pairs"] == len(pairs)
        assert found["dropped"] == {
            "empty": 1, "identical": 1, "duplicates": 2, "keep": len(usable) - len(best)
        }  # fmt: skip
        assert found["kept"] == len(best)
        assert found["score"] == "cross_entropy"
        assert found["worst_kept"] == pytest.approx(max(expected[index] for index in best), abs=1e-5)
        values = sorted(expected[index] for index in usable)
        assert found["quantiles"]["min"] == pytest.approx(values[0], abs=1e-5)
        assert found["quantiles"]["50%"] == pytest.approx(float(np.median(values)), abs=1e-5)
        examples = Path(folder, "cleaning.tsv").read_text().splitlines()[1:]
        rules = [line.split("\t")[0] for line in examples]
        assert {rule: rules.count(rule) for rule in rules} == found["dropped"]


def test_round_trip_chrf_is_sacrebleus(runs: Path, cli: Cli) -> None:
    pairs = pairs_of("")
    usable = [index for index in range(len(pairs)) if index not in (3, 4, 5, 6)]
    back = nmt.load("backward", engine="torch").translate([tgt for _, tgt in pairs])
    chrf = [sentence_chrf(hyp, [src]).score for hyp, (src, _) in zip(back, pairs, strict=True)]
    assert len({chrf[index] for index in usable}) > 3
    best = sorted(sorted(usable, key=lambda index: -chrf[index])[: round(0.3 * len(usable))])
    options = ("--backward", "backward", "--round-trip", "--keep", "0.3")
    found = filtered(cli, *options, "--write", "kept")
    assert pairs_of("kept/") == [pairs[index] for index in best]
    assert (found["score"], found["kept"]) == ("chrf", len(best))
    assert found["quantiles"]["max"] == pytest.approx(max(chrf[index] for index in usable))
    assert found["worst_kept"] == pytest.approx(min(chrf[index] for index in best))
    code, out, _ = cli("filter", "pairs.en", "pairs.de", *options, "--write", "again")
    assert code == 0
    assert pairs_of("again/") == pairs_of("kept/")
    assert out.startswith(f"pairs         {len(pairs)}  100.0%\n  empty")
    assert "worst kept" in out


def test_rules_of_cleaning_come_first(runs: Path, cli: Cli) -> None:
    for language, lines in (("en", b"ein <b>hund</b>\nein \xff\n"), ("de", b"ein hund\nein ball\n")):
        with Path(f"pairs.{language}").open("ab") as file:
            file.write(lines)
    dropped = filtered(cli, "--forward", "forward", "--keep", "1", "--write", "kept")["dropped"]
    assert (dropped["html"], dropped["encoding"]) == (1, 1)
    assert [tgt for _, tgt in pairs_of("kept/") if tgt in ("ein hund", "ein ball")] == []


def test_rules_that_leave_no_pair_are_named(runs: Path, cli: Cli) -> None:
    Path("marked.tsv").write_text("ein <b>hund</b>\tein <i>ball</i>\n")
    code, _, err = cli("filter", "marked.tsv", "--forward", "forward", "--keep", "1", "--write", "out")
    assert (code, "no pair is left of 1: 1 are dropped by data.cleaning.html" in err) == (2, True), err
    assert not Path("out").exists()


def test_corpora_are_kept_apart_and_pairs_too_long_for_the_model_go(runs: Path, cli: Cli) -> None:
    pairs = [pair for index, pair in enumerate(pairs_of("")) if index not in (3, 4, 5, 6)]
    long = [" ".join(random.choices(("hund", "ball", "park"), k=300)) for random in (Random(1), Random(2))]
    one = (("", "ball"), pairs[0], tuple(long), *pairs[1:5])
    Path("one.tsv").write_text("".join("\t".join(pair) + "\n" for pair in one))
    Path("two.tsv").write_text("".join("\t".join(pair) + "\n" for pair in pairs[5:]))
    costs = scored(cli, "forward", "pairs.en", "pairs.de")
    costs = [cost for index, cost in enumerate(costs) if index not in (3, 4, 5, 6)]
    best = sorted(sorted(range(len(pairs)), key=lambda index: costs[index])[: round(0.5 * len(pairs))])
    arguments = ("filter", "one.tsv", "two.tsv", "--json", "--engine", "torch", "--keep", "0.5", "--write", "kept")
    code, out, err = cli(*arguments, "--forward", "forward")
    assert code == 0, err
    assert "line 3: the target has more" in err
    assert json.loads(out)["dropped"] == {"empty": 1, "too_long": 1, "keep": len(pairs) - len(best)}
    for name, kept in (("one", [i for i in best if i < 5]), ("two", [i for i in best if i >= 5])):
        sides = [Path(f"kept/{name}.{language}").read_text().splitlines() for language in ("en", "de")]
        assert list(zip(*sides, strict=True)) == [pairs[index] for index in kept]


@pytest.mark.slow
def test_nonsense_goes_and_translations_stay(
    in_solved: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy task's model: a translation is the same digits. It has other spaces here, since equal sides would go."""
    good = Path("test.en").read_text().splitlines()[:20]
    random = Random(1)
    bad = [" ".join(random.choices("0123456789", k=len(line.split()))) for line in good]
    run = RunFolder(in_solved / "runs" / "copy")
    mixed = [(src, tgt) for pair in zip(good, bad, strict=True) for src, tgt in ((pair[0], f"{pair[0]}"), pair)]
    for language, side in (("en", 0), ("de", 1)):
        (tmp_path / f"pairs.{language}").write_text(
            "".join(f"{pair[side].replace(' ', chr(0x3000)) if side else pair[side]}\n" for pair in mixed)
        )
    monkeypatch.chdir(tmp_path)
    found = filtered(cli, "--forward", str(run.path), "--keep", "0.5", "--write", "kept")
    kept = [(src, tgt.replace("\u3000", " ")) for src, tgt in pairs_of("kept/")]
    assert sum(src == tgt for src, tgt in kept) >= 19
    assert found["kept"] == 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--keep", "0.5"], "name a model that scores the pairs"),
        (["--forward", "forward", "--keep", "1.5"], "--keep 1.5: give a share of the pairs"),
        (["--forward", "forward", "--keep", "nan"], "--keep nan: give a share of the pairs"),
        (["--forward", "forward", "--round-trip", "--keep", "0.5"], "--round-trip needs a model"),
        (["--forward", "forward", "--backward", "backward", "--round-trip", "--keep", "0.5"], "leave out --forward"),
        (["--forward", "backward", "--keep", "0.5", "--backward", "backward"], "does not translate en to de"),
        (["--forward", "missing", "--keep", "0.5"], "missing"),
        (["--forward", "forward", "--keep", "0.01"], "--keep 0.01 keeps none of the 19 pairs"),
    ],
)
def test_mistakes_are_one_plain_message(runs: Path, cli: Cli, arguments: list[str], message: str) -> None:
    code, out, err = cli("filter", "pairs.en", "pairs.de", "--write", "out", "--engine", "torch", *arguments)
    assert (code, out) == (2, ""), err
    assert message in err.splitlines()[-1]
    assert not Path("out").exists()


def test_a_share_and_a_new_folder_must_be_named(runs: Path, cli: Cli) -> None:
    for missing, options in (("write", ("--keep", "0.5")), ("keep", ("--write", "new"))):
        code, _, err = cli("filter", "pairs.en", "pairs.de", "--forward", "forward", *options)
        assert (code, f"Missing option '--{missing}'" in err) == (2, True)
    code, _, err = cli("filter", "pairs.en", "pairs.de", "--forward", "forward", "--keep", "0.5", "--write", "runs")
    assert (code, "exists already" in err) == (2, True)

"""`nmt eval`'s chrF++, case, tokenizers, intervals, public test sets and COMET, against sacreBLEU's command."""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli, assert_says
from sacrebleu.dataset import DATASETS
from test_evaluation import SENTENCES, corrupted

from nmt.errors import ConfigError
from nmt.evaluation.metrics import public_test_set


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Sources, translations and references."""
    folder = tmp_path_factory.mktemp("scored")
    truth = SENTENCES["de"] * 6
    guess = [line.upper() if number % 5 == 0 else line for number, line in enumerate(corrupted(truth, seed=1))]
    texts = {"src.en": SENTENCES["en"] * 6 if "en" in SENTENCES else truth[::-1], "hyp.de": guess, "ref.de": truth}
    for name, lines in texts.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    src, hyp, ref = (folder / name for name in texts)
    return src, hyp, ref


@pytest.mark.parametrize(
    ("ours", "theirs", "name"),
    [
        (["--metric", "chrf++"], ["-m", "chrf", "--chrf-word-order", "2"], "chrF2++"),
        (
            ["--metric", "chrf++", "--lowercase"],
            ["-m", "chrf", "--chrf-word-order", "2", "--chrf-lowercase"],
            "chrF2++",
        ),
        (["--metric", "bleu", "--lowercase", "--bleu-tokenizer", "intl"], ["-lc", "-tok", "intl"], "BLEU"),
        (["--metric", "bleu", "--bleu-tokenizer", "none", "--confidence"], ["-tok", "none", "--confidence"], "BLEU"),
    ],
)
def test_scores_are_those_of_sacrebleus_command(
    files: tuple[Path, Path, Path], cli: Cli, ours: list[str], theirs: list[str], name: str
) -> None:
    _, hyp, ref = files
    command = [sys.executable, "-m", "sacrebleu", str(ref), "-i", str(hyp), "-w", "6", "--format", "json", *theirs]
    shown = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)
    code, out, err = cli("eval", "--hyp", str(hyp), "--ref", str(ref), "--json", *ours)
    assert code == 0, err
    (score,) = json.loads(out)["scores"].values()
    assert score["name"] == shown["name"] == name
    assert 5 < score["value"] < 95
    if "--confidence" not in ours:
        assert (round(score["value"], 6), score["signature"]) == (shown["score"], shown["signature"])
        return
    assert round(score["value"], 6) == shown["score"]
    assert round(score["confidence"]["mean"], 4) == round(shown["confidence_mean"], 4)
    low, high = score["confidence"]["low"], score["confidence"]["high"]
    assert round((high - low) / 2, 4) == round(shown["confidence_var"], 4)
    _, out, _ = cli("eval", "--hyp", str(hyp), "--ref", str(ref), *ours)
    assert f"(95% {low:.2f} to {high:.2f})" in out


@pytest.fixture
def cached(files: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A public test set as sacreBLEU keeps it after a download."""

    def offline(*arguments: Any, **options: Any) -> Any:
        raise urllib.error.URLError("Temporary failure in name resolution")

    monkeypatch.setattr(urllib.request, "urlopen", offline)
    dataset = DATASETS["wmt14/full"]
    monkeypatch.setattr(dataset, "_outdir", str(tmp_path))
    monkeypatch.setattr(dataset, "_rawdir", str(tmp_path / "raw"))
    src, _, ref = files
    for field in dataset.fieldnames("en-de"):
        text = src if field == "src" else ref
        Path(dataset._get_txt_file_path("en-de", field)).write_bytes(text.read_bytes())
    return tmp_path


def test_a_public_test_set_by_its_name(cached: Path, files: tuple[Path, Path, Path], cli: Cli) -> None:
    src, references = public_test_set("wmt14/full", "en-de")
    assert src.read_bytes() == files[0].read_bytes()
    assert [path.read_bytes() for path in references] == [files[2].read_bytes()]
    options = ["--test-set", "wmt14/full", "--language-pair", "en-de", "--metric", "bleu"]
    code, out, err = cli("eval", "--hyp", str(files[1]), *options, "--json")
    assert code == 0, err
    expected = cli("eval", "--hyp", str(files[1]), "--ref", str(files[2]), "--metric", "bleu", "--json")[1]
    assert json.loads(out) == json.loads(expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--test-set", "wmt14/ful", "--language-pair", "en-de"], "did you mean wmt14/full"),
        (
            ["--test-set", "wmt14/full", "--language-pair", "en-fi"],
            "--language-pair en-fi: wmt14/full has cs-en, de-en",
        ),
        (["--test-set", "wmt14/full", "--language-pair", "fr-en"], "cannot be downloaded (<urlopen error Temporary"),
        (["--test-set", "wmt14/full"], "--test-set with --hyp needs --language-pair"),
        (["--language-pair", "en-de", "--ref", "x"], "--language-pair is for --test-set"),
        (["--test-set", "wmt14/full", "--ref", "x"], "leave out --src and --ref"),
        (["--ref", "x", "--metric", "meteor"], "--metric meteor: should be one of bleu, chrf, chrf++, ter"),
        (["--ref", "x", "--comet-model", "x"], "--comet-model is for --comet"),
        (["--ref", "x", "--comet"], "add --src FILE"),
        (["--ref", "x", "--src", "x", "--comet"], "there is no comet-score on the path"),
    ],
)
def test_mistakes_are_one_line(
    cached: Path, files: tuple[Path, Path, Path], cli: Cli, monkeypatch: pytest.MonkeyPatch, options: list[str],
    message: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("PATH", str(cached))
    code, out, err = cli("eval", "--hyp", str(files[1]), *options)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


COMET = """#!{python}
import sys
from pathlib import Path
options = dict(zip(sys.argv[1::1], sys.argv[2::1]))
src, hyp, ref = (Path(options[name]).read_bytes() for name in ("-s", "-t", "-r"))
assert src == Path("{src}").read_bytes() and hyp == Path("{hyp}").read_bytes() and ref == Path("{ref}").read_bytes()
if options.get("--model") == "broken":
    sys.exit("no such model")
print(options["-t"] + "\\tscore: " + ("0.5" if "--model" in options else "0.8123"))
"""


@pytest.mark.skipif(os.name == "nt", reason="the program is a script with its interpreter in the first line")
def test_comet_is_the_users_own_command(
    in_solved: Path, files: tuple[Path, Path, Path], tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    src, hyp, ref = files
    program = tmp_path / "comet-score"
    program.write_text(COMET.format(python=sys.executable, src=src, hyp=hyp, ref=ref))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    command = ["eval", "--hyp", str(hyp), "--ref", str(ref), "--src", str(src), "--metric", "chrf", "--comet"]
    code, out, err = cli(*command)
    assert code == 0, err
    assert re.search(r"\n  COMET  0\.8123  comet-score, model by default\n", out)
    assert json.loads(cli(*command, "--comet-model", "x", "--json")[1])["comet"] == {"value": 0.5, "model": "x"}
    code, _, err = cli(*command, "--comet-model", "broken")
    assert code == 3
    assert_says(err, "nmt: --comet: ", "no such model")
    for name in ("evaluate_file", "evaluate_runs"):
        monkeypatch.setattr(f"nmt.evaluation.evaluate.{name}", None)  # refused before anything is translated or scored
    for given in (["--hyp", str(hyp)], ["--model", "copy"]):
        code, _, err = cli("eval", *given, "--src", str(src), "--ref", str(ref), "--ref", str(ref), "--comet")
        assert (code, "COMET reads one reference, and there are 2" in err) == (2, True)


def test_a_file_without_the_name_of_a_test_set_is_refused() -> None:
    with pytest.raises(ConfigError, match="sacreBLEU knows no such test set; `sacrebleu --list`"):
        public_test_set("zzzzzz", "en-de")

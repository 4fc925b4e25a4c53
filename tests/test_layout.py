"""The layout: a file imports only files above it, and light modules do not load torch."""

import ast
import doctest
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "nmt"

# In the order of the data flow. A new file is entered here.
_IN_ORDER = """
    version errors suffixes languages config.section config.source config.inference config.corpus config.cleaning
    config.guard config.data config.augmentation config.evaluation config.training
    config.recommended config.keys config.file config.schema config.manual
    locks atomic runs inheritance history processes probed probing environment waiting device distributed masks source
    data.drift data.compression data.lines data.tables data.tmx data.sides data.discovery data.corpus
    data.vectors data.hashes data.decoded data.cleaning data.letters data.duplicates data.scripts data.rules
    data.selection
    data.counts data.profile data.profiling data.folds
    data.holdout data.inspection data.starter data.vocabulary data.marian data.tokenizer
    data.tokenizer_training
    data.statistics data.encoding data.dataset data.mixture data.subwords
    data.words data.lexicon data.phrases data.copying data.noise data.augmentation data.batches
    models.layers models.quantization models.interface models.dropout models.positions models.initialisation
    models.source_layer models.attention
    models.transformer models.recurrence models.source_attention models.stepwise models.rnn models.ensemble
    models.packed models.factory
    checkpoint
    decoding.request decoding.hypothesis decoding.forbidden decoding.constraints decoding.candidates decoding.trace
    decoding.greedy decoding.beam decoding.sampling decoding.torch_engine
    ctranslate2.engine ctranslate2.exports decoding.engines decoding.alignment decoding.sentences
    decoding.copied decoding.source_text
    decoding.risk decoding.translator decoding.records decoding.scoring decoding.parallel decoding.files
    evaluation.metrics evaluation.public_sets evaluation.comet evaluation.evaluate evaluation.significance
    evaluation.buckets evaluation.filtering
    marian.names marian.found marian.folder marian.npz marian.download marian.importing
    training.loss training.optimization training.freezing training.fewer_layers training.guarding training.stopping
    training.interruption training.divergence
    training.scalars training.monitor training.memory training.averaging training.sharing training.resuming
    training.preparation training.record training.origin training.forgetting training.announcement training.feeding
    training.trainer training.preflight training.launching
    training.trial training.start training.averaged_run
    adaptation.frontier adaptation.choosing adaptation.outcome adaptation.planning
    exporting.proof exporting.description ctranslate2.shortlist ctranslate2.export
    insight.pages insight.attention insight.explanation insight.attention_page insight.fonts insight.attention_picture
    insight.systems insight.differences insight.comparison insight.text_table insight.comparison_text
    insight.comparison_page
    insight.terminal_chart insight.progress insight.progress_text insight.data_text insight.data_page
    insight.validation_set insight.reproduction insight.report insight.charts insight.model_card insight.report_page
    exporting.argos exporting.transformers_search exporting.huggingface
    exporting.onnx_graphs exporting.onnx_search exporting.onnx exporting.after_training
    improving.plan improving.deciding improving.configuring improving.keeping_apart improving.drafting improving.steps
    improving.manifest improving.beginning improving.running improving.estimating improving.summary
    improving.nearest improving.teachers improving.distilling
    __init__ cli.completion cli.options cli.searching cli.init cli.imported cli.config cli.info cli.data cli.train
    cli.adapt cli.improve cli.distill cli.vocab cli.translate cli.evaluate cli.score cli.filtering cli.compare
    cli.attention cli.report cli.show cli.runs cli.average cli.export cli.main __main__
"""
ORDER = _IN_ORDER.split()
HELP = "import sys; from nmt.cli.main import main; sys.argv = ['nmt', '--help']\ntry: main()\nexcept SystemExit: pass"


def source_of(name: str) -> str:
    return (PACKAGE / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def imported_modules(path: Path) -> Iterator[str]:
    """The project's modules that a file imports, anywhere in it, named as in ORDER."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            inside = node.module is not None and f"{node.module}.".startswith("nmt.")
            # `from nmt.data import corpus` names a module too
            names = [f"{node.module}.{alias.name}" for alias in node.names] if inside else []
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "nmt":
                inner = parts[1:]
                while inner and ".".join(inner) not in ORDER:
                    inner.pop()
                yield ".".join(inner) or "__init__"


def test_every_file_has_its_place_in_the_order() -> None:
    rooms = {module_name(path) for path in PACKAGE.rglob("*.py")}
    empty = {name for name in rooms if name.endswith(".__init__")}
    assert rooms - empty == set(ORDER)
    assert all((PACKAGE / name.replace(".", "/")).with_suffix(".py").read_text() == "" for name in empty)


@pytest.mark.parametrize("name", ORDER)
def test_a_file_imports_only_files_above_it(name: str) -> None:
    path = (PACKAGE / name.replace(".", "/")).with_suffix(".py")
    above = ORDER[: ORDER.index(name)]
    assert [imported for imported in imported_modules(path) if imported not in above] == []


@pytest.mark.parametrize("program", ["import nmt", "import nmt.data.tokenizer", HELP])
def test_torch_is_not_loaded_without_need(program: str) -> None:
    check = f"{program}\nimport sys; sys.exit('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_help_loads_next_to_nothing() -> None:
    program = (
        "import nmt.cli.main, sys; sys.argv = ['nmt', '--help']\ntry: nmt.cli.main.main()\nexcept SystemExit: pass"
    )
    slow = {"torch", "numpy", "ctranslate2", "asyncio", "sacrebleu", "sentencepiece"}
    check = f"{program}\nprint(*{slow} & set(sys.modules), file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert result.stderr == "\n"


OF_A_RUN = {"__init__", "data.tokenizer", "decoding.alignment", "decoding.translator"}  # whose examples need one


@pytest.mark.parametrize("name", [name for name in ORDER if ">>> " in source_of(name) and name not in OF_A_RUN])
def test_the_examples_in_docstrings_are_true(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"nmt.{name}"))
    assert result.attempted
    assert not result.failed

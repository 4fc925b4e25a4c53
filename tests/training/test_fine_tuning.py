"""Fine-tuning: the settings inherited from the base model, what is frozen, replayed, scored and refused."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from conftest import COPY_TASK, Cli, write_copy_task
from safetensors.torch import load_file

import nmt
from nmt.batches.mixture import epoch_counts, pairs_of_epoch
from nmt.config.inference import TransformerConfig
from nmt.config.reading import load_config, to_yaml
from nmt.config.section import ModelPart
from nmt.config.source import VectorSource
from nmt.config.training import Config
from nmt.errors import ConfigError, DataError, NmtError, RunError
from nmt.insight.report_output import write_report
from nmt.models.factory import build_model
from nmt.runs.base import load_run_config
from nmt.runs.folder import RunFolder, run_named
from nmt.runs.weights import save_weights
from nmt.system.distributed import Ranks
from nmt.tokenizers.building import ensure_tokenizers
from nmt.training.averaging import average_models
from nmt.training.fine_tuning import kept_layers, read_forgetting, score_after
from nmt.training.optimization import freeze
from nmt.training.preparation import prepare
from nmt.training.record import read_record
from nmt.training.start import train

RNN = "{architecture: rnn, d_model: 16, d_embedding: 8, dropout: 0.1, max_positions: 64}"
FINE = """\
data:
  train: {src: new.en, tgt: new.de}
  validation: {src: val.en, tgt: val.de}
training: {init_from: old, max_steps: 4, validate_every: 2, log_every: 1, batch_tokens: 800, device: cpu, threads: 1}
evaluation: {report: false}
export: {after_training: []}
"""


@pytest.fixture(scope="module")
def old_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs `old`, a Transformer, and `rnn`, both with random weights, and new text."""
    folder = tmp_path_factory.mktemp("old")
    with pytest.MonkeyPatch.context() as monkeypatch:
        config = write_copy_task(folder, monkeypatch)
        lines = (folder / "train.en").read_text().splitlines()[:90]
        (folder / "new.en").write_text("".join(f"{line}\n" for line in lines))
        (folder / "new.de").write_text("".join(f"{line[::-1]}\n" for line in lines))  # the digits in reverse
        (folder / "new.yaml").write_text(FINE)
        for name in ("val", "test"):
            for side in ("en", "de"):
                path = folder / f"{name}.{side}"
                path.write_text("".join(path.read_text().splitlines(keepends=True)[:8]))
        config.write_text(COPY_TASK.replace("beam_size: 3, max_length: 30", "beam_size: 2, max_length: 12"))
        (folder / "rnn.yaml").write_text(re.sub("model: .*", f"model: {RNN}", config.read_text()))
        for name, file in (("old", config), ("rnn", folder / "rnn.yaml")):
            settings, run = load_config(file), RunFolder(folder / "runs" / name)
            run.path.mkdir(parents=True)
            run.config_file.write_text(to_yaml(settings))
            tokenizers = ensure_tokenizers(settings.data.train, settings.tokenizer, run.tokenizer)
            torch.manual_seed(3)
            save_weights(
                build_model(settings.model, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size), run.model_file
            )
    return folder


@pytest.fixture
def work(old_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder as the current one; paths in the old runs' configurations lead to the original."""
    shutil.copytree(old_runs, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def config_of(*overrides: str, name: str = "new", fresh: bool = False) -> Config:
    return load_run_config(Path("new.yaml"), overrides, run_named(name), fresh)


def trained(*overrides: str, name: str = "new") -> RunFolder:
    run = run_named(name)
    train(config_of(*overrides, name=name), run)
    return run


def records(run: RunFolder, kind: str = "validation") -> list[dict[str, float]]:
    lines = map(json.loads, run.metrics_file.read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


@pytest.mark.slow
def test_a_training_with_next_to_no_learning_rate_is_the_old_run(
    solved: Path, copy_task: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = RunFolder(solved / "runs" / "copy")
    Path("same.yaml").write_text(FINE.replace("new.", "train.").replace("init_from: old, ", ""))
    code, _, messages = cli("train", "same.yaml", "--init-from", str(old.path), "--set", "training.max_steps=1",
                            "--set", "training.learning_rate=1e-12", "--name", "same")  # fmt: skip
    assert code == 0, messages
    run = run_named("same")
    best = max(records(old), key=lambda record: (record["bleu"], -record["loss"]))
    first = records(run)[0]
    assert first["step"] == 0
    assert {key: first[key] for key in ("loss", "bleu", "chrf")} == {key: best[key] for key in ("loss", "bleu", "chrf")}
    lines = Path("test.en").read_text().splitlines()
    assert nmt.load(run.path).translate(lines) == nmt.load(old.path).translate(lines)
    (one,) = read_forgetting(run)
    assert one.name == "test"
    assert one.before == one.after
    assert one.before["bleu"].value > 50
    assert re.search(r"^test +\d+ +BLEU ", messages, re.MULTILINE)
    assert not (old.path / "evaluation" / "before").exists()
    old_tokenizer, new_tokenizer = ((each.tokenizer / "joint.words").read_bytes() for each in (old, run))
    assert old_tokenizer == new_tokenizer


DECODER = ["decoder", "src_embedding", "bridge", "source_attention", "combine", "readout", "feed"]


@pytest.mark.parametrize(
    ("old", "parts", "kept"),
    [
        ("old", "encoder", ["encoder"]),
        ("rnn", "output", ["src_embedding"]),  # tied, and named so in the file
        ("old", "decoder, embeddings", DECODER),
        ("rnn", "decoder, embeddings", DECODER),
    ],
)
def test_frozen_parameters_keep_every_bit_and_all_others_change(
    work: Path, old: str, parts: str, kept: list[str]
) -> None:
    run = trained(f"training.init_from={old}", f"training.freeze=[{parts}]", "training.validate_every=4",
                  "training.weight_decay=0.1", "training.ema_decay=0.9")  # fmt: skip
    before = load_file(Path("runs", old, "model.safetensors"))
    checkpoint = run.checkpoints / "4"
    state = load_file(checkpoint / "state.safetensors")
    for file in ("model", "average"):
        after = load_file(checkpoint / f"{file}.safetensors")
        for name, value in after.items():
            is_frozen = name.split(".")[0].removesuffix("_norm") in kept
            assert torch.equal(value, before[name]) == is_frozen, name
            assert any(key.startswith(f"optimizer.{name}.") for key in state) != is_frozen, name
    assert {name.split(".")[0] for name in before} >= {"encoder", "decoder", "src_embedding"}


def test_the_gradients_norm_is_that_of_what_is_trained(work: Path) -> None:
    """Against the norm computed from the gradients of a copy of the old model, the frozen parts left out."""
    run = trained("training.freeze=[embeddings]", "training.max_steps=1", "training.label_smoothing=0",
                  "model.dropout=0", "training.batch_tokens=2000")  # fmt: skip
    config = run.config()
    model = build_model(config.model, 14, 14)
    model.load_state_dict(load_file(Path("runs/old/model.safetensors")), strict=False)
    model.output.weight = model.tgt_embedding.weight = model.src_embedding.weight
    words = (run.tokenizer / "joint.words").read_text().split("\n")
    total, tokens = torch.zeros(()), 0
    for src, tgt in zip(*(Path(f"new.{side}").read_text().splitlines() for side in ("en", "de")), strict=True):
        src_ids = torch.tensor([[*map(words.index, src.split()), 2]])
        ids = [*map(words.index, tgt.split())]
        logits = model(
            nmt.models.source.Source(src_ids, torch.ones_like(src_ids, dtype=torch.bool)), torch.tensor([[1, *ids]])
        )
        total = total + torch.nn.functional.cross_entropy(logits[0], torch.tensor([*ids, 2]), reduction="sum")
        tokens += len(ids) + 1
    (total / tokens).backward()
    parts = {name: value.grad.norm() for name, value in model.named_parameters() if value.grad is not None}
    trained_parts = [norm for name, norm in parts.items() if "embedding" not in name]
    assert len(trained_parts) < len(parts)
    (record,) = records(run, "train")
    assert record["grad_norm"] == pytest.approx(torch.stack(trained_parts).norm().item(), rel=1e-4)


def test_a_resumed_run_is_the_same_to_the_bit_without_the_old_run(work: Path) -> None:
    straight = trained("training.keep_checkpoints=9", "data.replay=0.5", name="straight")
    want = load_file(straight.checkpoints / "4" / "model.safetensors")
    again = run_named("again")
    for step in (2, 0):  # where it was stopped; at 0, before the first update
        shutil.copytree(straight.path, again.path)
        for later in (path for path in again.checkpoints.iterdir() if int(path.name) > step):
            shutil.rmtree(later)
        scored = (again.evaluation / "before" / "test.json").stat().st_mtime_ns
        if Path("runs/old").exists():
            shutil.move("runs/old", "gone")
        trained("training.keep_checkpoints=9", "data.replay=0.5", name="again")
        got = load_file(again.checkpoints / "4" / "model.safetensors")
        assert all(torch.equal(got[name], value) for name, value in want.items())
        assert [record["step"] for record in records(again)] == [0, 2, 4]
        assert (again.evaluation / "before" / "test.json").stat().st_mtime_ns == scored
        record = read_record(again)
        assert record is not None
        assert record.init_from == read_record(straight).init_from  # type: ignore[union-attr]
        shutil.rmtree(again.path)
    with pytest.raises(RunError, match=r"training\.init_from: old: no such run"):
        config_of(name="third")


def test_what_is_not_given_is_the_old_runs_or_that_of_fine_tuning(work: Path) -> None:
    old, config = RunFolder(Path("runs/old")).config(), config_of("training.max_steps=null")
    assert (config.model, config.tokenizer, config.source) == (old.model, old.tokenizer, old.source)
    assert config.decoding == old.decoding
    assert (config.data.src_lang, config.data.tgt_lang, config.data.max_length) == ("en", "de", 20)
    settings = config.training
    assert (settings.learning_rate, settings.schedule, settings.max_steps) == (3e-4, "constant", 1000)
    assert (settings.warmup_steps, settings.patience, settings.validate_every) == (50, 5, 2)
    given = config_of("training.learning_rate=1e-3", "training.schedule=inverse_sqrt", "training.patience=null",
                      "training.max_steps=null", "training.max_epochs=3", "decoding.beam_size=7", "data.max_length=9",
                      "model.dropout=0.3", "training.warmup_steps=1000")  # fmt: skip
    assert given.model == old.model.model_copy(update={"dropout": 0.3})
    assert given.decoding == old.decoding.model_copy(update={"beam_size": 7})
    assert given.data.max_length == 9
    settings = given.training
    assert (settings.learning_rate, settings.schedule, settings.max_steps) == (1e-3, "inverse_sqrt", None)
    assert (settings.warmup_steps, settings.patience, settings.max_epochs) == (1000, None, 3)
    assert config_of("training.best_metric=null").training.patience is None
    assert config_of("training.max_steps=40", "training.schedule=linear").training.warmup_steps == 4


def test_the_runs_config_is_complete_and_trains_the_same_again(work: Path) -> None:
    run = trained("data.replay=0.25", "training.max_steps=2", "training.learning_rate=1e-3", "training.patience=null")
    written = yaml.safe_load(run.config_file.read_text())
    assert written["data"]["replay"] == 0.25
    assert [files.get("replayed") for files in written["data"]["train"]] == [None, True]
    config, record = run.config(), read_record(run)
    Path("again.yaml").write_text(run.config_file.read_text())
    assert load_run_config(Path("again.yaml"), [], run_named("again"), False) == config
    assert record is not None and record.init_from is not None
    base = hashlib.sha256(Path("runs/old/model.safetensors").read_bytes()).hexdigest()
    assert record.init_from.model.sha256 == base


def test_replayed_pairs_are_the_share_of_an_epoch_that_was_asked_for(work: Path) -> None:
    data = config_of("data.replay=0.2").data
    assert [files.replayed for files in data.train] == [False, True]
    assert data.train[1].src == RunFolder(Path("runs/old")).config().data.train[0].src
    # 80 of 100 pairs are new: 4 * 25 = 100 replayed ones for 400.
    assert epoch_counts([400, 1400], data) == [400, 100]
    epochs = [pairs_of_epoch([400, 1400], data, seed=1, epoch=epoch) for epoch in (0, 1)]
    replayed = [set(pairs[pairs >= 400].tolist()) for pairs in epochs if pairs is not None]
    assert [len(each) for each in replayed] == [100, 100]
    assert replayed[0] != replayed[1]
    three = data.model_copy(update={"train": (*data.train, data.train[1].model_copy(update={"weight": 3.0}))})
    assert epoch_counts([400, 600, 200], three) == [400, 50, 50]  # as 600 * 1 and 200 * 3 are
    with pytest.raises(DataError, match="no pair of the base run"):
        epoch_counts([400, 0], data)


def save_deep_run(name: str) -> RunFolder:
    """A run like `old`, with 3 encoder and 4 decoder layers, of which the inner ones add nothing to what they get."""
    settings = load_config(Path("runs/old/config.yaml"), ["model.num_encoder_layers=3", "model.num_decoder_layers=4"])
    run = run_named(name)
    shutil.copytree("runs/old/tokenizer", run.tokenizer)
    run.config_file.write_text(to_yaml(settings))
    model = build_model(settings.model, 14, 14)
    for layer in (model.encoder[1], *model.decoder[1:3]):
        for part, parameter in layer.named_parameters():
            if re.search(r"(attention\.output|feed_forward\.outer)\.", part):
                torch.nn.init.zeros_(parameter)
    save_weights(model, run.model_file)
    return run


def test_layers_that_do_nothing_can_be_left_out(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing changes without the inner layers: losses, BLEU and chrF before the first update are the same."""
    deep = save_deep_run("deep")
    fewer = ["model.num_encoder_layers=2", "model.num_decoder_layers=2"]
    options = ["training.init_from=deep", "training.max_steps=1"]
    runs = [trained(*options, name="all"), trained(*options, *fewer, name="fewer")]
    assert [line for line in capsys.readouterr().err.splitlines() if "layers kept" in line] == [
        "encoder     layers kept of 3: 1, 3",
        "decoder     layers kept of 4: 1, 4",
    ]
    first, second = ({**records(run)[0], "seconds": 0, "time": 0} for run in runs)
    assert first["step"] == 0
    assert {key: second[key] for key in ("loss", "bleu", "chrf")} == {
        key: first[key] for key in ("loss", "bleu", "chrf")
    }
    before, after = load_file(deep.model_file), load_file(runs[1].model_file)
    assert len([name for name in before if name.startswith("decoder.")]) == 2 * len(
        [name for name in after if name.startswith("decoder.")]
    )
    with pytest.raises(RunError, match=r"runs/fewer/model\.safetensors: not the weights of this model"):
        average_models(runs)
    again = config_of(*options, *fewer, name="fewer")  # a resume compares with the run itself
    assert (again.model.num_encoder_layers, again.model.num_decoder_layers) == (2, 2)


def test_the_layers_that_are_kept_are_those_of_the_paper() -> None:
    """Shleifer and Rush 2020, section 3.2: of 12 layers, 3 are 0, 6 and 11."""
    assert kept_layers(3, 12) == [0, 6, 11]
    assert kept_layers(6, 12) == [0, 2, 4, 7, 9, 11]
    assert kept_layers(1, 12) == [0]
    assert [kept_layers(count, 3) for count in range(4)] == [[], [0], [0, 2], [0, 1, 2]]


REFUSED = {
    "more layers": (["model.num_decoder_layers=2"], "model.num_decoder_layers: 1 there, 2 here"),
    "another width": (["model.d_model=64"], "model.d_model: 32 there, 64 here"),
    "another kind": (["model.architecture=rnn"], "model.architecture: transformer there, rnn here"),
    "another tokenizer": (["tokenizer.type=bpe"], "tokenizer.type: word there, bpe here"),
    "another source": (["source.type=vectors", "source.features=3"], "source.type: text there, vectors here"),
    "another language": (["data.tgt_lang=fr"], "data.tgt_lang: de, and here it is fr"),
    "no such run": (["training.init_from=absent"], "training.init_from: absent: no such run"),
    "no such part": (["training.freeze=[enc]"], "'embeddings', 'encoder', 'decoder' or 'output'"),
    "freeze alone": (
        ["training.init_from=null", "training.freeze=[encoder]"],
        "training.freeze needs training.init_from",
    ),
    "replay alone": (["training.init_from=null", "data.replay=0.2"], "data.replay repeats corpora of a base run"),
    "replay and temperature": (["data.replay=0.2", "data.temperature=5"], "data.temperature and data.replay exclude"),
    "all replayed": (["data.replay=1"], "data.replay is 1; it should be less than 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_configuration_that_contradicts_the_old_run_is_refused(work: Path, case: str) -> None:
    overrides, message = REFUSED[case]
    with pytest.raises(NmtError) as caught:
        config_of(*overrides)
    assert message in str(caught.value)


def test_a_run_cannot_start_from_itself_or_from_an_export(work: Path) -> None:
    with pytest.raises(ConfigError, match="--name old-2"):
        config_of(name="old")
    Path("runs/old/export.json").write_text("{}")
    with pytest.raises(RunError, match="is an export, without weights to train"):
        config_of()


def test_nothing_left_to_train_is_refused_before_anything_is_written(work: Path) -> None:
    with pytest.raises(ConfigError, match="nothing is left to train"):
        trained("training.freeze=[embeddings, encoder, decoder]")
    assert not run_named("new").config_file.exists()


def test_a_part_that_the_model_does_not_have_cannot_be_frozen() -> None:
    config = TransformerConfig(num_encoder_layers=0, d_model=8, num_heads=2, d_ff=8, norm="post", tie_embeddings="none")
    model = build_model(config, 9, 9, VectorSource(type="vectors", features=4))
    with pytest.raises(ConfigError, match=r"training\.freeze: encoder: this model has no such parameters"):
        freeze(model, ["encoder"])
    freeze(model, ["output"])
    assert [name for name, value in model.named_parameters() if not value.requires_grad] == ["output.weight"]


@pytest.mark.parametrize("tie", ["all", "decoder"])
@pytest.mark.parametrize("part", ["embeddings", "output"])
def test_a_matrix_of_two_parts_is_frozen_by_the_name_of_either(tie: str, part: ModelPart) -> None:
    config = TransformerConfig.model_validate({"d_model": 8, "num_heads": 2, "d_ff": 8, "tie_embeddings": tie})
    model = build_model(config, 9, 9)
    freeze(model, [part])
    assert not model.output.weight.requires_grad
    first = next(model.parameters())  # of the source alone, if only the decoder's are shared
    assert first.requires_grad == (tie == "decoder" and part == "output")


def test_of_several_processes_one_copies_the_old_tokenizer(work: Path) -> None:
    """A process that replaced it while another reads it ended that one now and then."""
    run, config = run_named("new"), config_of()
    states = []
    for rank in range(3):
        prepare(config, run, resuming=False, ranks=Ranks(rank, 3, rank, 3))
        states.append({path.name: path.stat().st_ino for path in (run.tokenizer, *run.tokenizer.iterdir())})
    assert states == states[:1] * 3


def test_a_corpus_to_replay_must_be_there_and_unchanged(work: Path) -> None:
    first = trained("training.max_steps=1", name="first")
    replaying = [f"training.init_from={first.name}", "data.replay=0.5", "training.max_steps=1"]
    Path("new.de").write_text("".join(f"{line}\n" for line in Path("new.en").read_text().splitlines()))
    with pytest.raises(DataError, match=r"data.replay: .*new.en and .*new.de have changed"):
        trained(*replaying)
    Path("second.en").write_text("1 2\n")
    Path("second.de").write_text("2 1\n")
    Path("new.en").unlink()
    with pytest.raises(DataError, match=r"data.replay: a corpus to replay cannot be read: .*new.en"):
        trained(*replaying, "data.train={src: second.en, tgt: second.de}")


def test_test_sets_that_are_gone_are_a_line(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = yaml.safe_load(Path("runs/old/config.yaml").read_text())
    settings["data"]["test"] = {name: {"src": f"{name}.en", "tgt": f"{name}.de"} for name in ("kept", "absent")}
    for side in ("en", "de"):
        shutil.copy(f"test.{side}", f"runs/old/kept.{side}")
    Path("runs/old/config.yaml").write_text(yaml.safe_dump(settings))
    run = trained("training.max_steps=1")
    messages = capsys.readouterr().err
    assert "absent is not scored before and after: " in messages
    assert "kept is a test set of" not in messages
    options = "training.max_steps=1", "data.test={kept: {src: val.en, tgt: val.de}}"
    train(config_of(*options, name="clash"), run_named("clash"), dry_run=True)
    assert "kept is a test set of runs/old, too, and that one is scored" in capsys.readouterr().err
    Path("runs/old/kept.de").write_text("1\n" * 8)
    assert score_after(run) == []
    assert re.match("warning: kept is not scored again: .* has changed since", capsys.readouterr().err)
    shutil.copy("test.de", "runs/old/kept.de")
    assert [one.name for one in score_after(run)] == ["kept"]
    written = (run.evaluation / "after" / "kept.json").stat().st_mtime_ns
    score_after(run)
    assert (run.evaluation / "after" / "kept.json").stat().st_mtime_ns == written


@pytest.mark.slow
def test_the_report_shows_what_was_forgotten(solved: Path, work: Path) -> None:
    run = trained(f"training.init_from={solved / 'runs' / 'copy'}", "training.learning_rate=1e-2",
                  "training.best_metric=loss", "data.validation={src: new.en, tgt: new.de}")  # fmt: skip
    (one,) = score_after(run)
    page = write_report(run, "cpu").read_text()
    table = page.partition("What was gained and forgotten")[2].partition("</table>")[0]
    figures = re.findall(r'<td class="number">([^<]*)</td>', table)
    scores = [(one.before[metric].value, one.after[metric].value) for metric in one.before]
    assert figures == [
        figure for old, new in scores for figure in ("50", f"{old:.2f}", f"{new:.2f}", f"{new - old:+.2f}")
    ]
    intervals = re.findall(r'<td class="number nowrap">([^<]*)</td>', table)
    assert intervals == ["{:+.2f} to {:+.2f}".format(*one.intervals[metric]) for metric in one.before]
    assert one.before != one.after


def test_without_test_sets_the_old_validation_set_is_scored(work: Path) -> None:
    settings = yaml.safe_load(Path("runs/old/config.yaml").read_text())
    settings["data"]["test"] = {}
    Path("runs/old/config.yaml").write_text(yaml.safe_dump(settings))
    run = trained("training.max_steps=1")
    assert [one.name for one in score_after(run)] == ["validation"]
    hypotheses = (run.evaluation / "before" / "validation.hyp").read_text().splitlines()
    assert hypotheses == nmt.load("runs/old").translate(Path("val.en").read_text().splitlines())


def test_the_vocabulary_command_copies_the_old_runs(work: Path, cli: Cli) -> None:
    code, _, messages = cli("vocab", "new.yaml")
    assert code == 0, messages
    assert (Path("runs/new/tokenizer/joint.words").read_bytes()) == Path("runs/old/tokenizer/joint.words").read_bytes()


def test_a_warning_says_how_much_of_the_new_text_the_vocabulary_lacks(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("new.en").write_text("1 2 x 3\n" * 9)  # 9 of 36 pieces
    Path("new.de").write_text("1 2\n" * 9)
    train(config_of("data.replay=0.9"), run_named("new"), dry_run=True)
    assert "training text: 25.00% of the src pieces are <unk>; the vocabulary is that of old" in capsys.readouterr().err


def test_a_refused_resume_names_this_way_out(work: Path) -> None:
    run = trained("training.max_steps=1")
    with pytest.raises(RunError) as caught:
        trained("training.max_steps=1", "training.seed=2")
    assert f"the same command with --init-from {run.path} --name new-2" in str(caught.value)

"""What each step adds to the plan."""

from collections.abc import Callable, Sequence
from pathlib import Path

from nmt.config.training import Config
from nmt.errors import ConfigError
from nmt.improving import configuring as configs
from nmt.improving.configuring import Corpus, read_sections
from nmt.improving.drafting import Improvement, Training, Wish
from nmt.improving.plan import BestRun, Command

KEEP = 0.8
"""The share of the pairs from monolingual text that filtering keeps."""


def draft_of(wish: Wish, config: Config) -> Improvement:
    """The targets of all steps that are wanted; `ConfigError` for one that there is not, or that cannot be made."""
    check_config(config, wish.command)
    if config.training.init_from is not None:
        raise ConfigError("training.init_from: nmt improve trains from random weights; to teach a run more: nmt adapt")
    if config.data.temperature is not None:
        raise ConfigError("data.temperature: nmt improve adds corpora with weights, which excludes it; use weights")
    wanted = _wanted(wish)
    draft = Improvement(wish, config)
    for step, add in _STEPS.items():
        if step not in wanted:
            continue
        if reason := _hindrance(step, wish, config):
            if wish.steps is not None:
                raise ConfigError(f"--steps {step}: {reason}")
            draft.left_out.append(f"{step}: {reason}")
            continue
        draft.step = step
        add(draft)
    return draft


def check_config(config: Config, command: str) -> None:
    """`ConfigError` for a configuration that no plan of this command of nmt can be made for."""
    if config.source.type != "text":
        raise ConfigError(f"the sources of this configuration are {config.source.type}, and nmt {command} reads text")


def _wanted(wish: Wish) -> set[str]:
    if wish.steps is None:
        return set(_STEPS)
    if unknown := [step for step in wish.steps if step not in _STEPS]:
        raise ConfigError(f"--steps {unknown[0]}: there is no such step; there are {', '.join(_STEPS)}")
    needed = [step for step in wish.steps if step in _NEED_BACKWARD]
    return {"baseline", *wish.steps, *(["backward"] if needed else [])}


_NEED_BACKWARD = ("back_translation", "filtering")


def _hindrance(step: str, wish: Wish, config: Config) -> str:
    """Why a step does not apply; '' if it does."""
    settings = config.training
    if step == "bidirectional" and not config.tokenizer.joint:
        return "one model for both directions needs tokenizer.joint: true"
    if step == "bidirectional" and config.data.src_lang == config.data.tgt_lang:
        return "both sides are in the same language"
    if step == "cutoff" and config.model.architecture != "transformer":
        return "model.token_cutoff is for Transformers"
    if step in ("backward", "filtering") and wish.steps is None and wish.mono_tgt is None and wish.mono_src is None:
        return "it is for monolingual text: --mono-tgt FILE, --mono-src FILE"
    if step == "back_translation" and wish.mono_tgt is None:
        return "it needs text in the target language: --mono-tgt FILE"
    if step == "self_training" and wish.mono_src is None:
        return "it needs text in the source language: --mono-src FILE"
    if step == "averaging":
        enough = settings.keep_checkpoints >= 2 and settings.patience is None
        # The shortest training that can be the best so far has two thirds of the updates.
        if not enough or (settings.max_steps or 0) * 2 // 3 < settings.keep_checkpoints * settings.validate_every:
            return "too few checkpoints are kept: training.keep_checkpoints, of those at each validate_every"
    return ""


def _baseline(draft: Improvement) -> None:
    draft.held_out()
    draft.real()
    tags = [] if draft.wish.mono_tgt is None else [configs.TAG]
    draft.candidate("baseline", draft.trained("baseline", [], lambda: configs.first_sections(
        draft.config, draft.texts["real"], draft.held_out_corpora(), tags), "real"))  # fmt: skip


def _bidirectional(draft: Improvement) -> None:
    best, start, needs = draft.best_name(), "bidirectional_start", [draft.best.file]
    started = draft.trained(start, needs, lambda: configs.both_directions(*read_sections(best())),
                            share=configs.START)  # fmt: skip
    done = draft.trained("bidirectional", [*needs, started], lambda: configs.after_both_directions(
        *read_sections(best()), start), share=1 - configs.START)  # fmt: skip
    draft.candidate("bidirectional", done)


def _cutoff(draft: Improvement) -> None:
    best = draft.best_name()
    draft.longest = Training("", configs.LONGER, is_cut=True)
    done = draft.trained("cutoff", [draft.best.file], lambda: configs.with_cutoff(*read_sections(best())))
    draft.candidate("cutoff", done)


def _backward(draft: Improvement) -> None:
    done = draft.trained("backward", ["configs/baseline.yaml"], lambda: configs.swapped(read_sections("baseline")[0]),
                         share=1.0)  # fmt: skip
    draft.scored("backward", ["runs/backward"], [done], is_swapped=True)


def _diversification(draft: Improvement) -> None:
    """Nguyen et al. 2020, with folds: fold n is translated by models that have learned from the others."""
    draft.folds("folds", "real", draft.wish.folds)
    folds, pairs = draft.texts["folds"], list[Corpus]()
    share = 1 - 1 / len(folds)
    files = draft.text_files("folds")
    needs = list[str]()
    for number, fold in enumerate(folds, start=1):
        others = [one for one in folds if one is not fold]
        for direction, source in (("forward", files[number - 1].src_file), ("backward", files[number - 1].tgt_file)):
            name, is_back = f"{direction}_{number}", direction == "backward"

            def sections(others: Sequence[Corpus] = others, is_back: bool = is_back) -> configs.Sections:
                part = configs.on_part(*read_sections("baseline"), others, share)
                return configs.swapped(part) if is_back else part

            done = draft.trained(name, ["configs/baseline.yaml"], sections, "folds", share=share)
            output = f"text/translated/{direction}_{number}.txt"
            needs.append(draft.translated([f"runs/{name}"], source, output, [done], 1 / len(folds)))
            pairs.append({"src": f"../{output}", "tgt": fold["tgt"]} if is_back
                         else {"src": fold["src"], "tgt": f"../{output}"})  # fmt: skip
    _with_text(draft, "diversification", pairs, needs)


def _back_translation(draft: Improvement) -> None:
    """Sennrich et al. 2016, with a tag before each source (Caswell et al. 2019)."""
    source, output = draft.wish.mono_tgt, "text/translated/mono_tgt.txt"
    assert source is not None, "else the step does not apply"
    options = ("--sample", "--seed", "1") if draft.wish.sample else ()
    draft.translated(["runs/backward"], source, output, ["runs/backward.done"], None, *options)
    pairs = [{"src": f"../{output}", "tgt": f"../{source.as_posix()}"}]
    _with_text(draft, "back_translation", pairs, [output], {"tag": configs.TAG})


def _self_training(draft: Improvement) -> None:
    """He et al. 2020: the sources get noise, the targets are the model's own."""
    source, output = draft.wish.mono_src, "text/translated/mono_src.txt"
    assert source is not None, "else the step does not apply"
    draft.translated([draft.best], source, output, [draft.best.file], None)
    pairs = [{"src": f"../{source.as_posix()}", "tgt": f"../{output}"}]
    _with_text(draft, "self_training", pairs, [output], {"noise": configs.NOISE})


def _filtering(draft: Improvement) -> None:
    """The monolingual texts' pairs that two models find good, by dual conditional cross-entropy (Junczys-Dowmunt
    2018), in the place of all of them; also of a text that was left out."""
    keys: dict[str, Corpus] = {"back_translation": {"tag": configs.TAG}, "self_training": {"noise": configs.NOISE}}
    unfiltered = [name for name in keys if name in draft.texts]
    if not unfiltered:
        raise ConfigError("--steps filtering: is for the pairs of back_translation and self_training; add one of them")
    added = [
        {**corpus, **keys[name]} for name in unfiltered for corpus in draft.filtered(f"filtered_{name}", name, KEEP)
    ]
    best, real = draft.best_name(), draft.texts["real"]

    def sections() -> configs.Sections:
        return configs.with_corpora(*read_sections(best()), added, real, instead_of=unfiltered)

    texts = [f"filtered_{name}" for name in unfiltered]
    draft.candidate("filtering", draft.trained("filtering", [draft.best.file], sections, *texts))


def _student(draft: Improvement) -> None:
    """An ensemble of the best run so far and trainings of its configuration with other seeds, and its student: that
    run, trained on with their translations of the real sources."""
    best, needs = draft.best_name(), [draft.best.file]
    names = [f"teacher_{number}" for number in range(2, draft.wish.teachers + 1)]
    for number, name in enumerate(names, start=1):

        def sections(number: int = number) -> configs.Sections:
            return configs.with_seed(*read_sections(best()), number)

        needs.append(draft.trained(name, [draft.best.file], sections))
    models: list[str | BestRun] = [draft.best, *(f"runs/{name}" for name in names)]
    draft.scored("teacher", models, needs)
    pairs, outputs = list[Corpus](), list[str]()
    for number, (corpus, files) in enumerate(zip(draft.texts["real"], draft.text_files("real"), strict=True), start=1):
        output = f"text/translated/teacher_{number}.txt"
        sharing = 1 / len(draft.texts["real"])
        outputs.append(draft.translated(models, files.src_file, output, [*needs, draft.made["real"]], sharing))
        pairs.append({"src": corpus["src"], "tgt": f"../{output}"})
    draft.cleaned("student", [Path(corpus["src"]) for corpus in pairs], lambda: pairs, outputs)
    done = draft.trained("student", [draft.best.file], lambda: configs.taught(
        *read_sections(best()), best(), configs.not_empty(draft.texts["student"])), "student",
        share=configs.TAUGHT_SHARE * draft.longest.share)  # fmt: skip
    draft.candidate("student", done)


def _with_text(
    draft: Improvement, name: str, pairs: Sequence[Corpus], needs: Sequence[str], of_monolingual: Corpus | None = None
) -> None:
    """A candidate that learns from synthetic pairs, too; `of_monolingual`: keys of a corpus from monolingual text."""
    draft.cleaned(name, [Path(corpus["src"]) for corpus in pairs], lambda: pairs, needs)
    best, real = draft.best_name(), None if of_monolingual is None else draft.texts["real"]
    added = [{**corpus, **(of_monolingual or {})} for corpus in draft.texts[name]]

    def sections() -> configs.Sections:
        return configs.with_corpora(*read_sections(best()), added, real)

    draft.candidate(name, draft.trained(name, [draft.best.file], sections, name))


def _averaging(draft: Improvement) -> None:
    best = draft.best_name()
    config = draft.own("configs/averaging.yaml", [draft.best.file], lambda: configs.write_out(read_sections(best())[0]))
    last = str(draft.config.training.keep_checkpoints)
    command = Command(("average", "--model", draft.best, "--name", "averaging", "--last", last))
    needs = [draft.best.file, config]
    draft.candidate("averaging", draft.command("runs/averaging/average.json", needs, command, makes_folder=True))


def _fine_tuning(draft: Improvement) -> None:
    best = draft.best_name()
    done = draft.trained("fine_tuning", [draft.best.file], lambda: configs.fine_tuned(
        *read_sections(best()), best(), draft.texts["real"]), share=configs.FINE_TUNING_SHARE)  # fmt: skip
    draft.candidate("fine_tuning", done)


_STEPS: dict[str, Callable[[Improvement], None]] = {
    "baseline": _baseline,
    "bidirectional": _bidirectional,
    "cutoff": _cutoff,
    "backward": _backward,
    "diversification": _diversification,
    "back_translation": _back_translation,
    "self_training": _self_training,
    "filtering": _filtering,
    "student": _student,
    "averaging": _averaging,
    "fine_tuning": _fine_tuning,
}

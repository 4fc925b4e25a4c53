"""What a run that goes on must have in common with the one that was begun."""

from nmt.config import Config
from nmt.errors import RunError
from nmt.runs import RunFolder
from nmt.training.memory import found_before

# What a resumed run may change: nothing that the weights so far, or the moving average of them, hang on.
FREE_TO_CHANGE = {
    "data": {"train", "validation", "test"},  # where the text lies; that it is the same text is checked apart
    "training": {
        "max_steps", "max_epochs", "max_minutes", "device", "threads", "compile",
        "validate_every", "log_every", "patience", "keep_checkpoints", "average_last",
    },
    "decoding": {"*"},
    "evaluation": {"*"},
}  # fmt: skip


def as_begun(config: Config, run: RunFolder) -> Config:
    """`config` with the batches that `training.batch_tokens: auto` found when the run was begun."""
    if config.training.batch_tokens != "auto":
        return config
    return config.model_copy(update={"training": found_before(config.training, run.config().training)})


def check_same(old: Config, new: Config, run: RunFolder) -> None:
    """`RunError` if a run is to go on with settings that its weights so far were not made with."""
    asked = new.model_dump()
    weights = [[files.weight for files in config.data.train] for config in (old, new)]
    if weights[0] != weights[1]:
        raise RunError(
            f"{run.path}: this run was begun with the weights {_listed(weights[0])} of data.train, not "
            f"{_listed(weights[1])}; set them back, start over with --fresh, or take another --name"
        )
    for section, fields in old.model_dump().items():
        free = FREE_TO_CHANGE.get(section, set())
        for field, old_value in fields.items():
            new_value = asked[section][field]
            if old_value != new_value and not free & {field, "*"}:
                raise RunError(
                    f"{run.path}: this run was begun with {section}.{field}: {old_value}, not {new_value}; "
                    f"set it back, start over with --fresh, or take another --name"
                )


def _listed(weights: list[float]) -> str:
    return ", ".join(f"{weight:g}" for weight in weights)

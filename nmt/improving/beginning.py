"""The working folder of a plan: a new one, or one that the same options have begun."""

import json
from pathlib import Path
from typing import Any

from nmt.atomic import read_json, write_json, write_text
from nmt.errors import ConfigError
from nmt.improving.drafting import Draft
from nmt.improving.manifest import MANIFEST

_MAY_COME_LATER = ("mono_src",)  # text in the target language gets a tag in every vocabulary


def begin(draft: Draft, folder: Path) -> None:
    """Write the plan into the folder, as a Makefile.

    Raises `ConfigError` for a folder that was begun with other options: what is in it was decided by them. Only steps
    after all others may be added.
    """
    record, makefile = _record(draft), draft.plan().to_makefile()
    file, plan = folder / f"{draft.request.command}.json", folder / "Makefile"
    if file.exists():
        old = read_json(file)
        if changed := [key for key, value in old.items() if not _allows(key, value, record.get(key))]:
            before, now = (json.dumps(one.get(changed[0]), ensure_ascii=False) for one in (old, record))
            raise ConfigError(
                f"{folder}: was begun with {changed[0]}: {before}, and now it is {now}; give another --folder, or the "
                f"same options"
            )
        if old != record:
            (folder / MANIFEST).unlink(missing_ok=True)  # there is more to list
    elif plan.exists() and plan.read_text(encoding="utf-8") == makefile:
        pass  # make has begun it
    elif folder.exists() and any(folder.iterdir()):
        raise ConfigError(
            f"{folder}: is not a folder of nmt {draft.request.command}, and not empty; name another with --folder"
        )
    write_text(plan, makefile)
    write_json(file, record)


def _record(draft: Draft) -> dict[str, Any]:
    """What decides the files of the plan, by name."""
    sections = draft.config.model_dump(mode="json", exclude={"data": {"train", "validation", "test", "exclude"}})
    return {
        **{f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()},
        "data.train": [[path.name for path in (one.src_file, one.tgt_file)] for one in draft.config.data.train],
        **draft.request.record(),
        "decisions": draft.decided,
    }


def _allows(key: str, old: Any, new: Any) -> bool:
    """Whether a folder that was begun with the old value can be resumed with the new one."""
    if key == "decisions":
        return bool(new[: len(old)] == old)
    return bool(old == new) or (key in _MAY_COME_LATER and old is None)

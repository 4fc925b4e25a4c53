"""What a shell completes after an option: names of runs, and keys of a configuration.

The shell calls `nmt` for it at each press of the key, so nothing heavy is imported, and nothing may fail.
"""

from nmt.runs.folder import run_names


def complete_run(incomplete: str) -> list[str]:
    """The runs under runs/ whose names start so."""
    return [name for name in run_names() if name.startswith(incomplete)]


def complete_key(incomplete: str) -> list[str]:
    """The sections and keys that start so: the keys of a section once it is typed."""
    from nmt.config.reference import places, sections

    paths = [section.name for section in sections()]
    if any(incomplete.startswith(f"{path}.") for path in paths):
        paths = list(dict.fromkeys(place.path for place in places()))
    return [path for path in paths if path.startswith(incomplete)]


def complete_setting(incomplete: str) -> list[str]:
    """The sections that start so, then `SECTION.KEY=`; for a whole key, `SECTION.KEY=VALUE` with its values.

    A shell adds a space to a single answer, so where only one section is left, its keys are the answer.
    """
    from nmt.config.reference import places, sections

    found = [f"{section.name}." for section in sections() if section.name.startswith(incomplete)]
    if len(found) > 1:
        return found
    start = found[0] if found else incomplete
    keys = {place.path: place.key for place in places() if not place.key.inner and ".NAME." not in place.path}
    paths = [path for path in keys if path.startswith(start)]
    if len(paths) == 1 or start in paths:
        path = start if start in paths else paths[0]
        return [f"{path}={value}" for value in keys[path].allowed or [keys[path].default or ""]]
    return [f"{path}=" for path in paths]

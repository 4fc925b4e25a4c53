"""docs/reference.md and docs/words.md agree with the code."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_reference.py"


def test_the_reference_is_not_stale() -> None:
    spec = importlib.util.spec_from_file_location("make_reference", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.page() == module.PAGE.read_text(encoding="utf-8"), "run scripts/make_reference.py"
    assert module.words() == module.WORDS.read_text(encoding="utf-8"), "run scripts/make_reference.py"
    assert "#### training.max_steps" in module.page()
    assert "--length-penalty" in module.page()

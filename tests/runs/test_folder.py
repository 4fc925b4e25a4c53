"""Run folders: files that are replaced completely or not at all, and the run that a command uses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import refused

from nmt.errors import RunError
from nmt.runs.folder import RUNS, RunFolder, open_run, run_named
from nmt.system.files import read_json, replacing, write_json, write_text

CONFIG = """\
data:
  train: {src: a.en, tgt: a.de}
  validation: {src: b.en, tgt: b.de}
training: {max_steps: 9}
"""

# Forks a child for each line that a replacement runs (those of shutil too, which copies and removes), ends the child
# there at once, and prints the files left. Imports neither torch nor numpy: a process that forks must have one thread.
KILL_AT_EVERY_LINE = """
import json, os, sys
from pathlib import Path
from nmt.system.files import replacing

NEW = "new " * 5_000
path = Path("kept/file")
seen = []
path.parent.mkdir()
for instant in range(10_000):
    path.write_text("old")
    child = os.fork()
    if not child:
        lines = 0

        def end_here(frame, event, argument):
            global lines
            if not frame.f_code.co_filename.endswith(("system/files.py", "shutil.py", "<string>")):
                return None
            if event == "line":
                if lines == instant:
                    os._exit(9)
                lines += 1
            return end_here

        def replace():
            with replacing(path) as temporary:
                with temporary.open("w") as file:
                    file.write(NEW[:10_000])
                    file.flush()
                    file.write(NEW[10_000:])

        sys.settrace(end_here)
        replace()
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    content = path.read_text() if path.exists() else "nothing"
    seen.append([code, {"old": "old", NEW: "new"}.get(content, content[:20])])
    if not code:
        break
print(json.dumps(seen))
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in another process, in the current folder."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def names_in(folder: Path) -> list[str]:
    """Everything in a folder, hidden files too."""
    return sorted(path.name for path in folder.iterdir())


def make_run(path: Path, trained: bool = True) -> Path:
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(CONFIG)
    if trained:
        (path / "model.safetensors").write_bytes(b"weights")
    return path


# ----------------------------------------------------------------------------------------- replacing files


def test_a_block_that_ends_well_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "file.txt"
    for text in ("first", "second, longer"):
        with replacing(path) as temporary:
            temporary.write_text(text)
            assert temporary.parent != path.parent
        assert path.read_text() == text
        assert names_in(path.parent) == ["file.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_an_exception_inside_leaves_the_old_file_and_no_temporary(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(error), replacing(path) as temporary:
        temporary.write_text("half of")
        raise error
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["file.txt"]


def test_an_exception_inside_leaves_no_file_where_none_was(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stop"), replacing(tmp_path / "file.txt") as temporary:
        temporary.write_text("half of")
        raise ValueError("stop")
    assert names_in(tmp_path) == []


def test_a_block_that_writes_nothing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(FileNotFoundError), replacing(path):
        pass
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["file.txt"]


def test_a_process_that_dies_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    died = python(
        "import os\nfrom pathlib import Path\nfrom nmt.system.files import replacing\n"
        f"with replacing(Path({str(path)!r})) as temporary:\n"
        "    temporary.write_text('half of')\n"
        "    os._exit(7)\n"
    )
    assert died.returncode == 7, died.stderr
    assert path.read_text() == "old"
    write_text(path, "new")  # the remains of the dead process do not matter
    assert path.read_text() == "new"


def test_a_process_killed_at_any_line_leaves_the_old_file_or_the_new_one() -> None:
    done = python(KILL_AT_EVERY_LINE)
    assert done.returncode == 0, done.stderr
    seen: list[tuple[int, str]] = [(code, content) for code, content in json.loads(done.stdout)]
    assert seen[-1] == (0, "new")
    assert {code for code, _ in seen[:-1]} == {9}
    contents = [content for _, content in seen]
    assert contents.count("old") > 20  # making the folder, opening, writing, flushing, renaming
    # the old file up to some line, then the new one, nothing else
    assert contents == ["old"] * contents.count("old") + ["new"] * contents.count("new")


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    for name in ("first", "second"):
        with replacing(path) as temporary:
            (temporary / "inner").mkdir(parents=True)
            (temporary / "inner" / name).write_text(name)
        assert names_in(path / "inner") == [name]
        assert names_in(tmp_path) == ["folder"]


def test_an_exception_inside_leaves_the_old_folder(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").write_text("old")
    with pytest.raises(ValueError, match="stop"), replacing(path) as temporary:
        temporary.mkdir()
        (temporary / "new").write_text("half of")
        raise ValueError("stop")
    assert names_in(path) == ["old"]
    assert names_in(tmp_path) == ["folder"]


def test_a_process_that_dies_while_writing_leaves_the_old_folder(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").write_text("old")
    died = python(
        "import os\nfrom pathlib import Path\nfrom nmt.system.files import replacing\n"
        f"with replacing(Path({str(path)!r})) as temporary:\n"
        "    temporary.mkdir()\n"
        "    (temporary / 'new').write_text('half of')\n"
        "    os._exit(7)\n"
    )
    assert died.returncode == 7, died.stderr
    assert names_in(path) == ["old"]


def test_text_is_written_as_it_is_given(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "学\r\nb\n\u2028")
    assert (tmp_path / "a").read_bytes() == "学\r\nb\n\u2028".encode()


def test_json_comes_back_and_damage_to_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    value = {"学": [1, 2.5, None, "x\u2028"], "b": {}}
    write_json(path, value)
    assert read_json(path) == value
    assert "学" in path.read_text(encoding="utf-8")
    for content in (b'{"a": ', b"", b"\xff"):
        path.write_bytes(content)
        with pytest.raises(RunError, match=r"value\.json: cannot be read"):
            read_json(path)
    with pytest.raises(RunError, match=r"absent\.json: cannot be read"):
        read_json(tmp_path / "absent.json")


# --------------------------------------------------------------------------------------------- finding runs


def test_a_run_is_found_by_path_by_name_and_as_the_latest(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_run(RUNS / name)
    RunFolder(RUNS / "one").remember_as_latest()
    assert open_run(None).name == "one"
    RunFolder(RUNS / "two").remember_as_latest()
    assert open_run(None).name == "two"
    assert open_run("one").path.resolve() == tmp_path / "runs" / "one"
    assert open_run("runs/one").path.resolve() == tmp_path / "runs" / "one"
    assert open_run(str(tmp_path / "runs" / "one")).name == "one"
    elsewhere = make_run(tmp_path / "copied" / "there")
    assert open_run(str(elsewhere)).model_file.read_bytes() == b"weights"


def test_a_name_under_runs_wins_over_a_folder_that_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    make_run(RUNS / "demo")
    assert open_run("demo").path.resolve() == tmp_path / "runs" / "demo"


def test_a_runs_configuration_is_the_one_in_its_folder(tmp_path: Path) -> None:
    run = RunFolder(make_run(RUNS / "one"))
    assert run.config().training.max_steps == 9
    assert run.exists()
    assert not RunFolder(RUNS / "two").exists()


def test_without_a_latest_run_the_message_says_to_train_or_name_one() -> None:
    with pytest.raises(RunError, match=r"there is no runs/latest here: .*--model RUN"):
        open_run(None)


def test_a_latest_run_that_is_gone_is_named() -> None:
    make_run(RUNS / "here")
    write_text(RUNS / "latest", "gone\n")
    with pytest.raises(RunError, match=r"gone: no such run.* here"):
        open_run(None)


def test_a_missing_run_is_reported_with_the_existing_ones() -> None:
    with refused(RunError, "tinny: no such run"):
        open_run("tinny")
    for name in ("tiny", "big"):
        make_run(RUNS / name, trained=False)
    (RUNS / "cache" / "abc").mkdir(parents=True)
    with refused(RunError, "tinny: no such run", "big, tiny"):
        open_run("tinny")


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(RunError, match=r"photos: not a run folder"):
        open_run("photos")


def test_a_run_without_a_model_says_that_it_has_none_yet() -> None:
    make_run(RUNS / "young", trained=False)
    with pytest.raises(RunError, match=r"young: no model yet"):
        open_run("young")


def test_a_run_that_is_set_aside_takes_the_first_free_number_and_keeps_everything(tmp_path: Path) -> None:
    targets = []
    for content in ("a", "b", "c"):
        path = make_run(RUNS / "demo")
        (path / "mark").write_text(content)
        targets.append(RunFolder(path).set_aside())
        assert not path.exists()
    assert [target.name for target in targets] == ["demo.old1", "demo.old2", "demo.old3"]
    assert [(RUNS / target.name / "mark").read_text() for target in targets] == ["a", "b", "c"]
    assert names_in(targets[0]) == ["config.yaml", "mark", "model.safetensors"]


@pytest.mark.parametrize("name", ["demo", "demo.v2", "a b", "2017-06-12", "名", "latest2"])
def test_a_run_may_have_any_name_that_can_be_a_folder(tmp_path: Path, name: str) -> None:
    run = run_named(name)
    make_run(run.path)
    run.remember_as_latest()
    assert run.path.resolve() == tmp_path / "runs" / name
    assert open_run(None).name == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "/etc", "a/b", "a\\b", ".hidden", " ", " a", "latest", "cache", "a\nb", "\n"]
)
def test_a_name_that_would_leave_or_break_the_folder_of_runs_is_refused(name: str) -> None:
    with pytest.raises(RunError, match="a run cannot be called"):
        run_named(name)


def test_a_folder_whose_replacement_fails_half_way_keeps_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").write_text("old")

    def refuse(self: Path, target: Path) -> Path:
        raise OSError("disk")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError), replacing(path) as temporary:
        temporary.mkdir()
    assert path.is_dir()


def test_the_latest_run_is_one_under_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (RUNS / "demo", Path("demo")):
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("")
        (folder / "model.safetensors").write_text("")
    write_text(RUNS / "latest", "demo\n")
    assert open_run(None).path.resolve() == tmp_path / "runs" / "demo"


@pytest.mark.parametrize("name", ["a ", "a\x00b", "a\rb"])
def test_a_name_that_latest_cannot_hold_is_refused(name: str) -> None:
    with pytest.raises(RunError):
        run_named(name)

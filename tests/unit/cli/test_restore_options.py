"""Which options of `jetstream restore` are refused before anything is made."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from jetstream.cli.main import app


@pytest.mark.parametrize(
    ("options", "said"),
    [((), "say which directory"), (("--data", "target", "--node-id", "a/b"), "is no id of a node")],
)
def test_options_of_which_no_node_comes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["restore", str(tmp_path / "backups"), *options], env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    assert not (tmp_path / "target").exists()

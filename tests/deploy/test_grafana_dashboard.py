"""The dashboard names what nodes have, and Prometheus can parse all that it asks."""

import json
import re
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.commands import REPOSITORY
from tests.support.prometheus_programs import NoPrometheus, prometheus_program
from tests.support.promql import mistakes, result_labels

DASHBOARD: Final[dict[str, Any]] = json.loads(
    (REPOSITORY / "deploy" / "grafana" / "jetstream.json").read_text()
)
PANELS: Final[list[dict[str, Any]]] = DASHBOARD["panels"]
TARGETS: Final[list[dict[str, Any]]] = [each for panel in PANELS for each in panel.get("targets", ())]
VARIABLES: Final[dict[str, dict[str, Any]]] = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
OF_GRAFANA: Final = frozenset({"__rate_interval", "__range"})


@pytest.mark.parametrize("expression", [target["expr"] for target in TARGETS])
def test_a_panel_names_only_what_nodes_have(expression: str) -> None:
    assert list(mistakes(expression)) == []
    assert expression.count("{") == expression.count('{job="$job"'), "it shows one cluster"
    assert set(re.findall(r"\$(\w+)", expression)) <= VARIABLES.keys() | OF_GRAFANA


def test_a_legend_names_only_labels_that_its_expression_has() -> None:
    for target in TARGETS:
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert shown <= result_labels(target["expr"]), target


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    numbers = [panel["id"] for panel in PANELS]
    assert len(set(numbers)) == len(numbers)
    places = [panel["gridPos"] for panel in PANELS]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for above, below in pairwise(places):
        beside = below["y"] == above["y"] and below["x"] == above["x"] + above["w"]
        assert beside or (below["y"] == above["y"] + above["h"] and below["x"] == 0)


def test_the_data_source_is_what_its_user_chooses() -> None:
    assert VARIABLES["datasource"]["type"] == "datasource"
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    assert all(panel["datasource"] == chosen for panel in PANELS if panel["type"] != "row")
    queried = [each for each in VARIABLES.values() if each["type"] == "query"]
    assert queried
    assert all(each["datasource"] == chosen for each in queried)


def test_a_variable_lists_labels_that_nodes_have() -> None:
    for variable in VARIABLES.values():
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]  # a definition of another form is to fail
            assert list(mistakes(f"sum by ({label}) ({metric})")) == []


@pytest.mark.slow("tests/deploy/test_grafana_dashboard.py")
def test_prometheus_can_parse_what_every_panel_asks(tmp_path: Path) -> None:
    try:
        program = prometheus_program("promtool")
    except NoPrometheus as reason:
        pytest.skip(f"NO EXPRESSION WAS PARSED: {reason}")
    rules = [
        {"record": f"panel:{number}", "expr": re.sub(r"\$__\w+", "5m", target["expr"])}
        for number, target in enumerate(TARGETS)
    ]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        [program, "check", "rules", tmp_path / "rules.yaml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout

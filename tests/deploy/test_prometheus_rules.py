"""The alerting rules name what nodes have, and fire when they should.

When they fire, Prometheus's own ``promtool`` decides; where there is none, the tests with it are skipped.
"""

import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.commands import REPOSITORY
from tests.support.prometheus_programs import NoPrometheus, prometheus_program
from tests.support.promql import grouping_labels, mistakes, result_labels

FOLDER: Final = REPOSITORY / "deploy" / "prometheus"
RULES: Final[list[dict[str, Any]]] = [
    rule for group in yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"] for rule in group["rules"]
]
ALERTS: Final = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDED: Final = {
    rule["record"]: frozenset(grouping_labels(rule["expr"])) for rule in RULES if "record" in rule
}
FIRING: Final = re.compile(r'alertname="(\w+)"')


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert", rule.get("record")))
def test_a_rule_names_only_what_nodes_have(rule: dict[str, Any]) -> None:
    assert list(mistakes(rule["expr"], RECORDED)) == []


def test_the_page_of_metrics_names_only_what_nodes_have() -> None:
    page = (REPOSITORY / "docs" / "metrics.md").read_text()
    expressions = re.findall(r"^\| .* \| `(.*jetstream_.*)` \|$", page, re.MULTILINE)
    assert len(expressions) > 3
    assert [mistake for expression in expressions for mistake in mistakes(expression)] == []


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_after_what_time_how_bad_what_it_means_and_where_to_read_on(name: str) -> None:
    alert = ALERTS[name]
    assert re.fullmatch(r"\d+[mh]", alert["for"])
    assert alert["labels"] in ({"severity": "critical"}, {"severity": "warning"})
    assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}
    shown = set(re.findall(r"\$labels\.(\w+)", str(alert["annotations"])))
    assert shown <= result_labels(alert["expr"], RECORDED)


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    cases = yaml.safe_load((FOLDER / "rules_test.yaml").read_text())["tests"]
    assert [case["name"] for case in cases] == list(ALERTS)
    for case in cases:
        silent, firing = case["promql_expr_test"]
        assert "exp_samples" not in silent
        assert {FIRING.search(sample["labels"])[1] for sample in firing["exp_samples"]} == {case["name"]}  # type: ignore[index]  # a case without one is to fail


@pytest.mark.parametrize(
    ("expression", "mistake"),
    [
        (
            "rate(jetstream_stream_online[5m]) > 0 and jetstream_stream_byte",
            "no metric jetstream_stream_byte",
        ),
        ('jetstream_stream_online{connection="ingest"}', "jetstream_stream_online has no label connection"),
        ('jetstream_stream_messages_total{outcome=~"refused|x"}', "has no outcome x"),
        ("sum by (job, port) (jetstream_stream_online)", "nothing has the label port"),
        ("jetstream_stream_online offset 5m / on (group) up", "nothing has the label group"),
    ],
)
def test_a_name_that_no_node_has_is_found(expression: str, mistake: str) -> None:
    [found] = mistakes(expression)
    assert mistake in found


@pytest.fixture(scope="module")
def program() -> Path:
    try:
        return prometheus_program("promtool")
    except NoPrometheus as reason:
        pytest.skip(f"NO RULE WAS RUN: {reason}")


@pytest.mark.slow("tests/deploy/test_prometheus_rules.py")
def test_each_alert_fires_when_it_should_and_not_before(program: Path) -> None:
    done = subprocess.run(
        [program, "test", "rules", "rules_test.yaml"], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow("tests/deploy/test_prometheus_rules.py")
def test_an_alert_that_fires_too_early_is_found(program: Path, tmp_path: Path) -> None:
    (tmp_path / "rules_test.yaml").write_text((FOLDER / "rules_test.yaml").read_text())
    (tmp_path / "rules.yaml").write_text((FOLDER / "rules.yaml").read_text().replace("for: 5m", "for: 1m"))
    done = subprocess.run(
        [program, "test", "rules", "rules_test.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "JetstreamClockAhead" in done.stdout + done.stderr

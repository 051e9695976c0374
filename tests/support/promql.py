"""The names that an expression of PromQL has in it, and which of them no node has."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector

from jetstream.node.http.metrics import METRICS

OF_TARGETS: Final = frozenset({"job", "instance"})
"""Labels that Prometheus gives to everything it scrapes."""

_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_GROUPING: Final = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SPAN: Final = re.compile(r"\[[^\]]*\]|\boffset\s+\w+")
_SELECTOR: Final = re.compile(r"(?<![\w.$:])([a-zA-Z_:][\w:]*)\s*(?:\{([^}]*)\}|(\()?)")
_MATCHER: Final = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
_WORDS: Final = frozenset({"and", "or", "unless", "bool", "inf", "nan"})


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric and what its labels are matched with."""

    metric: str
    matchers: Mapping[str, str]


def selectors(expression: str) -> list[Selector]:
    """Return every metric of the expression, once for each time that it is in it."""
    rest = _SPAN.sub("", _GROUPING.sub("", expression))
    return [
        Selector(name, dict(_MATCHER.findall(matchers)))
        for name, matchers, call in _SELECTOR.findall(rest)
        if not call and name not in _WORDS
    ]


def grouping_labels(expression: str) -> set[str]:
    """Return the labels by which the expression groups or matches."""
    return set(re.findall(r"\w+", " ".join(_GROUPING.findall(_QUOTED.sub("", expression)))))


def known_metrics() -> dict[str, tuple[frozenset[str], str]]:
    """Return labels and help of all that is scraped from a node, Prometheus's own ``up`` included."""
    process = CollectorRegistry()
    ProcessCollector(registry=process)
    found = {sample.name: (OF_TARGETS, "") for family in process.collect() for sample in family.samples}
    for metric in METRICS:
        labels = OF_TARGETS | set(metric.labels)
        found |= dict.fromkeys(metric.sample_names, (labels, metric.help))
        if metric.is_histogram:
            found[f"{metric.name}_bucket"] = (labels | {"le"}, metric.help)
    return {"up": (OF_TARGETS, ""), **found}


def result_labels(expression: str, recorded: Mapping[str, frozenset[str]] | None = None) -> set[str]:
    """Return the labels that the results have: those they are grouped by, or those of the first metric."""
    labels = {name: labels for name, (labels, _) in known_metrics().items()} | dict(recorded or {})
    return grouping_labels(expression) or set(labels[selectors(expression)[0].metric])


def mistakes(expression: str, recorded: Mapping[str, frozenset[str]] | None = None) -> Iterator[str]:
    """Yield what no node has of the expression: metrics, labels, and values that no metric's help names.

    Args:
        expression: with all of a dashboard's variables as they are.
        recorded: metrics that recording rules make, with their labels.
    """
    known = known_metrics() | {name: (labels, "") for name, labels in (recorded or {}).items()}
    labels_at_hand: set[str] = set()
    for selector in selectors(expression):
        if selector.metric not in known:
            yield f"there is no metric {selector.metric}"
            continue
        labels, help_text = known[selector.metric]
        labels_at_hand |= labels
        for label, value in selector.matchers.items():
            if label not in labels:
                yield f"{selector.metric} has no label {label}"
            elif label not in OF_TARGETS and "$" not in value:
                strange = set(value.split("|")) - set(re.findall(r"\w+", help_text))
                yield from (f"{selector.metric} has no {label} {word}" for word in sorted(strange))
    yield from (f"nothing has the label {label}" for label in grouping_labels(expression) - labels_at_hand)

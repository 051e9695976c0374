"""Values are frozen dataclasses to the type checker, and cost as much as others to make."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from envelope.values import value

ROOT = Path(__file__).parents[3]
ASSIGNED = """
from envelope.values import value

@value(frozen=True, slots=True)
class Point:
    x: int
    y: int = 0

point = Point(1)
print(hash(point), point.y)
match point:
    case Point(x, y):
        print(x, y)
point.x = 2
Point("1")
"""


@value(frozen=True, slots=True)
class Point:
    x: int
    y: tuple[int, ...] = ()


def test_values_are_equal_and_have_one_hash_by_their_fields() -> None:
    assert Point(1, (2,)) == Point(1, (2,)) != Point(1)
    assert {Point(1): "one"}[Point(1)] == "one"
    assert replace(Point(1), y=(3,)) == Point(1, (3,))
    assert repr(Point(1)) == "Point(x=1, y=())"


def test_a_value_is_matched_by_position_and_has_no_other_attributes() -> None:
    match Point(1, (2,)):
        case Point(x, y):
            assert (x, y) == (1, (2,))
    assert not hasattr(Point(1), "__dict__")


@pytest.mark.parametrize("options", [{"frozen": False, "slots": True}, {"frozen": True, "slots": False}])
def test_a_value_is_written_as_frozen_and_with_slots(options: dict[str, bool]) -> None:
    with pytest.raises(AssertionError, match="a value"):
        value(**options)


def test_the_type_checker_takes_a_value_for_a_frozen_dataclass() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "-c", ASSIGNED]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout

    assert 'Property "x" defined in "Point" is read-only' in said
    assert 'Argument 1 to "Point" has incompatible type "str"' in said
    assert "Found 2 errors" in said, said

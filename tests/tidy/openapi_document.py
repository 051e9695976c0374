"""docs/openapi.json, made of the models of ``/v1``: ``python -m tests.tidy.openapi_document`` writes it."""

import json
from typing import Final

from jetstream.node.http.v1.openapi import openapi
from tests.tidy.source_tree import ROOT

FILE: Final = ROOT / "docs" / "openapi.json"


def render() -> str:
    """Return the file."""
    return json.dumps(openapi(), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    FILE.write_text(render())

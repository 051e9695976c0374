"""What docs/spark.md and the README show of Spark runs as it is written, but for places."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Endpoints
from tests.support.page_examples import python

PRICES = """\
+----------+
|sum(price)|
+----------+
|    5000.0|
+----------+
"""


@pytest.mark.slow("tests/spark/test_source.py", "tests/spark/test_sink.py", "tests/spark/test_table.py")
def test_the_examples_on_the_page_and_in_the_readme_run(
    spark: SparkSession, endpoints: Endpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    exec(python("docs/spark.md", 0, endpoints.servers), names)
    assert capsys.readouterr().out.strip() == PRICES.strip()
    assert names["spark"].sparkContext is spark.sparkContext

    streamed = python("docs/spark.md", 1, endpoints.servers).replace('"orders-', f'"{tmp_path}/orders-')
    exec(streamed, names)
    assert spark.read.parquet(str(tmp_path / "orders-parquet")).count() == 1000

    exec(python("README.md", 2, endpoints.servers), names)
    assert '|orders.eu|{"id": 0, "price"' in capsys.readouterr().out

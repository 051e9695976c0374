"""What every Spark session of the tests is told: be small, start quickly, keep all files in one place."""

from pathlib import Path
from typing import Final

import pyspark

QUICK_JAVA: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Starts a quarter sooner than Java's defaults, which pay only where the same code runs for minutes.

What Spark's own classes are is not verified again."""


def session_settings(directory: Path) -> dict[str, str]:
    """Return the settings of a session that keeps all its files in ``directory``."""
    return {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false",  # to compile takes longer than to run on a few rows
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
    }


def home_without_archive(directory: Path) -> Path:
    """Make a ``SPARK_HOME`` in ``directory`` that has all of the installed one but ``pyspark.zip``.

    Nothing in that archive is compiled, and Spark puts it first on the path of its Python workers: each of
    the seven kinds takes a second to compile what it imports, where the installed package lies compiled.
    """
    installed = Path(pyspark.__file__).parent
    home = directory / "home"
    home.mkdir()
    for name in ("bin", "jars"):
        (home / name).symlink_to(installed / name)
    return home

"""How test files are shared out between processes: a file is run by one, and so are all files of Spark."""

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped] # xdist has no types

SPARK_TESTS = "tests of Spark"


class SparkTogether(LoadFileScheduling):  # type: ignore[misc] # likewise
    """``--dist loadfile`` where a Spark session is the largest thing on the machine: there is one."""

    def _split_scope(self, nodeid: str) -> str:
        """Return what is run by one process, in the order of its tests."""
        path, _, _ = nodeid.partition("::")
        return SPARK_TESTS if runs_spark(path) else path


def runs_spark(path: str) -> bool:
    """Whether tests of a file may start Java: those in ``tests/spark``, and ``test_spark_*.py`` anywhere."""
    return path.startswith("tests/spark/") or path.rpartition("/")[2].startswith("test_spark_")

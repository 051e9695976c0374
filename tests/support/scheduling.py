"""How test files are shared out between processes: a file is run by one, and so are all of Spark and tidy."""

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped] # xdist has no types

SPARK_TESTS = "tests of Spark"
TIDY = "tests/tidy/"


class SharedProcesses(LoadFileScheduling):  # type: ignore[misc] # likewise
    """``--dist loadfile`` with one Spark session, which is large, and one source tree that is parsed."""

    def _split_scope(self, nodeid: str) -> str:
        """Return what is run by one process, in the order of its tests."""
        path, _, _ = nodeid.partition("::")
        if runs_spark(path):
            return SPARK_TESTS
        return TIDY if path.startswith(TIDY) else path


def runs_spark(path: str) -> bool:
    """Whether tests of a file may start Java: those in ``tests/spark``, and ``test_spark_*.py`` anywhere."""
    return path.startswith("tests/spark/") or path.rpartition("/")[2].startswith("test_spark_")

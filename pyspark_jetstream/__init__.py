"""Where Spark finds the format ``jetstream``: ``DefaultSource`` of each top-level module ``pyspark_*``.

The first use of any format that is written in Python pays for the import of all such modules, so the source
leaves what it reads with to those who read.
"""

from jetstream.spark.source import JetstreamDataSource as DefaultSource

__all__ = ["DefaultSource"]

"""Every word and layout that crosses a boundary, without I/O and without Arrow."""

# In the registry, whoever looks there.
from envelope import group_errors as group_errors
from envelope import namespace_errors as namespace_errors
from envelope import partition_errors as partition_errors
from envelope import spark_errors as spark_errors

"""Every word and layout that crosses a boundary, without I/O and without Arrow."""

from envelope import partition_errors as partition_errors  # in the registry, whoever looks there

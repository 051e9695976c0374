"""A Python program that is given as text, for a forked process: it need not import what nodes import.

python -m tests.support.forked_program <source> <argument>...
"""

import sys

if __name__ == "__main__":
    source = sys.argv.pop(1)
    exec(compile(source, "<program>", "exec"), {"__name__": "__main__"})

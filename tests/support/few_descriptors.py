"""A program of ours with limits of its descriptors: soft and hard limit, its module, and its arguments."""

import resource
import runpy
import sys


def main() -> None:
    """Set the limits, then run the module as if it had been started by itself."""
    soft, hard, *sys.argv = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(soft), int(hard)))
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

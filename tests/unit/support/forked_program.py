"""What test_forked_process forks."""

import os
import random
import signal
import sys


def _say(*words: object) -> None:
    sys.stdout.write(f"{' '.join(map(str, words))}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["chance"]:
            _say(random.random())
        case ["echo"]:
            _say(os.getcwd(), os.environ["ONLY"], len(os.environ), sys.stdin.read())
        case ["exit", code]:
            sys.exit(int(code))
        case ["raise"]:
            raise ValueError("a mistake")
        case ["wait"]:
            _say(os.getpid())
            signal.pause()
        case _:
            raise AssertionError(sys.argv)

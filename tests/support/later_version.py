"""The ``jetstream`` command of a version that can one feature level more, which brings nothing.

python -m tests.support.later_version ARGUMENT…
"""

from metadata import features

if __name__ == "__main__":
    vars(features).update(LEVELS=(*features.LEVELS, ()), LATEST_LEVEL=features.LATEST_LEVEL + 1)
    from jetstream.__main__ import main  # only now, as modules take the level when they are imported

    main()

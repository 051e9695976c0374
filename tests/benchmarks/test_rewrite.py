"""The bar of the sealed rewrite, on fewer records than the benchmark's."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.rewrite import CONTENTS, RATIO_MAX, rewrite_singles


@pytest.mark.parametrize("content", CONTENTS)
def test_single_records_end_as_compact_as_large_zstd_batches(content: str, tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    values = [CONTENTS[content](number, chance) for number in range(8000)]
    outcome = rewrite_singles(values, tmp_path)
    assert outcome.single > 900 * len(values)
    assert outcome.merged <= RATIO_MAX * outcome.large
    assert outcome.cpu_seconds > 0

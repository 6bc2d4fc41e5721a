"""Arrays of more than 2^31 elements from Python. `make test-large` runs it: 9 GB of memory and some seconds."""

from pathlib import Path

import pytest
from harness import run

PROGRAM = """
import numpy as np, uform

count = 2**31 + 3
pattern = np.arange(251, dtype=np.uint8)
with uform.Mesh.bootstrap(None, None) as mesh:
    own = pattern if mesh.index == 0 else pattern[::-1]
    array = np.resize(own, count)
    mesh.all_reduce(array, uform.ReduceOp.MAX)
    wanted = np.maximum(pattern, pattern[::-1])
    whole = array[: count - count % 251].reshape(-1, 251)
    assert (whole == wanted).all()
    assert (array[count - count % 251 :] == wanted[: count % 251]).all()
    print(array.size, "elements are right")
"""


@pytest.mark.large
def test_more_elements_than_31_bits_count(tmp_path: Path) -> None:
    for text in run(2, PROGRAM, tmp_path, seconds=600):
        assert "2147483651 elements are right" in text

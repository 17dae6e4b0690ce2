"""When a curve of ours has the shape of the paper's."""

import pytest

from dspark.evaluation.paper.shapes import grows


@pytest.mark.parametrize(
    ("values", "holds"),
    [
        ([0.1, 0.1, 0.2], True),
        ([0.2, 0.999, 0.998], True),  # no difference that anybody sees
        ([2.9, 6.0, 3.7], False),  # the last is above the first, the one between above both
        ([0.2, 0.2], False),
        ([0.3, 0.2], False),
    ],
)
def test_what_grows_never_falls_and_ends_above_its_beginning(values, holds):
    shape = grows("it grows", "so", values, unit=" %")
    assert shape.holds is holds
    assert shape.found.split(" %")[0] == f"{values[0]:.2f}"

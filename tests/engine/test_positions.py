import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.models.engine.positions import Grid, grid_positions, split_grid

GRIDS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)),
    max_size=4,
)


@given(st.integers(1, 20))
def test_text_advances_all_axes_together(num_tokens):
    positions, following = grid_positions(num_tokens, [])

    assert positions.tolist() == [list(range(num_tokens))] * 3
    assert following == num_tokens


@given(GRIDS, st.integers(0, 4))
def test_positions_are_those_of_the_token_by_token_definition(gaps_and_sizes, tail):
    grids, expected, position = [], [], 0
    for gap, t, h, w in gaps_and_sizes:
        expected += [(position + i,) * 3 for i in range(gap)]
        position += gap
        grids.append(Grid(len(expected), t, h, w))
        expected += [
            (position + a, position + b, position + c)
            for a in range(t)
            for b in range(h)
            for c in range(w)
        ]
        position += max(t, h, w)
    expected += [(position + i,) * 3 for i in range(tail)]
    if not expected:
        return

    positions, following = grid_positions(len(expected), grids)

    assert positions.T.tolist() == [list(axes) for axes in expected]
    assert following == position + tail


def test_time_steps_may_be_spread():
    positions, following = grid_positions(3, [Grid(0, 3, 1, 1, time_step=2.5)])

    assert positions[0].tolist() == [0, 2, 5]
    assert following == 6


def test_an_item_whose_steps_are_apart_gives_a_grid_per_step():
    grids = split_grid([(3, 4), (9, 8)], [3, 4, 4], 2, by_time=True)

    assert grids == [Grid(3, 1, 2, 2), Grid(9, 1, 2, 2), Grid(13, 1, 2, 2)]


@pytest.mark.parametrize(
    ("runs", "grid"),
    [([(0, 3)], [1, 4, 4]), ([(0, 2), (4, 2)], [1, 4, 4]), ([(0, 1)], [0, 4, 4])],
)
def test_runs_that_do_not_hold_the_grid_are_refused(runs, grid):
    with pytest.raises(ValueError, match="grid"):
        split_grid(runs, grid, 2)


def test_positions_are_int64():
    assert grid_positions(5, [Grid(1, 1, 1, 2)])[0].dtype == torch.int64

"""Trees of tensors: stacking, indexing, moving, counting."""

import torch

from basinet.core.tree import (
    Point,
    concatenate,
    leaves,
    move,
    nbytes,
    ravel,
    size,
    stack,
    take,
    unravel,
    where,
)


def point(value: float) -> Point:
    return Point({"a": torch.full((2, 3), value), "b": torch.full((), value)}, {"n": torch.tensor(int(value))})


def test_take_undoes_stack_and_keeps_types():
    trees = [point(float(i)) for i in range(4)]
    stacked = stack(trees)
    assert isinstance(stacked, Point)
    assert stacked.params["a"].shape == (4, 2, 3) and stacked.buffers["n"].tolist() == [0, 1, 2, 3]
    for i in (0, 3, -1):
        assert all(torch.equal(x, y) for x, y in zip(leaves(take(stacked, i)), leaves(trees[i])))
    assert take(stacked, slice(1, 3)).buffers["n"].tolist() == [1, 2]
    assert take(stacked, torch.tensor([3, 0])).buffers["n"].tolist() == [3, 0]


def test_concatenate_joins_the_leading_axis():
    first, second = stack([point(0), point(1)]), stack([point(2)])
    assert concatenate([first, second]).buffers["n"].tolist() == [0, 1, 2]


def test_where_picks_by_member_whatever_the_shape_of_a_leaf():
    yes, no = stack([point(1)] * 3), stack([point(0)] * 3)
    picked = where(torch.tensor([True, False, True]), yes, no)
    assert picked.params["a"].sum((1, 2)).tolist() == [6, 0, 6]
    assert picked.params["b"].tolist() == [1, 0, 1] and picked.buffers["n"].tolist() == [1, 0, 1]


def test_move_changes_the_dtype_of_only_real_numbers():
    moved = move({"x": torch.zeros(2), "n": torch.tensor(3), "f": torch.tensor(True), "s": "text"}, dtype=torch.float64)
    assert moved["x"].dtype == torch.float64 and moved["n"].dtype == torch.int64 and moved["f"].dtype == torch.bool
    assert moved["s"] == "text"
    assert move({"x": torch.zeros(2)}, "meta")["x"].device.type == "meta"


def test_size_and_bytes_count_tensors():
    tree = {"x": torch.zeros(2, 3), "n": torch.zeros(5, dtype=torch.int64), "none": None}
    assert size(tree) == 11
    assert nbytes(tree) == 6 * 4 + 5 * 8


def test_unravel_undoes_ravel_in_the_order_of_the_dict():
    params = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.tensor(9.0)}
    vector = ravel(params)
    assert vector.tolist() == [0, 1, 2, 3, 4, 5, 9]
    back = unravel(vector, params)
    assert list(back) == ["b", "a"] and all(torch.equal(back[n], params[n]) for n in params)


def test_ravel_keeps_leading_axes():
    params = {"a": torch.zeros(4, 5, 2, 3), "b": torch.ones(4, 5)}
    vector = ravel(params, batch_dims=2)
    assert vector.shape == (4, 5, 7)
    assert vector[1, 2].tolist() == [0] * 6 + [1]

"""Data: what it holds, how it is cut and drawn from, and what it refuses."""

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from basinet.core import Noise
from basinet.core.tree import leaves
from basinet.data import Data

N = 10
X = torch.arange(3.0 * N).reshape(N, 3)
Y = torch.arange(N) % 2


class Pair(NamedTuple):
    image: torch.Tensor
    text: torch.Tensor


def numbered(n: int, **fields: torch.Tensor) -> Data:
    """Data whose inputs say which example they are."""
    return Data(torch.arange(n), torch.zeros(n), **fields)


# What it holds


def test_it_counts_the_examples_of_one_member():
    assert (Data(X, Y).n, len(Data(X, Y))) == (N, N)
    rows = torch.zeros(4, 7, dtype=torch.int64)
    assert (Data(X, Y, rows=rows).n, len(Data(X, Y, rows=rows))) == (7, 7)


@pytest.mark.parametrize(
    "inputs",
    [X, (X, X[:, :1]), {"image": X, "text": (Y, X[:, 0])}, Pair(X, Y)],
    ids=["tensor", "tuple", "dict", "namedtuple"],
)
def test_inputs_are_any_tree(inputs):
    data = Data(inputs, Y, torch.rand(N) + 0.1)
    assert type(data.inputs) is type(inputs)
    part = data.take([7, 2])
    assert type(part.inputs) is type(inputs)
    for taken, leaf in zip(leaves(part.inputs), leaves(inputs), strict=True):
        assert torch.equal(taken, leaf[[7, 2]])
    assert torch.equal(part.targets, Y[[7, 2]])
    assert torch.equal(part.weights, data.weights[[7, 2]])
    halves = data.split(0.5, 0.5)
    assert [len(leaf) for half in halves for leaf in leaves(half.inputs)] == [5] * 2 * len(leaves(inputs))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.float64, torch.float32),
        (np.longdouble, torch.float32),
        (np.dtype(">f8"), torch.float32),
        (np.float32, torch.float32),
        (np.float16, torch.float16),
        (np.int32, torch.int32),
        (np.dtype(">i8"), torch.int64),
        (np.uint8, torch.uint8),
        (np.uint16, torch.int64),
        (np.bool_, torch.bool),
    ],
)
def test_numpy_arrays_are_converted(given, kept):
    array = np.array([[1, 0], [0, 1]]).astype(given)
    data = Data({"a": array}, array[:, 0])
    assert data.inputs["a"].dtype == data.targets.dtype == kept
    assert data.inputs["a"].tolist() == array.tolist()
    assert data.targets.tolist() == array[:, 0].tolist()


def test_numpy_float64_follows_the_default_dtype_and_tensors_are_kept():
    assert Data(X.double(), Y.double()).inputs.dtype == torch.float64
    torch.set_default_dtype(torch.float64)
    try:
        assert Data(np.ones((N, 2)), Y).inputs.dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_numpy_memory_is_shared_where_it_can_be_and_copied_where_it_is_read_only():
    array = np.ones((N, 2), np.float32)
    assert np.shares_memory(Data(array, Y).inputs.numpy(), array)
    array.flags.writeable = False
    assert not np.shares_memory(Data(array, Y).inputs.numpy(), array)
    assert Data(np.arange(N)[::-1], Y).inputs.tolist() == list(range(N))[::-1]  # a negative stride


def test_tensors_are_not_copied_and_the_scan_allocates_next_to_nothing():
    class Outputs(TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            self.largest = max([self.largest, *(x.numel() for x in leaves(out) if isinstance(x, torch.Tensor))])
            return out

    x, y = torch.rand(1000, 10), torch.rand(1000)
    with Outputs() as outputs:
        data = Data(x, y)
    assert 0 < outputs.largest <= 2
    assert data.inputs is x
    assert data.targets is y


def test_it_is_frozen_and_its_repr_is_short():
    data = Data({"a": X}, Y)
    with pytest.raises(AttributeError):
        data.targets = Y
    assert repr(data) == "Data(n=10, inputs['a']: float32 (10, 3), targets: int64 (10,))"


def test_weights_and_rows_are_made_fit_for_use():
    data = Data(X, Y, weights=np.arange(N), rows=np.zeros((2, 3), np.int32))
    assert data.weights.dtype == torch.float32
    assert data.weights.tolist() == list(range(N))
    assert data.rows.dtype == torch.int64
    assert Data(X, Y, weights=torch.ones(N, dtype=torch.float64)).weights.dtype == torch.float64


# What it refuses


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Data(X[:0], Y[:0]), r"at least one example, got none \(shape \(0, 3\)\)"),
        (lambda: Data({}, Y), r"at least one tensor, got \{\}"),
        (lambda: Data({"a": X, "b": (X, X[:4])}, Y), r"inputs\['b'\]\[1\] to have as many .* \(10\), got 4"),
        (lambda: Data(X, Y[:9]), r"targets to have as many examples as inputs \(10\), got 9"),
        (lambda: Data(X, torch.tensor(1.0)), "targets to have a leading axis of examples, got a scalar"),
        (lambda: Data(X, Y.to("meta")), "targets on cpu as inputs, got meta; move them together"),
        (lambda: Data(X, Y, weights=torch.ones(N, device="meta")), "weights on cpu as targets, got meta"),
        (lambda: Data(X, Y, weights=torch.ones(9)), r"weights of shape \(10,\), got \(9,\)"),
        (lambda: Data(X, Y, weights=torch.ones(N, 1)), r"weights of shape \(10,\), got \(10, 1\)"),
        (lambda: Data(X, Y, weights=torch.zeros(N)), "not all zero, got only zeros"),
        (lambda: Data(X, Y, weights=torch.arange(N) - 1.0), "weights >= 0, .* got a negative one"),
        (lambda: Data(X, Y, weights=torch.full((N,), math.inf)), "finite weights, got 10 of 10"),
        (lambda: Data(X, Y, weights=torch.arange(N) / 0.0), r"finite weights, got 10 of 10 .* index \(0,\)"),
        (lambda: Data(X, Y, rows=torch.tensor([[0, N]])), "examples 0 to 9, got 10"),
        (lambda: Data(X, Y, rows=torch.tensor([[-1, 3]])), "examples 0 to 9, got -1"),
        (lambda: Data(X, Y, rows=torch.arange(N)), r"\(members, n\) of integers, got int64 \(10,\)"),
        (lambda: Data(X, Y, rows=torch.ones(2, 3)), r"of integers, got float32 \(2, 3\)"),
        (lambda: Data(X, Y, rows=torch.ones(2, N, dtype=torch.bool)), r"of integers, got bool \(2, 10\)"),
        (lambda: Data(X, Y, rows=torch.ones(2, 0, dtype=torch.int64)), r"of integers, got int64 \(2, 0\)"),
    ],
)
def test_bad_fields_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Data(X, Y.tolist()), "targets to be a tensor .*, got a list; use torch.as_tensor"),
        (lambda: Data(X, None), "targets to be a tensor .*, got a NoneType"),
        (lambda: Data({"a": X, "b": None}, Y), r"inputs\['b'\] to be a tensor .*, got a NoneType"),
        (lambda: Data([1.0, 2.0], Y[:2]), r"inputs\[0\] to be a tensor .*, got a float"),
        (lambda: Data(np.array(["a"] * N), Y), "inputs to be a tensor .*, got an array of <U1"),
        (lambda: Data(X, Y, weights=[1.0] * N), "weights to be a tensor .*, got a list"),
        (lambda: Data(X, Y, rows=[[0, 1]]), "rows to be a tensor .*, got a list"),
    ],
)
def test_what_is_not_a_tensor_is_refused(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_values_that_are_not_finite_are_counted_and_located(value, dtype):
    x = X.clone().to(dtype)
    x[4, 1], x[7, 0], x[9, 2] = value, value, value
    where = r"got 3 of 30 values NaN or infinite, the first at index \(4, 1\); drop or fill them"
    with pytest.raises(ValueError, match=rf"finite inputs\['b'\], {where}"):
        Data({"a": X, "b": x}, Y)
    with pytest.raises(ValueError, match=f"finite targets, {where}"):
        Data(X, x)


def test_values_that_overflow_float32_are_found():
    with pytest.raises(ValueError, match=r"got 1 of 10 values NaN or infinite, the first at index \(3,\)"):
        Data(np.where(np.arange(N) == 3, 1e300, 0.0), Y)


def test_huge_finite_values_and_empty_features_pass():
    assert Data(torch.full((N, 100), 3e38), Y).n == N  # their sum would overflow
    assert Data(torch.ones(N, 0), Y).n == N


# take and member


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (slice(2, 8, 3), [2, 5]),
        ([3, 3, -1], [3, 3, 9]),
        (range(2), [0, 1]),
        (np.array([4, 1]), [4, 1]),
        (torch.tensor([4, 1], dtype=torch.int32), [4, 1]),
        (torch.arange(N) > 7, [8, 9]),
    ],
)
def test_take(index, expected):
    part = numbered(N, weights=torch.arange(N) + 1.0).take(index)
    assert part.inputs.tolist() == expected
    assert part.weights.tolist() == [i % N + 1 for i in expected]
    assert part.rows is None


def test_take_accepts_a_read_only_array():
    index = np.array([5])
    index.flags.writeable = False
    assert numbered(N).take(index).inputs.tolist() == [5]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (3, r"1-D positions or a mask of 10, got int64 \(\); \[i\] takes one example"),
        ([[1, 2]], r"got int64 \(1, 2\)"),
        ([0.5], r"got float32 \(1,\)"),
        (torch.ones(4, dtype=torch.bool), r"mask of 10, got bool \(4,\)"),
        ([0, 10], "positions below 10, got 0 to 10"),
        ([-11], "positions below 10, got -11 to -11"),
        ([], "at least one example, got none"),
        (slice(4, 4), "at least one example, got none"),
        (torch.zeros(N, dtype=torch.bool), "at least one example, got none"),
    ],
)
def test_take_refuses_a_bad_index(index, message):
    with pytest.raises(ValueError, match=message):
        numbered(N).take(index)


def test_member_applies_its_row():
    rows = torch.tensor([[0, 0, 3], [9, 8, 7]])
    data = numbered(N, weights=torch.arange(N) + 1.0, rows=rows)
    for k, row in enumerate(rows.tolist()):
        part = data.member(k)
        assert part.inputs.tolist() == row
        assert part.weights.tolist() == [i + 1.0 for i in row]
        assert part.rows is None
        assert part.n == 3


def test_member_without_rows_is_the_data():
    data = numbered(N)
    assert data.member(5) is data


@pytest.mark.parametrize("k", [2, -1])
def test_member_refuses_more_members_than_rows(k):
    with pytest.raises(ValueError, match=f"expected a member from 0 to 1, got {k}; give rows one line per member"):
        numbered(N).bootstrap(2).member(k)


def test_what_cuts_data_refuses_rows():
    data = numbered(N).bootstrap(2)
    with pytest.raises(ValueError, match=r"take expected data without rows, got rows \(2, 10\); use \.member\(k\)"):
        data.take([0])
    with pytest.raises(ValueError, match="split expected data without rows"):
        data.split(0.5, 0.5)
    with pytest.raises(ValueError, match="bootstrap expected data without rows"):
        data.bootstrap(2)


# bootstrap


def test_a_bootstrap_row_depends_on_seed_and_member_only():
    rows = numbered(50).bootstrap(7, seed=3).rows
    assert torch.equal(rows[:3], numbered(50).bootstrap(3, seed=3).rows)
    key = Noise.seed(3).split("bootstrap")
    assert torch.equal(rows[5], key.split(5).integers(50, 50))
    assert not torch.equal(rows, numbered(50).bootstrap(7, seed=4).rows)
    assert len({tuple(row) for row in rows.tolist()}) == 7


def test_bootstrap_rows_are_uniform_draws_with_replacement():
    n, members = 2000, 50
    rows = numbered(n).bootstrap(members).rows
    # Every example is drawn `members` times on average. Pearson's statistic is chi-squared with n - 1 degrees
    # of freedom, here as a z-score: mean n - 1, variance 2 (n - 1).
    counts = torch.bincount(rows.reshape(-1), minlength=n).double()
    chi = ((counts - members) ** 2 / members).sum().item()
    assert abs(chi - (n - 1)) / math.sqrt(2 * (n - 1)) < 4
    # Distinct examples of a row: mean n (1 - (1 - 1/n)^n), in the limit n (1 - 1/e), and its exact variance.
    distinct = torch.tensor([len(set(row)) for row in rows.tolist()]).double()
    miss, both = (1 - 1 / n) ** n, (1 - 2 / n) ** n
    variance = n * miss + n * (n - 1) * both - (n * miss) ** 2
    assert math.isclose(1 - miss, 1 - math.exp(-1), rel_tol=1e-3)
    assert abs(distinct.mean().item() - n * (1 - miss)) / math.sqrt(variance / members) < 4


@pytest.mark.parametrize(("fraction", "count"), [(1.0, 10), (0.5, 5), (0.26, 3), (0.001, 1)])
def test_bootstrap_fraction_sets_n(fraction, count):
    data = numbered(N, weights=torch.arange(N) + 1.0).bootstrap(3, fraction=fraction)
    assert data.rows.shape == (3, count)
    assert data.n == data.member(2).n == count
    assert torch.equal(data.member(2).weights, data.rows[2] + 1.0)


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.5, math.nan])
def test_bootstrap_refuses_a_bad_fraction(fraction):
    with pytest.raises(ValueError, match="expected 0 < fraction <= 1, got"):
        numbered(N).bootstrap(2, fraction=fraction)


def test_bootstrap_refuses_no_members():
    with pytest.raises(ValueError, match="expected members >= 1, got 0"):
        numbered(N).bootstrap(0)


# split


@pytest.mark.parametrize("stratify", [False, True])
@pytest.mark.parametrize(
    ("n", "fractions", "sizes"),
    [
        (10, (0.6, 0.2, 0.2), [6, 2, 2]),
        (11, (0.6, 0.2, 0.2), [7, 2, 2]),  # 6.6, 2.2, 2.2
        (13, (0.6, 0.2, 0.2), [8, 3, 2]),  # 7.8, 2.6, 2.6: equal remainders go to the earlier part
        (100, (0.29, 0.71), [29, 71]),  # 0.29 * 100 is below 29 in floating point
        (7, (1.0,), [7]),
    ],
)
def test_split_is_disjoint_complete_and_of_the_right_sizes(stratify, n, fractions, sizes):
    data = Data(torch.arange(n), torch.arange(n) % 3, weights=torch.arange(n) + 1.0)
    parts = data.split(*fractions, seed=1, stratify=stratify)
    assert [part.n for part in parts] == sizes
    rows = [i for part in parts for i in part.inputs.tolist()]
    assert sorted(rows) == list(range(n))
    assert rows != sorted(rows)
    for part in parts:
        assert torch.equal(part.targets, part.inputs % 3)
        assert torch.equal(part.weights, part.inputs + 1.0)


@pytest.mark.parametrize("stratify", [False, True])
def test_split_depends_on_the_seed(stratify):
    data = Data(torch.arange(60), torch.arange(60) % 3)
    first, again, other = (data.split(0.5, 0.5, seed=s, stratify=stratify)[0].inputs for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_stratified_parts_have_every_class_in_proportion():
    # Uneven, with gaps and a negative label. The sizes are 368.4, 122.8, 61.4 and 61.4 before rounding.
    classes = torch.tensor([0] * 501 + [1] * 97 + [7] * 13 + [-2] * 3)
    classes = classes[Noise.seed(0).permutation(len(classes))]
    fractions = (0.6, 0.2, 0.1, 0.1)
    parts = Data(torch.arange(len(classes)), classes).split(*fractions, stratify=True)
    assert [part.n for part in parts] == [369, 123, 61, 61]
    for label in classes.unique():
        for part, fraction in zip(parts, fractions):
            share = fraction * int((classes == label).sum())
            assert abs(int((part.targets == label).sum()) - share) <= 1
    train = parts[0].targets
    assert not torch.equal(train, train.sort().values)
    assert int((train[:100] == 0).sum()) < 100  # not class by class


def test_stratified_sizes_are_right_even_when_every_class_rounds_the_same_way():
    classes = torch.arange(40) % 10  # four of each: shares 2.4, 0.8, 0.8, which alone would round to 2, 1, 1
    parts = Data(torch.arange(40), classes).split(0.6, 0.2, 0.2, stratify=True)
    assert [part.n for part in parts] == [24, 8, 8]


def test_a_split_without_stratify_is_a_uniform_draw():
    # The first part of 200 splits holds example 0 a binomial number of times: 200 trials of 0.3, z below 4.
    hits = sum(0 in numbered(N).split(0.3, 0.7, seed=s)[0].inputs.tolist() for s in range(200))
    assert abs(hits - 60) / math.sqrt(200 * 0.3 * 0.7) < 4


@pytest.mark.parametrize("fractions", [(), (0.5, 0.4), (0.5, 0.5 + 1e-6), (1.2, -0.2), (1.0, 0.0), (math.nan,)])
def test_split_refuses_bad_fractions(fractions):
    with pytest.raises(ValueError, match="expected positive fractions that sum to 1, got"):
        numbered(N).split(*fractions)


@pytest.mark.parametrize("stratify", [False, True])
def test_split_refuses_an_empty_part(stratify):
    with pytest.raises(ValueError, match=r"an example in every part, got sizes \[10, 0\]"):
        Data(X, Y).split(0.99, 0.01, stratify=stratify)


@pytest.mark.parametrize(
    ("targets", "described"), [(torch.rand(N), r"float32 \(10,\)"), (Y.unsqueeze(1), r"int64 \(10, 1\)")]
)
def test_stratify_needs_classes(targets, described):
    with pytest.raises(ValueError, match=f"integer targets .* to stratify by, got {described}; leave stratify out"):
        Data(X, targets).split(0.5, 0.5, stratify=True)


# to


def test_to_changes_floating_leaves_only():
    rows = torch.zeros(2, 3, dtype=torch.int64)
    data = Data({"x": X, "token": Y}, Y, torch.ones(N), rows).to("cpu", torch.float64)
    assert (data.inputs["x"].dtype, data.inputs["token"].dtype) == (torch.float64, torch.int64)
    assert (data.targets.dtype, data.weights.dtype) == (torch.int64, torch.float64)
    assert torch.equal(data.rows, rows)
    assert Data(X, X).to(dtype=torch.float16).targets.dtype == torch.float16
    assert Data(X, X).to().inputs is X


def test_to_refuses_an_integer_dtype_and_an_overflow():
    with pytest.raises(ValueError, match=r"expected a floating dtype, got torch.int64"):
        Data(X, Y).to(dtype=torch.int64)
    with pytest.raises(ValueError, match=r"finite inputs, got 3 of 30"):
        Data(torch.where(Y[:, None] + X < 3, 1e5, X), Y).to(dtype=torch.float16)


# fingerprint


def test_fingerprint_is_of_the_content():
    weights, rows = torch.ones(N), torch.zeros(2, 3, dtype=torch.int64)
    first = Data({"a": X, "b": Y}, Y, weights, rows).fingerprint()
    assert len(first) == 64
    assert int(first, 16) >= 0
    assert first == Data({"b": Y.clone(), "a": X.clone()}, Y.clone(), weights.clone(), rows.clone()).fingerprint()
    assert Data(X, Y).fingerprint() == Data(X.T.contiguous().T, Y).fingerprint()  # layout in memory is not content
    assert Data(X.bfloat16(), Y > 0).fingerprint() != Data(X.bfloat16(), Y).fingerprint()


def test_fingerprint_changes_with_any_byte_shape_dtype_or_name():
    weights, rows = torch.ones(N), torch.zeros(2, 3, dtype=torch.int64)
    x, y, w, r = X.clone(), Y.clone(), weights.clone(), rows.clone()
    x.view(torch.uint8)[9, 11] ^= 1
    y.view(torch.uint8)[70] ^= 1
    w.view(torch.uint8)[0] ^= 1
    r[1, 2] = 1
    variants = [
        Data(X, Y, weights, rows),
        Data(x, Y, weights, rows),
        Data(X, y, weights, rows),
        Data(X, Y, w, rows),
        Data(X, Y, weights, r),
        Data(X, Y, weights),
        Data(X, Y, rows=rows),
        Data(X, Y),
        Data(X.reshape(N, 3, 1), Y),
        Data(X.view(torch.int32), Y),
        Data({"a": X}, Y),
        Data({"b": X}, Y),
        Data((X, X), Y),
        Data((X,), Y),
        Data(X.flip(0), Y.flip(0)),
    ]
    assert len({data.fingerprint() for data in variants}) == len(variants)


def test_fingerprint_is_computed_once(monkeypatch):
    data = Data(X, Y)
    first = data.fingerprint()
    monkeypatch.setattr("hashlib.sha256", None)
    assert data.fingerprint() == first
    with pytest.raises(TypeError):
        Data(X, Y).fingerprint()


# Folds


@pytest.mark.parametrize("stratify", [False, True])
@pytest.mark.parametrize(("n", "k"), [(12, 3), (13, 3), (14, 4), (5, 5)])
def test_every_example_is_held_out_once_and_never_trained_on_by_that_member(stratify, n, k):
    data = Data(torch.arange(n), torch.arange(n) % 2)
    train, held = data.folds(k, seed=1, stratify=stratify)
    assert sorted(x for part in held for x in part.inputs.tolist()) == list(range(n))
    assert len(held) == k and train.rows.shape == (k, n - -(-n // k))
    for member, part in enumerate(held):
        rows = train.member(member).inputs.tolist()
        assert len(set(rows)) == len(rows) and not set(rows) & set(part.inputs.tolist())
        assert n - len(rows) - len(part) in ((0, 1) if n % k else (0,))


def test_stratified_folds_have_the_share_of_each_class():
    targets = (torch.arange(60) % 3 == 0).long()
    _, held = Data(torch.arange(60), targets).folds(4, stratify=True)
    assert [int(part.targets.sum()) for part in held] == [5, 5, 5, 5]


def test_each_fold_serves_as_many_members_as_asked():
    data = numbered(12)
    once, alone = data.folds(3)
    train, held = data.folds(3, members=2)
    assert torch.equal(train.rows, once.rows[[0, 0, 1, 1, 2, 2]])
    assert [part.inputs.tolist() for part in held] == [alone[i].inputs.tolist() for i in (0, 0, 1, 1, 2, 2)]
    assert not torch.equal(data.folds(3, seed=1)[0].rows, once.rows)


@pytest.mark.parametrize(
    ("arguments", "message"), [((1,), "2 to 12 folds"), ((13,), "2 to 12 folds"), ((3, 0), "members >= 1")]
)
def test_folds_refuse_what_cannot_be(arguments, message):
    with pytest.raises(ValueError, match=message):
        numbered(12).folds(*arguments)
    with pytest.raises(ValueError, match="without rows"):
        numbered(12).folds(3)[0].folds(3)


def test_a_member_leaves_out_the_same_rows_whatever_the_other_members():
    data = Data(torch.arange(40.0).view(20, 2), torch.arange(20.0).unsqueeze(1))
    train, val = data.held_out(3, 0.25, seed=5)
    for k in range(3):
        assert sorted([*train.rows[k].tolist(), *val.rows[k].tolist()]) == list(range(20))
        assert torch.equal(val.member(k).targets[:, 0], val.rows[k].float())
    assert len({tuple(sorted(row)) for row in val.rows.tolist()}) == 3
    more, held = data.held_out(7, 0.25, seed=5)
    assert torch.equal(more.rows[:3], train.rows) and torch.equal(held.rows[:3], val.rows)
    assert (train.n, val.n) == (15, 5)
    for fraction in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="expected a fraction between 0 and 1"):
            data.held_out(2, fraction)
    with pytest.raises(ValueError, match="expected members >= 1"):
        data.held_out(0)
    with pytest.raises(ValueError, match="without rows"):
        train.held_out(2)

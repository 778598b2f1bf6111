"""Streams: what they pass on, what they refuse and how, and whose random numbers they use."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

import basinet as bn
from basinet.core.model import seeded
from basinet.data import Piece, Stream, pieces, some

X = torch.arange(20.0).reshape(10, 2)
Y = torch.arange(10) % 3


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not [t for t in threading.enumerate() if t.name == "basinet-ahead"]


def cut(size: int = 4) -> list[tuple[Tensor, Tensor]]:
    return list(zip(X.split(size), Y.split(size)))


def read(stream: Stream, count: int, skip: int = 0) -> list[Any]:
    ahead = stream.batches(skip)
    try:
        return [next(ahead) for _ in range(count)]
    finally:
        ahead.close()


class Loader:
    """Iterable again and again, without a length."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


SOURCES = {"list": cut(), "iterable": Loader(cut()), "iterators": lambda: iter(cut()), "lists": lambda: cut()}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_come_in_order_and_start_again_when_they_end(source, prefetch):
    batches = read(bn.Data.stream(source, n=10, prefetch=prefetch), 7)
    expected = [*cut(), *cut(), cut()[0]]
    assert all(
        torch.equal(p.inputs, x) and torch.equal(p.targets, y) for p, (x, y) in zip(batches, expected, strict=True)
    )
    assert all(p.weights is None for p in batches)


@pytest.mark.parametrize("skip", [0, 1, 3, 5])
def test_a_stream_that_is_opened_later_continues_as_it_would_have(skip):
    loader = DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True)
    stream = bn.Data.stream(loader, n=10)
    whole, late = read(stream, 8), read(stream, 8 - skip, skip)
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(whole[skip:], late, strict=True))


def test_what_a_loader_draws_follows_from_the_seed_and_leaves_the_generator_of_the_program_alone():
    loader = DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True)
    stream = bn.Data.stream(loader, n=10)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    a = torch.cat([p.targets for p in read(stream, 6)])
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    b = torch.cat([p.targets for p in read(stream, 6)])
    other = torch.cat([p.targets for p in read(stream.seeded(1), 6)])
    assert torch.equal(a, b) and not torch.equal(a, other)
    assert not torch.equal(a[:10], a[10:])  # each pass has an order of its own
    assert torch.equal(a[:10].sort().values, Y.sort().values)


def test_nobody_draws_while_another_has_the_generator():
    reading, entered = threading.Event(), threading.Event()

    def batches() -> Iterator[Any]:
        reading.set()
        entered.wait(0.5)
        torch.rand(5)
        yield X, Y

    stream = bn.Data.stream(batches, n=10)
    stream.seen["first"] = Piece(X, Y)
    ahead = stream.batches()
    assert reading.wait(10)
    with seeded(7):
        entered.set()
        next(ahead)
        drawn = torch.rand(3)
    ahead.close()
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(7)))


def test_a_pair_may_have_weights_and_any_tree_of_inputs():
    batch = ((X, {"t": np.ones((10, 3))}), Y, np.arange(10))
    piece = bn.Data.stream([batch], n=10).to(dtype=torch.float64).first()
    assert piece.inputs[0].dtype == piece.inputs[1]["t"].dtype == piece.weights.dtype == torch.float64
    assert piece.targets.dtype == torch.int64 and piece.weights.tolist() == list(range(10))


class Encoding(Mapping):
    """A mapping that is not a dict, as tokenizers return."""

    def __init__(self, **parts: Tensor) -> None:
        self.parts = parts

    def __getitem__(self, key: str) -> Tensor:
        return self.parts[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)


@pytest.mark.parametrize("key", ["labels", "targets", "label", "target"])
@pytest.mark.parametrize("kind", [dict, Encoding])
def test_of_a_dict_the_targets_are_found_and_the_rest_are_inputs(key, kind):
    piece = bn.Data.stream([kind(x=X, mask=X > 3, **{key: Y})], n=10).first()
    assert set(piece.inputs) == {"x", "mask"} and type(piece.inputs) is dict and torch.equal(piece.targets, Y)


def test_keys_of_targets_and_weights_can_be_named():
    batch = {"x": X, "label": Y, "y": X[:, 0], "w": torch.zeros(10)}
    piece = bn.Data.stream([batch], n=10, target="y", weights="w").first()
    assert set(piece.inputs) == {"x", "label"} and torch.equal(piece.targets, X[:, 0])
    assert torch.equal(piece.weights, torch.zeros(10))  # a batch may be masked as a whole


def test_one_pass_ends_with_the_iterable_or_after_n_examples():
    assert [len(p.targets) for p in bn.Data.stream(cut(), n=10).once()] == [4, 4, 2]
    assert [len(p.targets) for p in bn.Data.stream(lambda: iter(cut() * 9), n=10).once()] == [4, 4, 2]

    def endless() -> Iterator[Any]:
        while True:
            yield X[:4], Y[:4]

    assert [len(p.targets) for p in bn.Data.stream(endless, n=10).once()] == [4, 4, 4]


def test_pieces_of_data_and_of_a_stream_are_alike():
    data, stream = bn.Data(X, Y, torch.arange(10.0)), bn.Data.stream([(X, Y, torch.arange(10.0))], n=10)
    for given in (data, stream):
        parts = list(pieces(given, 4))
        assert torch.cat([p.inputs for p in parts]).equal(X) and torch.cat([p.weights for p in parts]).equal(
            data.weights
        )
    assert some(data) is data and some(bn.Data.stream(cut(), n=10)).n == 4


def test_a_loader_that_says_its_length_must_agree_with_n():
    loader = DataLoader(TensorDataset(X, Y), batch_size=4)
    assert bn.Data.stream(loader, n=10).n == len(bn.Data.stream(loader, n=10)) == 10
    with pytest.raises(ValueError, match=r"n=9 .*DataLoader, but its dataset has 10 and its sampler has 10"):
        bn.Data.stream(loader, n=9)
    few = DataLoader(TensorDataset(X, Y), batch_size=2, sampler=RandomSampler(X, num_samples=6))
    assert bn.Data.stream(few, n=10).n == 10 and bn.Data.stream(few, n=6).n == 6
    assert bn.Data.stream(lambda: iter(loader), n=9).n == 9  # a function says nothing

    class Rows(IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            return iter(zip(X, Y))

    assert bn.Data.stream(DataLoader(Rows(), batch_size=4), n=17).n == 17

    class Sized(Loader):
        def __len__(self) -> int:
            return len(self.batches)

    with pytest.raises(ValueError, match=r"n=2 .* of 3 batches"):
        bn.Data.stream(Sized(cut()), n=2)
    with pytest.raises(ValueError, match=r"the 3 batches hold 10 examples, and n=11 was given"):
        bn.Data.stream(cut(), n=11)


@pytest.mark.parametrize("n", [0, -1, 2.0, True, None])
def test_n_is_a_positive_integer(n):
    with pytest.raises(ValueError, match="expected n, the number of examples"):
        bn.Data.stream(cut(), n=n)


@pytest.mark.parametrize("prefetch", [-1, 1.5, True])
def test_prefetch_is_a_number_of_batches(prefetch):
    with pytest.raises(ValueError, match="expected prefetch"):
        bn.Data.stream(cut(), n=10, prefetch=prefetch)


@pytest.mark.parametrize("source", [iter(cut()), (b for b in cut()), 3, X, {"x": X}, "ab", bn.Data(X, Y)], ids=type)
def test_what_cannot_be_iterated_again_is_refused_with_what_to_pass(source):
    with pytest.raises(TypeError, match=r"got a .*: pass a list, a DataLoader, or a function that returns a fresh"):
        bn.Data.stream(source, n=10)


def test_a_function_that_returns_the_same_iterator_twice_is_found_in_the_second_pass():
    once = iter([cut()[0], *cut()])
    stream = bn.Data.stream(lambda: once, n=10)
    with pytest.raises(ValueError, match=r"no batches in pass 2; the first pass gave some: .* a function"):
        read(stream, 4)


@pytest.mark.parametrize("source", [[], lambda: iter([])], ids=["list", "function"])
def test_no_batches_at_all_is_an_error(source):
    with pytest.raises(ValueError, match="the iterable gave no batches in pass 1"):
        bn.Data.stream(source, n=10).first()


def test_a_function_that_returns_no_iterator_is_named():
    with pytest.raises(TypeError, match="expected the function to return an iterator, got int"):
        bn.Data.stream(lambda: 3, n=10).first()


NAN = X[4:8].clone()
NAN[1, 1] = torch.nan
BAD = {
    "empty": ((X[:0], Y[:0]), ValueError, "expected at least one example, got none"),
    "NaN": ((NAN, Y[4:8]), ValueError, r"expected finite inputs, got 1 of 8 values .* first at index \(1, 1\)"),
    "lengths": ((X[:4], Y[:3]), ValueError, r"expected targets to have as many examples as inputs \(4\), got 3"),
    "shape": (
        (X[:4, :1], Y[:4]),
        ValueError,
        r"inputs is float32 \(1,\) an example, where the first .* float32 \(2,\)",
    ),
    "dtype": ((X[:4].double(), Y[:4]), ValueError, "inputs is float64 .* where the first batch had float32"),
    "targets": ((X[:4], Y[:4].float()), ValueError, "targets is float32 .* where the first batch had int64"),
    "weights": ((X[:4], Y[:4], torch.ones(4)), ValueError, "weights is float32 .* where the first batch had absent"),
    "negative": ((X[:4], Y[:4], -torch.ones(4)), ValueError, "expected weights >= 0"),
    "text": ((["a"] * 4, Y[:4]), TypeError, "expected inputs.* to be a tensor"),
    "one example": ((X[0], Y[0]), ValueError, "expected targets to have a leading axis|as many examples|a scalar"),
    "no pair": (X[:4], TypeError, r"expected \(inputs, targets\), .* got a Tensor"),
    "four": ((X, X, X, X), TypeError, "got 4 things"),
    "no key": (
        {"x": X[:4]},
        ValueError,
        r"expected the targets under one of .* got keys \['x'\]: name it with target=",
    ),
    "two keys": ({"label": Y, "labels": Y, "x": X}, ValueError, "expected the targets under one of"),
    "too many": ((X[[0] * 11], Y[[0] * 11]), ValueError, "holds 11 examples, and n=10"),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_bad_batch_is_named_by_its_number(case, prefetch):
    batch, kind, message = case
    stream = bn.Data.stream(lambda: iter([cut()[0], batch, cut()[1]]), n=10, prefetch=prefetch)
    with pytest.raises(kind, match=f"batch 1 of the stream.*({message})"):
        read(stream, 3)
    turns = iter([cut(), [batch]])
    late = bn.Data.stream(lambda: next(turns), n=10, prefetch=prefetch)
    late.seen["first"] = Piece(*cut()[0])
    with pytest.raises(kind, match=f"batch 0 of the stream.*in pass 2.*({message})"):
        read(late, 4)


def test_a_missing_key_is_named_by_the_batch():
    batches = [{"x": X[:4], "mask": X[:4], "labels": Y[:4]}, {"x": X[:4], "labels": Y[:4]}]
    with pytest.raises(ValueError, match=r"batch 1 of the stream: inputs\['mask'\] is absent, where the first"):
        read(bn.Data.stream(Loader(batches), n=10), 2)
    with pytest.raises(ValueError, match=r"expected the targets under 'y', got keys"):
        bn.Data.stream(Loader(batches), n=10, target="y").first()
    with pytest.raises(ValueError, match=r"expected the weights under 'w', got keys"):
        bn.Data.stream(Loader(batches), n=10, weights="w").first()
    with pytest.raises(TypeError, match="name keys of dict batches, got a tuple"):
        bn.Data.stream(Loader(cut()), n=10, target="y").first()


def test_an_error_of_the_iterable_comes_as_it_is_with_a_note():
    def broken() -> Iterator[Any]:
        yield cut()[0]
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone") as error:
        read(bn.Data.stream(broken, n=10), 2)
    assert error.value.__notes__ == ["raised by the iterable when asked for batch 1 of the stream"]


@pytest.mark.parametrize("name", ["inputs", "targets", "weights", "take", "split", "bootstrap"])
def test_what_needs_data_in_memory_says_so(name):
    with pytest.raises(
        AttributeError, match=f"a stream has no '{name}', since its batches are not kept: make a bn.Data"
    ):
        getattr(bn.Data.stream(cut(), n=10), name)
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = bn.Data.stream(cut(), n=10).colour


def test_a_fingerprint_is_of_the_name_n_and_batches():
    def of(size: int = 4, name: str | None = "a", n: int = 10) -> str:
        return bn.Data.stream(lambda: cut(size), n=n, name=name).fingerprint()

    assert of() == of() and len({of(), of(5), of(name="b"), of(n=11)}) == 4
    assert bn.Data.stream(cut(), n=10, name="a").augmented(bn.data.CropFlip()).fingerprint() != of()
    with pytest.raises(ValueError, match="a stream has no contents to compare: give it a name"):
        of(name=None)


def test_a_stream_prints_itself():
    assert repr(bn.Data.stream(cut(), n=10, name="a")) == "Stream(list, n=10, name='a')"

"""Streamed data: batches that come one after another from an iterable, for sets that do not fit in memory.

Every pass restarts the iterable. Whatever it draws from torch's global generator (a shuffling DataLoader does) it
draws from a state of its own that follows from the seed of the run: so every group of members, and a run that goes on
after a stop, sees the same batches, and the generator of the program is left as it was.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sized
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..core import tree
from ..core.documented import with_field_doc
from ..core.model import GENERATOR
from ..core.noise import Noise
from .augment import Augmentation
from .checks import as_tensor, check_finite, check_lengths, checked_weights, kind
from .data import Data
from .prefetch import Prefetched

TARGETS = ("labels", "targets", "label", "target")  # keys under which dict batches have their targets
RESIDENT = ("inputs", "targets", "weights", "take", "split", "bootstrap")  # what data in memory have


class Piece(NamedTuple):
    """Some examples: a batch of a stream, or a part of data in memory."""

    inputs: Any  # any tree of tensors (B, ...)
    targets: Tensor  # (B, ...)
    weights: Tensor | None = None  # (B,), or like targets


@with_field_doc
@dataclass(frozen=True, eq=False, repr=False)
class Stream:
    """Batches of N examples in all, seen by every member alike. Made by `Data.stream`.

    One step is one batch, of the size that comes. Together the batches of a pass stand for all N, each by its size: a
    short last batch counts for less, so that every example of a pass counts the same, in whatever order they come.
    Where norm layers need more than one example, training passes over a batch of one.
    """

    source: Any
    """An iterable of batches that can be iterated again, or a function that returns a fresh iterator."""
    n: int
    """N, the number of examples, which the posterior depends on: it is never counted."""
    target: str | None = None
    """The key of the targets in dict batches; None: the one of TARGETS that is there."""
    weight: str | None = None
    """The key of the weights in dict batches; None: they have none."""
    name: str | None = None
    """What a pool knows the data by; change it with them."""
    prefetch: int = 2
    """Batches that a thread reads ahead and moves to the device; 0: no thread."""
    augment: Augmentation | None = None
    """Changes the inputs of training batches."""
    seed: int = 0
    """The seed of what the iterable draws from torch's global generator; `fit` sets its own."""
    device: torch.device | str | None = None
    """Where batches go; None: they stay where they are."""
    dtype: torch.dtype | None = None
    """The type of their floating-point tensors; None: as they are."""
    seen: dict[str, Any] = field(default_factory=dict)
    """What was read and checked once, shared by copies."""

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, int) or self.n < 1:
            raise ValueError(f"expected n, the number of examples in all, as a positive integer, got {self.n!r}")
        if isinstance(self.prefetch, bool) or not isinstance(self.prefetch, int) or self.prefetch < 0:
            raise ValueError(f"expected prefetch as a number of batches, 0 or more, got {self.prefetch!r}")
        if "checked" in self.seen:
            return
        self.seen["checked"] = True
        _check_source(self.source)
        if isinstance(self.source, (list, tuple)):
            counts = [len(self._checked(raw, f"batch {i} of the stream").targets) for i, raw in enumerate(self.source)]
            if sum(counts) != self.n and counts:
                raise ValueError(
                    f"the {len(counts)} batches hold {sum(counts)} examples, and n={self.n} was given: expected the "
                    "same number; for batches that are not the whole set, pass a function that returns an iterator"
                )
        else:
            _check_lengths(self.source, self.n)

    @property
    def rows(self) -> None:
        """No lists of examples: all members see the same ones."""
        return None

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        name = "" if self.name is None else f", name={self.name!r}"
        return f"Stream({type(self.source).__name__}, n={self.n}{name})"

    def __getattr__(self, name: str) -> NoReturn:
        if name in RESIDENT:
            raise AttributeError(
                f"a stream has no {name!r}, since its batches are not kept: make a bn.Data of examples that fit in "
                "memory"
            )
        raise AttributeError(f"'Stream' object has no attribute {name!r}")

    def member(self, k: int) -> Stream:
        """What member k trains on: as all others, the whole stream."""
        return self

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Stream:
        """The same batches on a device, floating tensors in `dtype`: each is moved when it comes."""
        return replace(self, device=device or self.device, dtype=dtype or self.dtype)

    def augmented(self, augment: Augmentation) -> Stream:
        """The same stream with an augmentation for training batches, `CropFlip()` say."""
        return replace(self, augment=augment)

    def seeded(self, seed: int) -> Stream:
        """The same stream with another seed for what the iterable draws from torch's global generator."""
        return replace(self, seed=seed)

    def fingerprint(self) -> str:
        """SHA-256 of the name, N, the size of the first batch and the augmentation: the contents are not read."""
        if self.name is None:
            raise ValueError(
                "a pool must recognise its data, and a stream has no contents to compare: give it a name that "
                "changes with them, bn.Data.stream(..., name='reviews 2024')"
            )
        parts = ("stream", self.name, self.n, len(self.first().targets), self.augment)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def first(self) -> Piece:
        """The first batch. It is read once; later batches must be built like it."""
        if "first" not in self.seen:
            with closing(replace(self, device=None, dtype=None)._read(0, 1)) as batches:
                self.seen["first"] = next(batches)
        return tree.move(self.seen["first"], self.device, self.dtype)

    def batches(
        self, skip: int = 0, passes: int | None = None, shares: bool = False, least: int = 1
    ) -> Prefetched[Piece]:
        """Batches from number `skip` on, this many passes (None: without end), read ahead by a thread until closed.
        Those of fewer than `least` examples are passed over, and have no number.

        With `shares`, the weights of a batch are multiplied by its size over the mean size in a pass: a step takes a
        batch to stand for all N, and so the examples of batches of unequal sizes count the same over a pass.
        """
        self.first()  # what is wrong with it is said here, and not by the thread
        return Prefetched(self._read(skip, passes, shares, least), self.prefetch, self.device)

    def once(self) -> Generator[Piece, None, None]:
        """The batches of one pass, which ends after N examples at the latest."""
        left = self.n
        with closing(self.batches(passes=1)) as pieces:
            for piece in pieces:
                yield piece
                left -= len(piece.targets)
                if left <= 0:
                    return

    def _read(
        self, skip: int, passes: int | None, shares: bool = False, least: int = 1
    ) -> Generator[Piece, None, None]:
        """Checked batches in their dtype, where the iterable has them."""
        sizes = _Sizes(self._typical(least) if shares else None)
        state = torch.Generator().manual_seed(Noise.seed(self.seed).split("stream").integer()).get_state()

        def drawing(function: Callable[..., Any], *args: Any) -> Any:
            nonlocal state
            with GENERATOR, torch.random.fork_rng(devices=()):
                torch.set_rng_state(state)
                try:
                    return function(*args)
                finally:
                    state = torch.get_rng_state()

        number, end = 0, object()
        for turn in itertools.count() if passes is None else range(passes):
            iterator, begin = drawing(self._start), number
            while True:
                where = f"batch {number - begin} of the stream" + (f", in pass {turn + 1}" if turn else "")
                try:
                    raw = drawing(next, iterator, end)
                except Exception as error:
                    error.add_note(f"raised by the iterable when asked for {where}")
                    raise
                if raw is end:
                    break
                piece = self._alike(self._checked(raw, where), where) if number >= skip else None
                size = len(self._parts(raw)[1]) if piece is None else len(piece.targets)
                if size < least:
                    continue
                share = sizes.share(size, first=turn == 0) if shares else 1.0
                if piece is not None:
                    yield _times(piece, share)
                number += 1
            if number == begin:
                again = "the first pass gave some: can it be iterated only once? " if turn else ""
                raise ValueError(
                    f"the iterable gave no batches in pass {turn + 1}; {again}Pass a list, a DataLoader, or a function "
                    "that returns a fresh iterator"
                )

    def _typical(self, least: int = 1) -> float | None:
        """The mean size of the batches that count in a pass, where it is known beforehand."""
        count, first = _size(self.source), len(self.first().targets)
        short = self.n % first if 0 < self.n % first < least else 0  # of a last one that is passed over
        if isinstance(self.source, (list, tuple)) or count == -(-self.n // first):
            return (self.n - short) / (count - bool(short)) if count and count > bool(short) else None
        return float(first) if count == self.n // first else None  # what remains is dropped

    def _start(self) -> Iterator[Any]:
        iterable = self.source if isinstance(self.source, Iterable) or not callable(self.source) else self.source()
        try:
            return iter(iterable)
        except TypeError as error:
            raise TypeError(f"expected the function to return an iterator, got {type(iterable).__name__}") from error

    def _checked(self, raw: Any, where: str) -> Piece:
        """A batch as tensors, with all that can be wrong with it said."""
        try:
            inputs, targets, weights = self._parts(raw)
            flat, spec = pytree.tree_flatten_with_path(inputs)
            named = {"inputs" + pytree.keystr(path): leaf for path, leaf in flat}
            if not named:
                raise ValueError(f"expected inputs with at least one tensor, got {inputs!r}")
            named = {name: as_tensor(leaf, name) for name, leaf in named.items()}
            targets = as_tensor(targets, "targets")
            check_lengths({**named, "targets": targets})
            for name, x in {**named, "targets": targets}.items():
                check_finite(x, name)
            if weights is not None:
                weights = checked_weights(as_tensor(weights, "weights"), targets, some=False)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where}: {error}") from error
        if len(targets) > self.n:
            raise ValueError(
                f"{where} holds {len(targets)} examples, and n={self.n} was given for the whole stream: "
                "pass the number of all examples as n"
            )
        return Piece(pytree.tree_unflatten(list(named.values()), spec), targets, weights)

    def _parts(self, raw: Any) -> tuple[Any, Any, Any]:
        """Inputs, targets and weights of a batch as the iterable gives it."""
        if isinstance(raw, Mapping):
            keys = [k for k in TARGETS if k in raw] if self.target is None else [self.target]
            if len(keys) != 1 or keys[0] not in raw:
                expected = f"one of {TARGETS}" if self.target is None else repr(self.target)
                raise ValueError(f"expected the targets under {expected}, got keys {list(raw)}: name it with target=")
            if self.weight is not None and self.weight not in raw:
                raise ValueError(f"expected the weights under {self.weight!r}, got keys {list(raw)}")
            rest = {k: v for k, v in raw.items() if k not in (keys[0], self.weight)}
            return rest, raw[keys[0]], None if self.weight is None else raw[self.weight]
        if self.target is not None or self.weight is not None:
            raise TypeError(f"target= and weights= name keys of dict batches, got a {type(raw).__name__}")
        if not isinstance(raw, (tuple, list)) or len(raw) not in (2, 3):
            got = f"{len(raw)} things" if isinstance(raw, (tuple, list)) else f"a {type(raw).__name__}"
            raise TypeError(f"expected (inputs, targets), (inputs, targets, weights) or a dict, got {got}")
        inputs = dict(raw[0]) if isinstance(raw[0], Mapping) else raw[0]
        return inputs, raw[1], raw[2] if len(raw) == 3 else None

    def _alike(self, piece: Piece, where: str) -> Piece:
        """The batch in its dtype, if it is built like the first one."""
        first, signature = _signature(self.seen.get("first", piece)), _signature(piece)
        for name in (*first, *(n for n in signature if n not in first)):
            if first.get(name) != signature.get(name):
                old, new = first.get(name, "absent"), signature.get(name, "absent")
                raise ValueError(
                    f"{where}: {name} is {new}, where the first batch had {old}. Expected all batches alike but for "
                    "the number of examples: convert, or pad to one shape"
                )
        return tree.move(piece, dtype=self.dtype)


class _Sizes:
    """What a batch counts for beside others: its size over the mean size in a pass. That is known beforehand, or found
    in the first pass, in which it is the mean of the batches so far: the same for whoever reads the same batches."""

    def __init__(self, known: float | None) -> None:
        self.known = known
        self.total = self.count = 0

    def share(self, size: int, first: bool) -> float:
        """That of the next batch, in the `first` pass or in a later one."""
        if first:
            self.total, self.count = self.total + size, self.count + 1
        mean = self.known if first and self.known is not None else self.total / self.count
        return size / mean


def _times(piece: Piece, share: float) -> Piece:
    """The batch with its weights times its share."""
    if share == 1:
        return piece
    if piece.weights is not None:
        return piece._replace(weights=piece.weights * share)
    real = (x for x in (piece.targets, *tree.leaves(piece.inputs)) if x.is_floating_point())
    like = next(real, torch.empty((), device=piece.targets.device))
    return piece._replace(weights=torch.full((len(piece.targets),), share, dtype=like.dtype, device=like.device))


def some(data: Data | Stream) -> Data:
    """Examples to look at: all those in memory, or the first batch of a stream.

    >>> from basinet import Data
    >>> some(Data(torch.zeros(3, 2), torch.zeros(3, 1))).n
    3
    """
    return Data(*data.first()[:2]) if isinstance(data, Stream) else data


def pieces(data: Data | Stream, size: int) -> Iterator[Piece]:
    """All examples once: slices of data in memory, `size` at a time, or the batches of a stream as they come.

    >>> from basinet import Data
    >>> [len(piece.targets) for piece in pieces(Data(torch.zeros(5, 2), torch.zeros(5, 1)), 2)]
    [2, 2, 1]
    """
    if isinstance(data, Stream):
        yield from data.once()
        return
    for begin in range(0, len(data.targets), size):
        part, weights = slice(begin, begin + size), data.weights
        yield Piece(tree.take(data.inputs, part), data.targets[part], None if weights is None else weights[part])


def counted(data: Data | Piece) -> Tensor | None:
    """True for the elements of the targets that have weight, in the shape of the targets; None where all have.

    >>> from basinet import Data
    >>> counted(Data(torch.zeros(3, 2), torch.zeros(3), torch.tensor([1.0, 0.0, 2.0])))
    tensor([ True, False,  True])
    """
    if data.weights is None or bool((data.weights > 0).all()):
        return None
    here = data.weights > 0
    return here.reshape(here.shape + (1,) * (data.targets.dim() - here.dim())).expand(data.targets.shape)


def weighed(data: Data | Piece) -> tuple[Tensor | None, Tensor | None]:
    """How examples count where something is tuned: the exponent of each element's density, in the shape of the targets,
    and the weight of each example (B,), the largest of its elements'; None where all are 1.

    >>> from basinet import Data
    >>> weighed(Data(torch.zeros(2, 1), torch.zeros(2, 1), torch.tensor([1.0, 3.0])))[1]
    tensor([1., 3.])
    """
    if data.weights is None or bool((data.weights == 1).all()):
        return None, None
    here = data.weights.reshape(data.weights.shape + (1,) * (data.targets.dim() - data.weights.dim()))
    here = here.expand(data.targets.shape)
    largest = here.reshape(len(here), -1).amax(1)
    exponents = here / largest.where(largest > 0, 1.0).reshape(-1, *[1] * (here.dim() - 1))
    return (None if bool((exponents == 1).all()) else exponents), (None if bool((largest == 1).all()) else largest)


def examples(piece: Piece) -> int:
    """How many examples have weight.

    >>> examples(Piece(torch.zeros(3, 2), torch.zeros(3), torch.tensor([1.0, 0.0, 2.0])))
    2
    """
    here = counted(piece)
    return len(piece.targets) if here is None else int(here.flatten(1).any(1).sum() if here.dim() > 1 else here.sum())


def _signature(piece: Piece) -> dict[str, str]:
    """What all batches have in common: names, dtypes and the shape of an example."""
    flat, _ = pytree.tree_flatten_with_path(piece.inputs)
    named = {"inputs" + pytree.keystr(path): leaf for path, leaf in flat}
    named |= {"targets": piece.targets} | ({} if piece.weights is None else {"weights": piece.weights})
    return {name: f"{kind(x)} {tuple(x.shape[1:])} an example" for name, x in named.items()}


def _check_source(source: Any) -> None:
    """Whether passes can be started again."""
    advice = (
        "pass a list, a DataLoader, or a function that returns a fresh iterator: Data.stream(lambda: read(), n=...)"
    )
    if isinstance(source, Iterator):
        raise TypeError(f"expected batches that can be iterated again, got a {type(source).__name__}: {advice}")
    again = isinstance(source, Iterable) or callable(source) or hasattr(source, "__getitem__")
    if not again or isinstance(source, (Tensor, Mapping, str, bytes)):
        raise TypeError(f"expected an iterable of batches, got a {type(source).__name__}: {advice}")


def _check_lengths(source: Any, n: int) -> None:
    """Whether what the iterable says of its length leaves room for n examples."""
    advice = "pass the right n, or a function that returns an iterator where this length does not count"
    stated = [(what, getattr(source, what, None)) for what in ("dataset", "sampler")]
    sizes = {what: size for what, part in stated if (size := _size(part)) is not None}
    if sizes and n not in sizes.values():
        said = " and ".join(f"its {what} has {size}" for what, size in sizes.items())
        raise ValueError(f"n={n} examples were given for a {type(source).__name__}, but {said}: {advice}")
    count = _size(source)
    if count is not None and count > n:
        raise ValueError(f"n={n} examples were given for a {type(source).__name__} of {count} batches: {advice}")


def _size(thing: Any) -> int | None:
    """Its length, where it says one."""
    try:
        return len(thing) if isinstance(thing, Sized) else None
    except (TypeError, NotImplementedError):  # a DataLoader of an IterableDataset
        return None

"""Resident data: inputs, targets, and which examples each member trains on.

    split      disjoint and complete, sizes by largest remainder; stratified: each class within 1 of its share
    folds      every example is held out in one fold; a row lists those of the others
    bootstrap  row k is n draws with replacement from 0 ... N - 1, from the key (seed, "bootstrap", k)

Everything is checked once, here, so that nothing behind it has to look at the values again.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..core import tree
from ..core.documented import with_field_doc
from ..core.noise import Noise
from .augment import Augmentation
from .checks import as_tensor, check_finite, check_lengths, checked_index, checked_rows, checked_weights, kind

if TYPE_CHECKING:
    from .stream import Stream


@with_field_doc
@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """Examples in memory. Leading axes are all N, the values are finite, and there is at least one example.

    Numpy arrays become tensors: float64 ones become float32 (unless torch's default dtype is float64), other
    dtypes stay, sharing memory where torch can. Tensors are kept with the dtype they have, float64 too.
    Two Data are equal when they are the same object; compare contents with `fingerprint`.
    """

    inputs: Any
    """Any tree of tensors (a tensor, a tuple, a dict ...), each (N, ...)."""
    targets: Tensor  # (N, ...)
    weights: Tensor | None = (
        None  # (N,), or like targets: multiply the log likelihood, of validation data too; 0 masks; finite, not all 0
    )
    rows: Tensor | None = None  # (M, n): row k lists the examples that member k trains on
    augment: Augmentation | None = None
    """Changes the inputs of training batches, and of nothing else."""

    def __post_init__(self) -> None:
        flat, spec = pytree.tree_flatten_with_path(self.inputs)
        inputs = {"inputs" + pytree.keystr(path): leaf for path, leaf in flat}
        if not inputs:
            raise ValueError(f"expected inputs with at least one tensor, got {self.inputs!r}; give it one")
        inputs = {name: as_tensor(leaf, name) for name, leaf in inputs.items()}
        targets = as_tensor(self.targets, "targets")
        check_lengths({**inputs, "targets": targets})
        for name, x in {**inputs, "targets": targets}.items():
            check_finite(x, name)
        object.__setattr__(self, "inputs", pytree.tree_unflatten(list(inputs.values()), spec))
        object.__setattr__(self, "targets", targets)
        if self.weights is not None:
            object.__setattr__(self, "weights", checked_weights(as_tensor(self.weights, "weights"), targets))
        if self.rows is not None:
            object.__setattr__(self, "rows", checked_rows(as_tensor(self.rows, "rows"), targets))

    @staticmethod
    def stream(
        batches: Any,
        n: int,
        *,
        target: str | None = None,
        weights: str | None = None,
        name: str | None = None,
        prefetch: int = 2,
    ) -> Stream:
        """Data that do not fit in memory, batch by batch: all members see the same ones.

        `batches` can be iterated again and again (a torch DataLoader, a list), or is a function that returns a fresh
        iterator. A batch is (inputs, targets), (inputs, targets, weights), or a dict: its targets are under "labels",
        "targets", "label" or "target" unless `target` names their key, its weights under the key `weights` names, and
        the rest are the inputs, which reach the network as keywords. `n` is the number of examples in all: the N of
        the posterior. With a pool, `name` stands for the contents. `prefetch` batches are read ahead.
        """
        from .stream import Stream

        return Stream(batches, n, target, weights, name, prefetch)

    @property
    def n(self) -> int:
        """How many examples one member trains on: the N of its posterior."""
        return self.targets.shape[0] if self.rows is None else self.rows.shape[1]

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        parts = (f"{name}: {kind(x)} {tuple(x.shape)}" for name, x in self._named().items())
        return f"Data(n={self.n}, {', '.join(parts)})"

    def take(self, index: slice | Tensor | np.ndarray | Sequence[int]) -> Data:
        """The examples at a slice, a 1-D list of positions, or where a mask (N,) is true."""
        self._need_no_rows("take", "use .member(k) for the examples of one member")
        if not isinstance(index, slice):
            index = checked_index(index, self.targets)
        return self._pick(index)

    def member(self, k: int) -> Data:
        """What member k trains on: its row's examples, or all of them where there are no rows."""
        if self.rows is None:
            return self
        members = self.rows.shape[0]
        if not 0 <= k < members:
            raise ValueError(f"expected a member from 0 to {members - 1}, got {k}; give rows one line per member")
        return self._pick(self.rows[k])

    def bootstrap(self, members: int, seed: int = 0, fraction: float = 1.0) -> Data:
        """The same data with a row of `fraction` x N examples per member, drawn with replacement.

        Row k depends on the seed and k only, not on how many members there are.
        """
        self._need_no_rows("bootstrap", "start from the data that they were made from")
        total = self.n
        if members < 1:
            raise ValueError(f"expected members >= 1, got {members}; ask for at least one row")
        if not 0 < fraction <= 1:
            raise ValueError(f"expected 0 < fraction <= 1, got {fraction}; 1.0 draws as many examples as there are")
        key, count = Noise.seed(seed).split("bootstrap"), max(1, round(fraction * total))
        rows = torch.stack([key.split(k).integers(count, total) for k in range(members)])
        return Data(self.inputs, self.targets, self.weights, rows.to(self.targets.device), self.augment)

    def split(self, *fractions: float, seed: int = 0, stratify: bool = False) -> tuple[Data, ...]:
        """Disjoint shuffled parts that hold all examples; `stratify` deals out each class in proportion."""
        self._need_no_rows("split", "split first, then draw rows for the training part")
        if not (all(f > 0 for f in fractions) and abs(sum(fractions) - 1) <= 1e-9):
            raise ValueError(f"expected positive fractions that sum to 1, got {fractions}; for example 0.6, 0.2, 0.2")
        return tuple(self._pick(part) for part in self._dealt(fractions, seed, stratify))

    def folds(self, k: int, members: int = 1, seed: int = 0, stratify: bool = False) -> tuple[Data, tuple[Data, ...]]:
        """Cross-validation: the data with a row per member, and what each member has not seen, by its number.

        The first `members` members train without the first of `k` folds, the next without the second, and so on, so
        that a recipe with lists of that many values is tried on every fold. Every example is in one fold. Rows are of
        one length: where k does not divide N, those without a smaller fold leave out one example more.
        """
        self._need_no_rows("folds", "start from the data that they were made from")
        if not (isinstance(k, int) and 2 <= k <= self.n):
            raise ValueError(f"expected 2 to {self.n} folds of {self.n} examples, got {k}")
        if not (isinstance(members, int) and members >= 1):
            raise ValueError(f"expected members >= 1 per fold, got {members}; one per value that is tried")
        parts = self._dealt((1 / k,) * k, seed, stratify)
        count = self.n - max(len(part) for part in parts)
        rows = [torch.cat(parts[i + 1 :] + parts[:i])[:count] for i in range(k)]
        lists = torch.stack(rows).repeat_interleave(members, 0)
        train = Data(self.inputs, self.targets, self.weights, lists, self.augment)
        held = [self._pick(part) for part in parts]
        return train, tuple(one for one in held for _ in range(members))

    def held_out(self, members: int, fraction: float = 0.15, seed: int = 0) -> tuple[Data, Data]:
        """Validation by rows of each member's own: data to train on and to validate on, with a row per member.

        Each member leaves out a random `fraction` of the examples and is validated on those, so that an ensemble learns
        from all of them. Rows depend on the seed and the member only, not on how many members there are.

        >>> data = Data(torch.zeros(20, 3), torch.zeros(20, 1))
        >>> train, val = data.held_out(members=5, fraction=0.2)
        >>> train.n, val.n, len(val.rows)
        (16, 4, 5)
        """
        self._need_no_rows("held_out", "start from the data that they were made from")
        if members < 1:
            raise ValueError(f"expected members >= 1, got {members}; ask for at least one row")
        if not 0 < fraction < 1 or self.n < 2:
            raise ValueError(f"expected a fraction between 0 and 1 of two examples or more, got {fraction} of {self.n}")
        key, cut = Noise.seed(seed).split("held out"), min(max(1, round(fraction * self.n)), self.n - 1)
        orders = torch.stack([key.split(k).permutation(self.n) for k in range(members)]).to(self.targets.device)
        parts = (orders[:, cut:].contiguous(), orders[:, :cut].contiguous())
        train, val = (Data(self.inputs, self.targets, self.weights, rows, self.augment) for rows in parts)
        return train, val

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Data:
        """On a device; floating tensors in `dtype`, integer and boolean ones (classes, tokens) stay."""
        if dtype is not None and not dtype.is_floating_point:
            raise ValueError(f"expected a floating dtype, got {dtype}; convert integers before making a Data")
        fields = (self.inputs, self.targets, self.weights, self.rows)
        return Data(*tree.move(fields, device, dtype), self.augment)

    def augmented(self, augment: Augmentation) -> Data:
        """The same data with an augmentation for training batches, `CropFlip()` say."""
        return Data(self.inputs, self.targets, self.weights, self.rows, augment)

    def fingerprint(self) -> str:
        """SHA-256 in hex of paths, dtypes, shapes and bytes: the same on every device. Computed once."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(b"" if self.augment is None else repr(self.augment).encode())
        for name, x in sorted(self._named().items()):
            digest.update(f"{name} {kind(x)} {tuple(x.shape)}\n".encode())
            digest.update(x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def _named(self) -> dict[str, Tensor]:
        flat, _ = pytree.tree_flatten_with_path(self.inputs)
        named = {"inputs" + pytree.keystr(path): leaf for path, leaf in flat}
        named |= {"targets": self.targets, "weights": self.weights, "rows": self.rows}
        return {name: x for name, x in named.items() if x is not None}

    def _dealt(self, fractions: Sequence[float], seed: int, stratify: bool) -> list[Tensor]:
        """Positions of the examples of disjoint shuffled parts."""
        order = Noise.seed(seed).split("split").permutation(self.n).to(self.targets.device)
        groups = _by_class(order, self.targets) if stratify else [order]
        counts = _deal([len(group) for group in groups], fractions)
        parts = [torch.cat(part) for part in zip(*(group.split(c) for group, c in zip(groups, counts)))]
        sizes = [len(part) for part in parts]
        if 0 in sizes:
            raise ValueError(f"expected an example in every part, got sizes {sizes}; use fewer parts or more data")
        if stratify:  # the parts come class by class: shuffle each
            key = Noise.seed(seed).split("order")
            parts = [p[key.split(i).permutation(len(p)).to(p.device)] for i, p in enumerate(parts)]
        return parts

    def _pick(self, index: slice | Tensor) -> Data:
        weights = None if self.weights is None else self.weights[index]
        return Data(tree.take(self.inputs, index), self.targets[index], weights, augment=self.augment)

    def _need_no_rows(self, verb: str, advice: str) -> None:
        if self.rows is not None:
            raise ValueError(f"{verb} expected data without rows, got rows {tuple(self.rows.shape)}; {advice}")


def _by_class(order: Tensor, targets: Tensor) -> list[Tensor]:
    """The examples of each class, in the given order."""
    if targets.dim() != 1 or targets.is_floating_point() or targets.is_complex():
        raise ValueError(
            f"expected integer targets (N,) to stratify by, got {kind(targets)} {tuple(targets.shape)}; "
            "leave stratify out"
        )
    shuffled = targets[order]
    by_class = order[torch.argsort(shuffled, stable=True)]
    return list(by_class.split(torch.unique(shuffled, return_counts=True)[1].tolist()))


def _deal(groups: list[int], fractions: Sequence[float]) -> list[list[int]]:
    """How many of each group go to each part: every count is within one of its share.

    The parts' sizes are the largest-remainder rounding of the whole. What rounding down leaves of a group
    goes, one each, to the parts that miss most: how a 0-1 matrix with given margins is built (Gale, Ryser).
    """
    total, parts = sum(groups), range(len(fractions))
    counts = [[math.floor(round(f * size, 6)) for f in fractions] for size in groups]
    missing = [math.floor(round(f * total, 6)) for f in fractions]
    for j in sorted(parts, key=lambda j: round(missing[j] - fractions[j] * total, 6))[: total - sum(missing)]:
        missing[j] += 1
    missing = [missing[j] - sum(count[j] for count in counts) for j in parts]
    for size, count in zip(groups, counts):
        share = [round(count[j] - fractions[j] * size, 6) for j in parts]  # in (-1, 0]: how far below
        for j in sorted(parts, key=lambda j: (-missing[j], share[j]))[: size - sum(count)]:
            count[j] += 1
            missing[j] -= 1
    return counts

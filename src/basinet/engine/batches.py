"""Which examples each member sees at each step: its own shuffling, from its own key, or the batches of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.lift import lift
from ..core.noise import Noise
from ..core.tree import tree_map
from ..data import Data, Piece, Stream
from ..data.prefetch import Prefetched

FEW = 16  # keys that are read one by one on a CPU, which takes less than to read them at once


class Batches:
    """Index lists for a group of members.

    Member k walks through one random order of its examples after another. Batches are always full: what remains of an
    order flows into the next one. The examples of a step depend only on the member's key and the step. With `given`,
    examples come in the order of the data, each once in a pass, so that the last batch of a pass may be short. With
    `independent`, every example is drawn from all of them, whatever came before.
    """

    def __init__(
        self,
        data: Data,
        members: list[int],
        keys: Tensor,
        batch_size: int | None,
        given: bool = False,
        independent: bool = False,
    ) -> None:
        self.given, self.independent = given, independent
        self.data = data
        self.n = data.n
        self.rows = None if data.rows is None else data.rows[members]  # (g, n)
        self.keys = keys  # (g, 2)
        self.batch_size = None if batch_size is None or batch_size >= self.n else batch_size
        self._orders: dict[int, Tensor] = {}

    @property
    def shared(self) -> bool:
        """Whether all members see the same examples at every step: full batches of the same data."""
        return self.batch_size is None and self.rows is None

    def index(self, clocks: int | Sequence[int], steps: int) -> Tensor | list[Tensor]:
        """Positions in the data for `steps` steps from each member's clock: (steps, g, B); (steps, n) where shared; a
        list of (g, B) where examples come in the given order."""
        g = self.keys.shape[0]
        clocks = [clocks] * g if isinstance(clocks, int) else list(clocks)
        if self.given and self.batch_size is not None:
            return [self._in_order(clocks, t) for t in range(steps)]
        if self.batch_size is None:
            everything = torch.arange(self.n, device=self.keys.device) if self.rows is None else self.rows
            return everything.expand(steps, *everything.shape)
        if len(set(clocks)) == 1:
            return self._cut(clocks[0], steps)
        indices = torch.empty(steps, g, self.batch_size, dtype=torch.long, device=self.keys.device)
        for clock in set(clocks):  # members that were restarted have clocks of their own
            behind = [i for i in range(g) if clocks[i] == clock]
            indices[:, behind] = self._cut(clock, steps)[:, behind]
        return indices

    def _in_order(self, clocks: list[int], ahead: int) -> Tensor:
        assert self.batch_size is not None
        a_pass = -(-self.n // self.batch_size)
        begins = [(clock + ahead) % a_pass * self.batch_size for clock in clocks]
        if len({min(begin + self.batch_size, self.n) - begin for begin in begins}) > 1:
            raise RuntimeError(
                "members that restarted are at batches of another length than the others: choose a batch_size that "
                f"divides {self.n:,}, the number of examples"
            )
        length = min(begins[0] + self.batch_size, self.n) - begins[0]
        place = torch.tensor(begins, device=self.keys.device)[:, None] + torch.arange(length, device=self.keys.device)
        return place if self.rows is None else self.rows.gather(1, place)

    def _cut(self, first: int, steps: int) -> Tensor:
        assert self.batch_size is not None
        start, stop = first * self.batch_size, (first + steps) * self.batch_size
        passes = range(start // self.n, (stop - 1) // self.n + 1)
        orders = [self._order(e) for e in passes]
        joined = orders[0] if len(orders) == 1 else torch.cat(orders, 1)  # (g, passes * n)
        offset = start - passes[0] * self.n
        cut = joined[:, offset : offset + stop - start].reshape(-1, steps, self.batch_size)
        # in one order whatever the clock, so that a step is compiled once: strides of a single member, too
        return cut.transpose(0, 1).clone(memory_format=torch.contiguous_format)

    def gather(self, index: Tensor) -> tuple[Any, Tensor, Tensor | None]:
        """Inputs, targets and weights at the positions `index` (any shape)."""
        if self.shared:
            return self.data.inputs, self.data.targets, self.data.weights
        weights = None if self.data.weights is None else self.data.weights[index]
        return tree_map(lambda x: x[index], self.data.inputs), self.data.targets[index], weights

    def start(self, position: int) -> None:
        """Nothing to do before step `position` of the group: the examples of a step do not depend on those before."""

    def close(self) -> None:
        """Nothing to end."""

    def keep(self, members: list[int]) -> None:
        """Goes on with some of the members."""
        self.keys, self._orders = self.keys[members], {}
        self.rows = None if self.rows is None else self.rows[members]

    def rekey(self, j: int, key: Tensor) -> None:
        """Gives member j another key: its order changes, that of the others does not."""
        self.keys = self.keys.clone()
        self.keys[j] = key
        self._orders = {}

    def _order(self, epoch: int) -> Tensor:
        if epoch not in self._orders:
            while len(self._orders) > 3:  # this pass and the last, for clocks at two places
                del self._orders[next(iter(self._orders))]

            def of_one(key: Tensor) -> Tensor:
                return self._drawn(Noise(key).split("shuffle").split(epoch))

            few = self.keys.device.type == "cpu" and len(self.keys) <= FEW
            order = torch.stack([of_one(key) for key in self.keys]) if few else lift(of_one)(self.keys)
            self._orders[epoch] = order if self.rows is None else self.rows.gather(1, order)
        return self._orders[epoch]

    def _drawn(self, noise: Noise) -> Tensor:
        """As many examples as there are, (n,)."""
        if not self.independent:
            return noise.permutation(self.n)
        uniform = noise.uniform(torch.empty(self.n, dtype=torch.float64, device=self.keys.device))
        return (uniform * self.n).long().clamp(max=self.n - 1)


class Streamed:
    """The batches of a stream, in the order in which they come: all members of a group see the same ones.

    Until `start`, the first batch comes again and again, for steps that are only tried. A member that restarts goes
    on with the batches that come, so that the others see what they would have seen. Where the network does not train on
    one example alone (`alone` False), batches of one are passed over.
    """

    shared = True
    batch_size = None  # none that is known beforehand

    def __init__(self, stream: Stream, alone: bool = True) -> None:
        self.stream, self.n, self.alone = stream, stream.n, alone
        self._position = 0
        self._ahead: Prefetched[Piece] | None = None

    def start(self, position: int) -> None:
        """Opens the stream before step `position` of the group: earlier batches are read and passed over."""
        least = 1 if self.alone else 2
        self._position, self._ahead = position, self.stream.batches(skip=position, shares=True, least=least)

    def close(self) -> None:
        """Ends reading ahead."""
        if self._ahead is not None:
            self._ahead.close()

    def index(self, clocks: int | Sequence[int], steps: int) -> Tensor:
        """The numbers of the next `steps` batches, (steps,): examples of a stream have no positions."""
        return torch.arange(self._position, self._position + steps)

    def gather(self, index: Tensor) -> tuple[Any, Tensor, Tensor | None]:
        """Inputs, targets and weights of the next batch."""
        if self._ahead is None:
            return self.stream.first()
        self._position += 1
        return next(self._ahead)

    def keep(self, members: list[int]) -> None:
        """The batches are the same for all."""

    def rekey(self, j: int, key: Tensor) -> None:
        """The batches are the same for every key."""

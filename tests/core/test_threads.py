"""One posterior, or one problem, in several threads at once: what comes out is what one thread gives."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core.threads import own_copy

DATA = bn.datasets.load("digits")
PROBLEM = bn.Problem(lambda: bn.networks.MLP(64, 10), bn.likelihoods.Categorical())
MANY = 4  # threads


@pytest.fixture(autouse=True)
def _switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(tasks: list[Callable[[], Any]]) -> list[Any]:
    with ThreadPoolExecutor(MANY) as pool:
        return [future.result() for future in [pool.submit(task) for task in tasks]]


def fresh(seed: int) -> bn.Posterior:
    return bn.fit(bn.MAP(epochs=1), PROBLEM, DATA.train, members=3, seed=seed, engine=bn.Engine(progress=False))


def test_predictions_in_threads_are_those_of_one_thread():
    """Before each thread had a module of its own, 11 of 240 predictions differed and 23 raised."""
    posteriors = [fresh(seed) for seed in (0, 1)]  # of one problem: one module
    inputs = [DATA.test.inputs[i : i + 20] for i in range(0, 100, 20)]
    expected = [[p.predict(x).probs for x in inputs] for p in posteriors]
    asked = [(i, j) for _ in range(24) for i in range(2) for j in range(5)]
    predicted = at_once([lambda i=i, j=j: posteriors[i].predict(inputs[j]).probs for i, j in asked])
    assert all(torch.equal(probs, expected[i][j]) for probs, (i, j) in zip(predicted, asked))


def test_fits_that_share_a_problem_in_threads_are_those_of_one_thread():
    expected = [fresh(seed).mean() for seed in range(MANY)]
    means = at_once([lambda seed=seed: fresh(seed).mean() for seed in range(MANY)])
    assert all(torch.equal(a[n], b[n]) for a, b in zip(means, expected) for n in b)


def test_a_thread_that_draws_random_numbers_beside_a_fit_does_no_harm():
    stop = threading.Event()

    def draw() -> None:
        while not stop.is_set():
            torch.rand(10)

    expected = fresh(0).mean()
    beside = threading.Thread(target=draw)
    beside.start()
    try:
        start = bn.Posterior.of(bn.networks.MLP(64, 10), PROBLEM)
        for _ in range(3):
            bn.fit(bn.MAP(epochs=1), PROBLEM, DATA.train, start=start, engine=bn.Engine(progress=False))
        mean = fresh(0).mean()
    finally:
        stop.set()
        beside.join()
    assert all(torch.equal(mean[n], expected[n]) for n in expected)


def test_copies_share_their_tensors_and_go_with_the_module():
    module = nn.Linear(3, 2)
    copy = own_copy(module)
    assert copy is own_copy(module) and copy is not module
    assert copy.weight is module.weight
    assert at_once([partial(own_copy, module)])[0] is not copy
    reference = weakref.ref(copy)
    del module, copy
    gc.collect()
    assert reference() is None

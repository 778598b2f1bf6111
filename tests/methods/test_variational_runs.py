"""Variational methods in runs that are stopped and go on, and on streams: the members are the same."""

from __future__ import annotations

import pytest
import torch

import basinet as bn
from basinet.core.tree import ravel

ENGINE = bn.Engine(device="cpu", progress=False, checkpoint=0.0)
RECIPES = [
    bn.MeanField(epochs=4),
    bn.IVON(epochs=4),
    bn.MCDropout(epochs=4, insert="before", learned=True),
    bn.VariationalDropout(epochs=4),
    bn.VBLL(epochs=4),
    bn.GaussianVI(epochs=4),
    bn.FlowVI(epochs=4, base=bn.MAP(epochs=1), maps=2),
]
PROBLEM = bn.Problem(lambda: bn.networks.MLP(64, 10, hidden=(10,), dropout=0.1), bn.likelihoods.Categorical())


def digits() -> bn.Data:
    return bn.datasets.load("digits").train.take(slice(0, 200))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.label)
def test_a_run_that_was_stopped_ends_where_an_unbroken_one_does(recipe, tmp_path):
    reports = []

    def stop(event: bn.Event) -> None:
        reports.append(event)
        if event.method == recipe.label and len(reports) >= 3:
            raise KeyboardInterrupt

    whole = bn.fit(recipe, PROBLEM, digits(), members=2, engine=ENGINE)
    with pytest.raises(KeyboardInterrupt):
        bn.fit(recipe, PROBLEM, digits(), members=2, engine=ENGINE, pool=tmp_path, observe=stop)
    again = bn.fit(recipe, PROBLEM, digits(), members=2, engine=ENGINE, pool=tmp_path)
    assert torch.equal(ravel(whole.mean()), ravel(again.mean()))
    few = digits().inputs[:5]
    assert torch.equal(whole.predict(few).outputs, again.predict(few).outputs)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.label)
def test_streams_are_data(recipe):
    data = digits()
    batches = [(data.inputs[i : i + 50], data.targets[i : i + 50]) for i in range(0, 200, 50)]
    posterior = bn.fit(recipe, PROBLEM, bn.Data.stream(batches, n=200), members=2, engine=ENGINE)
    assert len(posterior) == 2 and bool(ravel(posterior.mean()).isfinite().all())


@pytest.mark.parametrize("recipe", [r for r in RECIPES if r.label != "VBLL"], ids=lambda r: r.label)
def test_terms_with_points_of_their_own_count_too(recipe):
    data = digits()
    more = bn.terms.Observations(data.inputs[:7], data.targets[:7], bn.likelihoods.Categorical())
    problem = bn.Problem(PROBLEM.network, PROBLEM.likelihood, terms=[more])
    posterior = bn.fit(recipe, problem, data, members=2, engine=ENGINE)
    assert bool(ravel(posterior.mean()).isfinite().all())


def test_a_last_layer_in_closed_form_takes_only_data():
    more = bn.terms.Observations(digits().inputs[:7], digits().targets[:7], bn.likelihoods.Categorical())
    problem = bn.Problem(PROBLEM.network, PROBLEM.likelihood, terms=[more])
    with pytest.raises(ValueError, match="VBLL as given here uses only data and prior"):
        bn.fit(bn.VBLL(epochs=1), problem, digits(), engine=ENGINE)

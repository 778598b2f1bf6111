"""Recipes: a list stands for one recipe per value, and each is checked as a plain one."""

from __future__ import annotations

import pytest
import torch

from basinet.core.recipe import cohorts, differences, expand, flat, rebound
from basinet.methods.laplace import Laplace
from basinet.methods.lit import LIT
from basinet.methods.map import MAP
from basinet.methods.snapshot import Snapshot
from basinet.optim import SGD, Adam, Constant, Cosine, Cyclic, WarmUp


def test_a_recipe_without_lists_stands_for_itself():
    recipe = MAP(optimizer=Adam(betas=(0.8, 0.99)))
    assert expand(recipe) == [recipe]


def test_lists_at_any_depth_go_in_step():
    recipes = expand(MAP(epochs=[1, 2], optimizer=SGD(lr=WarmUp(schedule=Cosine(peak=[0.1, 0.2])), momentum=0.5)))
    assert recipes == [
        MAP(epochs=e, optimizer=SGD(lr=WarmUp(schedule=Cosine(peak=p)), momentum=0.5)) for e, p in ((1, 0.1), (2, 0.2))
    ]


def test_values_may_be_recipes_and_tuples():
    recipes = expand(MAP(optimizer=[SGD(lr=0.1), Adam(betas=(0.5, 0.9))]))
    assert recipes == [MAP(optimizer=SGD(lr=0.1)), MAP(optimizer=Adam(betas=(0.5, 0.9)))]
    assert expand(Adam(betas=[(0.5, 0.9), (0.8, 0.9)])) == [Adam(betas=(0.5, 0.9)), Adam(betas=(0.8, 0.9))]


def test_fields_that_a_class_converts_are_converted_for_each_value():
    recipes = expand(Snapshot(cycles=2, optimizer=SGD(lr=[0.1, 0.2])))
    assert [m.optimizer.lr for m in recipes] == [Cyclic(peak=0.1, cycles=2), Cyclic(peak=0.2, cycles=2)]


@pytest.mark.parametrize("fields", [{"lr": [1e-3, 1e-2], "eps": [1e-8, 1e-7, 1e-6]}, {"lr": []}])
def test_lists_of_different_lengths_are_refused_by_name(fields):
    with pytest.raises(ValueError, match="expected lists of equal length") as error:
        Adam(**fields)
    assert all(f"{name} has {len(values)}" in str(error.value) for name, values in fields.items())


def test_lists_of_different_lengths_at_different_depths_are_refused_by_path():
    with pytest.raises(ValueError, match=r"optimizer\.lr has 2, epochs has 3"):
        MAP(epochs=[1, 2, 3], optimizer=Adam(lr=[1e-3, 1e-2]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Adam(lr=[1e-3, -1.0]), r"Adam with lr=-1\.0, value 1 of its lists: .*got -1\.0"),
        (lambda: SGD(momentum=[1.5, 0.9]), r"momentum=1\.5, value 0"),
        (lambda: MAP(patience=[3, 0]), r"patience=0, value 1"),
        (lambda: MAP(patience=[3, "no"]), r"patience='no', value 1"),
        (lambda: Cosine(peak=[0.1, 0.2], floor=0.15), r"peak=0\.1, value 0"),
    ],
)
def test_each_value_is_checked_when_the_recipe_is_made(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_lists_inside_lists_are_refused():
    with pytest.raises(ValueError, match="lists inside"):
        expand(MAP(optimizer=[Adam(lr=[1e-3, 1e-2]), Adam()]))


def test_tensors_stand_where_numbers_were_and_are_not_checked():
    recipe = MAP(optimizer=SGD(lr=Constant(value=0.1)))
    lr = torch.tensor(-3.0)
    bound = rebound(recipe, {("optimizer", "lr", "value"): lr, ("epochs",): 7})
    assert bound.optimizer.lr.value is lr and bound.epochs == 7 and bound.batch_size == recipe.batch_size
    assert recipe.optimizer.lr.value == 0.1


def test_flat_names_every_value_by_path():
    values = dict(flat(MAP(epochs=2, optimizer=Adam(lr=Constant(value=0.3)))))
    assert values[("epochs",)] == 2 and values[("optimizer",)] is Adam and values[("optimizer", "lr", "value")] == 0.3


def test_recipes_that_differ_only_in_floats_are_a_cohort():
    recipes = [
        MAP(optimizer=Adam(lr=0.1)),
        MAP(optimizer=Adam(lr=0.2, weight_decay=0.5)),
        MAP(optimizer=SGD(lr=0.1)),
        MAP(optimizer=Adam(lr=1)),  # a whole number among others that are not
        MAP(optimizer=Adam(lr=Constant(value=0.1))),
        MAP(optimizer=Adam(lr=0.1), epochs=3),
        MAP(optimizer=Adam(lr=0.1, betas=(0.5, 0.9))),
        MAP(optimizer=Adam(lr=0.7)),
    ]
    assert cohorts(recipes, [0] * 8) == [[0, 1, 3, 7], [2], [4], [5], [6]]
    assert cohorts(recipes, [0] * 7 + [1]) == [[0, 1, 3], [2], [4], [5], [6], [7]]
    assert differences([recipes[i] for i in (0, 1, 3)]) == [("optimizer", "lr"), ("optimizer", "weight_decay")]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MAP(epochs="3"), "MAP: expected epochs as a whole number or None, got '3'"),
        (lambda: MAP(batch_size=2.5), r"MAP: expected batch_size as a whole number or None, got 2\.5"),
        (lambda: MAP(every=True), "MAP: expected every as a whole number, got True"),
        (
            lambda: MAP(epochs=[1, 2.5]),
            r"epochs=2\.5, value 1 of its lists: MAP: expected epochs as a whole",
        ),
        (lambda: Cosine(peak="high"), "Cosine: expected peak as a number, got 'high'"),
        (lambda: SGD(nesterov=1), "SGD: expected nesterov as True or False, got 1"),
        (
            lambda: MAP(optimizer="adam"),
            r"expected optimizer as a recipe such as Adam\(lr=1e-3\), got 'adam'",
        ),
        (lambda: MAP(optimizer=Adam), "expected optimizer as a recipe such as .*, got <class"),
        (
            lambda: Laplace(base=MAP),
            r"expected base as a recipe such as MAP\(epochs=50\) or None, got <class",
        ),
        (lambda: LIT(epochs=1.5), "LIT: expected epochs as a whole number or None"),  # no checks of its own
    ],
)
def test_values_of_another_kind_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_whole_numbers_are_numbers():
    assert Cosine(peak=1).peak == 1

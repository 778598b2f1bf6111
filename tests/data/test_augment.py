"""Augmentation: crops and mirrors of the padded image, from a member's own noise, only for training batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import basinet as bn
from basinet.core.lift import lift
from basinet.core.tree import leaves
from basinet.data.augment import Augmentation, CropFlip
from basinet.methods.map import MAP

IMAGES = bn.Noise.seed(5).normal(torch.empty(40, 2, 5, 6, dtype=torch.float64))


def candidates(image: Tensor, padding: int, flip: bool) -> list[Tensor]:
    """Every crop of one padded image (C, H, W), and its mirror."""
    height, width = image.shape[-2:]
    padded = F.pad(image, (padding,) * 4)
    places = range(2 * padding + 1)
    crops = [padded[:, i : i + height, j : j + width] for i in places for j in places]
    return crops + [crop.flip(-1) for crop in crops] if flip else crops


@pytest.mark.parametrize(("padding", "flip"), [(1, True), (2, True), (2, False), (0, True), (0, False)])
def test_values_are_crops_and_mirrors_of_the_padded_image(padding, flip):
    augmented = CropFlip(padding=padding, flip=flip)(IMAGES, bn.Noise.seed(0))
    assert augmented.shape == IMAGES.shape and augmented.dtype == IMAGES.dtype
    for image, changed in zip(IMAGES, augmented):
        assert any(torch.equal(changed, c) for c in candidates(image, padding, flip))


def test_all_crops_and_mirrors_come_about_equally_often():
    image = torch.arange(1.0, 13.0).reshape(1, 1, 3, 4)
    many = CropFlip(padding=1)(image.expand(9000, 1, 3, 4), bn.Noise.seed(1))
    counts = torch.tensor([float((many == c).flatten(1).all(1).sum()) for c in candidates(image[0], 1, True)])
    assert counts.sum() == 9000
    assert float(((counts - 500) ** 2 / 500).sum()) < 42  # chi-square with 17 degrees of freedom: p = 0.0007


def test_the_same_noise_gives_the_same_images_alone_and_in_a_stack():
    keys = torch.stack([bn.Noise.seed(k).key for k in range(4)])
    stacked = lift(lambda key: CropFlip()(IMAGES, bn.Noise(key)))(keys)
    for k in range(4):
        assert torch.equal(stacked[k], CropFlip()(IMAGES, bn.Noise(keys[k])))
    assert not torch.equal(stacked[0], stacked[1])


def test_what_is_not_an_image_and_negative_padding_are_refused():
    with pytest.raises(ValueError, match=r"CropFlip expects images \(B, C, H, W\), got \(3, 4\)"):
        CropFlip()(torch.zeros(3, 4), bn.Noise.seed(0))
    with pytest.raises(ValueError, match="expected padding of at least 0 pixels, got -1"):
        CropFlip(padding=-1)


class Blank(Augmentation):
    """Every image becomes black: whoever sees it learns nothing from it."""

    def __call__(self, inputs: Any, noise: bn.Noise) -> Any:
        return 0 * inputs


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(90, 3)).double()


PROBLEM = bn.Problem(network, bn.likelihoods.Categorical())
DATA = bn.Data(IMAGES, bn.Noise.seed(6).integers(40, 3))


def fit(data: bn.Data, strategy: Any, members: int = 3, **options: Any) -> bn.Posterior:
    engine = bn.Engine(device="cpu", strategy=strategy, progress=False)
    recipe = MAP(epochs=3, batch_size=8)
    return bn.fit(recipe, PROBLEM, data, members=members, engine=engine, **options)


def apart(a: bn.Posterior, b: bn.Posterior) -> float:
    pairs = zip(leaves(a.parts[0].family), leaves(b.parts[0].family), strict=True)
    return max(float((x - y).abs().max()) for x, y in pairs)


def test_a_member_trained_with_augmentation_is_the_same_alone_and_in_a_stack():
    data = DATA.augmented(CropFlip(padding=1))
    stacked, loop = fit(data, "stacked"), fit(data, "loop")
    assert apart(stacked, loop) <= 1e-11
    assert apart(fit(data, "loop", 1), loop[0]) == 0
    assert apart(loop, fit(DATA, "loop")) > 1e-4


def test_only_training_batches_are_augmented():
    blank = fit(DATA.augmented(Blank()), "loop", val=DATA.augmented(Blank()))
    black = fit(bn.Data(0 * IMAGES, DATA.targets), "loop", val=DATA)
    assert apart(blank, black) == 0
    assert blank.info["curves"]["val_nll"] == black.info["curves"]["val_nll"]
    assert torch.equal(blank.predict(IMAGES).outputs, black.predict(IMAGES).outputs)


def test_augmentation_makes_other_data_for_a_pool():
    prints = {d.fingerprint() for d in (DATA, DATA.augmented(CropFlip()), DATA.augmented(CropFlip(padding=2)))}
    assert len(prints) == 3


def test_augmentation_survives_bootstraps_and_moves():
    data = DATA.augmented(CropFlip())
    assert data.bootstrap(3).augment == CropFlip() == data.to(dtype=torch.float32).augment

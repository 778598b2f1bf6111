"""Corruptions: what each does to an image is what its formula says, and every image has noise of its own."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import basinet as bn
from basinet.data.corruptions import GROUPS, NAMES, blurs, corrupt, digital, jpeg, noises, weather
from basinet.data.corruptions.colour import from_hsv, from_ycc, to_hsv, to_ycc
from basinet.data.corruptions.filters import blur, convolve, disc_kernel, gaussian_kernel, sample, streak, zoom
from basinet.data.corruptions.keyed import normal, poisson
from basinet.data.corruptions.table import TABLE
from basinet.data.corruptions.textures import crystals, plasma


def pictures(batch: int, channels: int, height: int, width: int) -> Tensor:
    """Smooth colours with a sharp square on them, each somewhere else."""
    coarse = bn.Noise.seed(3).uniform(torch.empty(batch, channels, 5, 5))
    x = F.interpolate(coarse, (height, width), mode="bilinear", align_corners=False)
    x[..., height // 4 : height // 2, width // 3 : 2 * width // 3] *= 0.4
    return torch.stack([image.roll((i, 3 * i), (1, 2)) for i, image in enumerate(x)])


COLOUR = pictures(24, 3, 32, 32)
GREY = pictures(24, 1, 28, 28)
KEYS = bn.Noise.seed(7).spread(24)


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def test_the_names_are_nineteen_in_four_groups():
    assert len(NAMES) == 19 and [name for group in GROUPS.values() for name in group] == list(NAMES)
    assert {group: len(names) for group, names in GROUPS.items()} == {"noise": 4, "blur": 5, "weather": 6, "digital": 4}
    assert all(len(entry.severities) == 5 for entry in TABLE.values())
    assert bn.corruptions.corrupt is corrupt


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(2, 3, 32, 32), (2, 1, 28, 28), (2, 1, 8, 8), (1, 3, 41, 70), (2, 3, 1, 1)])
def test_images_of_any_size_keep_shape_and_range(name, shape):
    for severity in (1, 5):
        out = corrupt(pictures(*shape), name, severity)
        assert out.shape == shape and out.isfinite().all() and out.min() >= 0 and out.max() <= 1


@pytest.mark.parametrize("name", NAMES)
def test_dtypes_are_kept_and_agree(name):
    whole = (255 * COLOUR[:4]).round().to(torch.uint8)
    out = corrupt(whole, name, 3)
    as_float = corrupt(whole.float() / 255, name, 3)
    assert out.dtype == torch.uint8 and as_float.dtype == torch.float32
    assert apart(out.float() / 255, as_float) <= 0.5 / 255 + 1e-6
    as_double = corrupt(whole.double() / 255, name, 3)
    assert as_double.dtype == torch.float64 and torch.equal(as_double.float(), as_float)
    assert corrupt(whole.bfloat16() / 255, name, 3).dtype == torch.bfloat16


@pytest.mark.parametrize("name", NAMES)
def test_a_slice_is_corrupted_as_in_the_whole(name, monkeypatch):
    whole = corrupt(COLOUR, name, 4, seed=5)
    assert torch.equal(whole, corrupt(COLOUR, name, 4, seed=5))
    assert apart(corrupt(COLOUR[:3], name, 4, seed=5), whole[:3]) <= 1e-6
    assert apart(corrupt(COLOUR[9:11], name, 4, seed=5, begin=9), whole[9:11]) <= 1e-6
    monkeypatch.setattr("basinet.data.corruptions.table.PIECE", 7 * 3 * 32 * 32)  # pieces of seven images
    assert apart(corrupt(COLOUR, name, 4, seed=5), whole) <= 1e-6


FIXED = {
    "defocus_blur",
    "zoom_blur",
    "gaussian_blur",
    "brightness",
    "saturate",
    "contrast",
    "pixelate",
    "jpeg_compression",
}


@pytest.mark.parametrize("name", NAMES)
def test_noise_is_of_the_seed_and_of_the_image(name):
    same = COLOUR[:1].expand(2, 3, 32, 32)
    out, other = corrupt(same, name, 3), corrupt(same, name, 3, seed=1)
    random = name not in FIXED
    assert (not torch.equal(out[0], out[1])) == random
    assert (not torch.equal(out[0], other[0])) == random


# by published parameters: glass and frost trade blur or darkness against scatter and ice, spatter turns from water to
# mud, saturate from less to more colour, and elastic from tilting the whole to bending its parts
NOT_MONOTONE = {"glass_blur", "frost", "spatter", "saturate", "elastic_transform"}


@pytest.mark.parametrize("name", NAMES)
def test_severity_is_distance_from_the_clean_image(name):
    distance = [float((corrupt(COLOUR, name, s) - COLOUR).square().mean()) for s in range(1, 6)]
    assert distance[0] > 0
    if name in NOT_MONOTONE:
        assert distance != sorted(distance)
    else:
        assert distance == sorted(distance)


def test_noise_has_the_variance_that_it_says():
    x = torch.full((24, 1, 40, 40), 0.5)
    n = x.numel()
    for noisy, variance in (
        (noises.gaussian(x, KEYS, 0.1), 0.01),
        (noises.speckle(x, KEYS, 0.2), 0.01),
        (noises.shot(x, KEYS, 50), 0.5 / 50),
    ):
        kurtosis = 3 + (1 / 25 if noisy.unique().numel() < 1000 else 0)  # Poisson of rate 25
        z_mean = (noisy.mean() - 0.5) / math.sqrt(variance / n)
        z_variance = (noisy.var() / variance - 1) / math.sqrt((kurtosis - 1) / n)
        assert abs(float(z_mean)) < 4 and abs(float(z_variance)) < 4
    hit = noises.impulse(x, KEYS, 0.07)
    for value in (0.0, 1.0):
        assert abs(float((hit == value).float().mean()) - 0.035) < 4 * math.sqrt(0.035 / n)
    assert abs(float((hit == 0.5).float().mean()) - 0.93) < 4 * math.sqrt(0.07 / n)


@pytest.mark.parametrize("rate", [0.02, 1.0, 7.3, 15.9, 16.1, 40.0, 400.0])
def test_counts_are_poisson(rate):
    counts = poisson(KEYS, torch.full((24, 4000), rate)).flatten()
    truth = torch.distributions.Poisson(rate)
    edges = [int(rate + s * math.sqrt(rate)) for s in (-2, -1, -0.4, 0, 0.4, 1, 2)]
    for edge in sorted({e for e in edges if e >= 0}):
        p = float(truth.log_prob(torch.arange(edge + 1.0)).exp().sum())
        z = (float((counts <= edge).float().mean()) - p) / math.sqrt(p * (1 - p) / len(counts))
        assert abs(z) < 4
    assert counts.min() >= 0 and bool((counts == counts.round()).all())


def test_blurs_sum_to_one_and_keep_constants():
    for sigma in (0.05, 0.4, 1.0, 3.0):
        assert float(gaussian_kernel(sigma).sum()) == pytest.approx(1, abs=1e-6)
    for radius, smooth in TABLE["defocus_blur"].severities:
        for scale in (1, 3.3):
            kernel = disc_kernel(scale * radius, smooth)
            assert float(kernel.sum()) == pytest.approx(1, abs=1e-6)
            assert torch.allclose(kernel, kernel.T) and torch.allclose(kernel, kernel.flip(0))
    constant = torch.tensor([0.1, 0.5, 0.8])[None, :, None, None].expand(24, 3, 33, 30)
    kept = (*GROUPS["blur"], "contrast", "elastic_transform", "pixelate")
    for name in kept:
        for severity in range(1, 6):
            assert apart(corrupt(constant, name, severity), constant) < 2e-6


def test_a_gaussian_blur_has_its_variance_and_a_disc_its_area():
    line = torch.arange(-12, 13.0)
    assert float((gaussian_kernel(3.0) * line**2).sum()) == pytest.approx(9, rel=0.01)  # cut at 4 sigma
    assert float((disc_kernel(9.0, 0.1) > 1e-6).sum()) == pytest.approx(math.pi * 81, rel=0.03)
    point = torch.zeros(1, 1, 21, 21)
    point[..., 10, 10] = 1
    spread = gaussian_kernel(1.5)
    assert torch.allclose(blur(point, 1.5)[0, 0, 4:17, 4:17], spread[:, None] * spread, atol=1e-7)
    assert torch.allclose(convolve(point, torch.eye(3) / 3)[0, 0, 9:12, 9:12], torch.eye(3) / 3)


def test_a_streak_goes_along_its_angle():
    point = torch.zeros(1, 1, 21, 21)
    point[..., 10, 10] = 1
    along = streak(point, torch.zeros(1), 6, 2.0)  # of angle 0: pixels take from their right
    weights = torch.exp(-0.5 * (torch.arange(7.0) / 2) ** 2)
    assert torch.allclose(along[0, 0, 10, 4:11].flip(0), weights / weights.sum(), atol=1e-5)
    down = streak(point, torch.full((1,), math.pi / 2), 6, 2.0)
    assert torch.allclose(down, along.mT, atol=1e-5)


def test_sampling_at_the_pixels_is_the_image_and_zoom_is_linear_in_a_ramp():
    rows, columns = torch.meshgrid(torch.arange(9.0), torch.arange(7.0), indexing="ij")
    x = pictures(2, 3, 9, 7)
    assert apart(sample(x, rows.expand(2, 9, 7), columns.expand(2, 9, 7)), x) < 1e-5
    ramp = columns.expand(1, 1, 9, 7)
    assert torch.allclose(zoom(ramp, 2.0), 3 + (ramp - 3) / 2, atol=1e-5)


def test_glass_moves_pixels_and_makes_none():
    x = torch.arange(32 * 32.0).reshape(1, 1, 32, 32).expand(24, 1, 32, 32)
    out = blurs.glass(x, KEYS, 1e-3, 1, 1)
    row, column = (out // 32 - x // 32)[..., 1:, 1:], (out % 32 - x % 32)[..., 1:, 1:]
    for step in (row, column):
        assert set(step.unique().tolist()) == {-1.0, 0.0}
        assert abs(float(step.mean()) + 0.5) < 4 * 0.5 / math.sqrt(step.numel())
    twice = (blurs.glass(x, KEYS, 1e-3, 1, 2) // 32 - x // 32)[..., 2:, 2:]
    stays = float((twice == 0).float().mean())
    assert abs(stays - 0.25) < 4 * math.sqrt(
        2 * 0.25 * 0.75 / twice.numel()
    )  # neighbours share steps: twice the variance


def test_brightness_adds_to_the_value_and_saturate_leaves_it():
    x = COLOUR
    hue, saturation, value = to_hsv(x).unbind(1)
    bright = to_hsv(weather.brightness(x, KEYS, 0.2))
    assert apart(bright[:, 2], (value + 0.2).clamp(max=1)) < 1e-6 and apart(bright[:, 1], saturation) < 1e-5
    vivid = to_hsv(weather.saturate(x, KEYS, 2.0, 0.1))
    assert apart(vivid[:, 2], value) < 1e-6
    assert apart(vivid[:, 1], (2 * saturation + 0.1).clamp(max=1)) < 1e-5
    turn = (vivid[:, 0] - hue).abs()
    assert float(torch.minimum(turn, 1 - turn).max()) < 1e-3
    assert torch.equal(corrupt(GREY, "saturate", 5), GREY)
    assert apart(corrupt(GREY, "brightness", 5), (GREY + 0.3).clamp(max=1)) < 1e-6


def test_colours_go_and_come_back():
    assert apart(from_hsv(to_hsv(COLOUR)), COLOUR) < 1e-6
    assert apart(from_ycc(*to_ycc(COLOUR)), COLOUR) < 1e-6
    named = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0.5, 0.5, 0.5], [0, 0, 0]])[:, :, None, None]
    hsv = [[0, 1, 1], [1 / 3, 1, 1], [2 / 3, 1, 1], [1 / 6, 1, 1], [0, 0, 0.5], [0, 0, 0]]
    assert torch.allclose(to_hsv(named)[..., 0, 0], torch.tensor(hsv))
    luma, chroma = to_ycc(named)
    assert torch.allclose(luma[:3, 0, 0, 0], torch.tensor([0.299, 0.587, 0.114]))
    assert torch.allclose(chroma[[2, 0], [0, 1], 0, 0], torch.tensor(0.5))  # blue's first, red's second
    assert float(chroma[4:].abs().max()) < 1e-6


def test_contrast_keeps_the_mean_and_a_share_of_the_spread():
    out = corrupt(COLOUR, "contrast", 3)
    assert torch.allclose(out.mean((2, 3)), COLOUR.mean((2, 3)), atol=1e-6)
    assert torch.allclose(out.std((2, 3)), 0.4 * COLOUR.std((2, 3)), atol=1e-6)


def test_pixelate_makes_as_many_cells_as_it_says():
    out = corrupt(torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0)), "pixelate", 5)
    rows = (out[:, :, 1:] != out[:, :, :-1]).any(-1).sum(-1) + 1
    columns = (out[..., 1:] != out[..., :-1]).any(-2).sum(-1) + 1
    assert rows.flatten().tolist() == columns.flatten().tolist() == [20, 20]  # 65 % of 32
    means = digital.pixelate(GREY, KEYS, 0.5)
    assert torch.allclose(means[..., ::2, ::2], F.avg_pool2d(GREY, 2), atol=1e-6)


def test_the_cosine_transform_is_orthonormal_and_the_tables_are_the_standards():
    assert torch.allclose(jpeg.cosines() @ jpeg.cosines().T, torch.eye(8), atol=1e-6)
    half = jpeg.table(jpeg.LUMA, 50)
    assert half[0, 0] == 16 and half[0, 1] == 11 and half[1, 0] == 12 and half[7, 7] == 99 and half.sum() == 3688
    chroma = jpeg.table(jpeg.CHROMA, 50)
    assert chroma[0, 0] == 17 and torch.equal(chroma, chroma.T) and chroma.sum() == 5505
    assert bool((jpeg.table(jpeg.LUMA, 100) == 1).all())
    assert jpeg.table(jpeg.LUMA, 25)[0, 0] == 32 and jpeg.table(jpeg.LUMA, 75)[0, 0] == 8


def test_jpeg_at_quality_100_nearly_keeps_an_image():
    whole = (255 * GREY).round() / 255
    assert apart(jpeg.jpeg(whole, KEYS, 100), whole) <= 2 / 255
    smooth = F.interpolate(pictures(4, 3, 3, 3), (32, 32), mode="bilinear", align_corners=False)
    mean = float((jpeg.jpeg(smooth, KEYS, 100) - smooth).abs().mean())
    assert mean < 1.5 / 255  # rounding, and chroma at half the resolution
    constant = torch.full((1, 3, 20, 20), 100 / 255)
    assert apart(jpeg.jpeg(constant, KEYS, 10), constant) < 0.01


def test_a_jpeg_coefficient_is_a_multiple_of_its_step():
    out = jpeg.rounded(255 * GREY[..., :24, :24] - 128, jpeg.table(jpeg.LUMA, 50))
    blocks = out.reshape(24, 1, 3, 8, 3, 8).transpose(3, 4)
    coefficients = jpeg.cosines() @ blocks @ jpeg.cosines().T / jpeg.table(jpeg.LUMA, 50)
    assert apart(coefficients, coefficients.round()) < 1e-3


def test_elastic_moves_by_what_it_says():
    rows, columns = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    ramps = torch.stack((rows, columns)).expand(24, 2, 32, 32)
    tilted = digital.elastic(ramps, KEYS, 0, 0, 0.03)[..., 8:24, 8:24]
    moved = tilted - ramps[..., 8:24, 8:24]
    assert (
        0.1 < float(moved.abs().max()) <= 2 * 0.96 + 1e-3
    )  # an affine map of three moves, inside their triangle's hull
    assert apart(tilted.diff(n=2), torch.zeros(1)) < 1e-3  # affine: second differences vanish
    pushed = digital.elastic(ramps, KEYS, 0.1, 0.03, 0)[..., 8:24, 8:24] - ramps[..., 8:24, 8:24]
    sigma = 0.03 * 32
    expected = 3.2 / math.sqrt(3) * float((gaussian_kernel(sigma) ** 2).sum())
    assert float(pushed.std()) == pytest.approx(expected, rel=0.05)


def test_fog_is_a_plasma_that_keeps_the_brightest_value():
    field = plasma(COLOUR, KEYS, 2.0)
    assert field.shape == (24, 1, 32, 32)
    assert torch.equal(field.amin((1, 2, 3)), torch.zeros(24)) and torch.equal(field.amax((1, 2, 3)), torch.ones(24))
    steps = [float(plasma(COLOUR, KEYS, decay).diff().abs().mean()) for decay in (1.2, 1.75, 3.0)]
    assert steps[0] > 1.3 * steps[1] > 1.3 * 1.3 * steps[2]  # the faster the noise decays, the smoother
    smooth = plasma(COLOUR, KEYS, 100.0)[:, 0]
    for axis in (1, 2):
        assert apart(smooth, smooth.roll(1, axis)) < 0.2  # means alone have no jumps, and none at the torus's seam
    foggy = weather.fog(COLOUR, KEYS, 0.5, 3)
    most = COLOUR.amax((1, 2, 3))
    assert torch.all(foggy.amax((1, 2, 3)) <= most + 1e-6)
    black = weather.fog(torch.zeros(2, 3, 8, 8), bn.Noise.seed(0).spread(2), 0.5, 3)
    assert torch.equal(black, torch.zeros(2, 3, 8, 8))  # as published: fog is as bright as the brightest pixel


def test_frost_and_snow_and_water_lighten():
    ice = crystals(GREY, KEYS)
    assert ice.min() >= 0.1 and ice.max() <= 1 and ice.flatten(1).std(1).min() > 0.05
    assert torch.all(corrupt(COLOUR, "frost", 1) >= COLOUR)
    assert torch.all(corrupt(COLOUR, "snow", 2) >= COLOUR - 1e-6)
    assert torch.all(corrupt(COLOUR, "spatter", 2) >= COLOUR - 1e-6)
    mud = corrupt(torch.ones(8, 3, 32, 32), "spatter", 5)
    covered = (mud < 1).any(1).float().mean()
    assert 0.02 < float(covered) < 0.4
    darkest = mud.amin((0, 2, 3))
    assert torch.allclose(darkest, torch.tensor([63.0, 42.0, 20.0]) / 255, atol=0.02)


def test_lengths_grow_with_the_image():
    """The same picture at four times the size is blurred alike."""
    small = pictures(4, 3, 32, 32)
    large = F.interpolate(small, scale_factor=4, mode="bilinear", align_corners=False)
    for name in ("gaussian_blur", "motion_blur", "zoom_blur"):
        alike = F.avg_pool2d(corrupt(large, name, 5), 4)
        assert float((alike - corrupt(small, name, 5)).abs().mean()) < 0.3 * float((alike - small).abs().mean())


def test_normal_numbers_depend_only_on_the_key():
    assert torch.equal(normal(KEYS, (3, 5))[4], bn.Noise.seed(7).split(4).normal(torch.empty(3, 5)))


@pytest.mark.parametrize(
    ("images", "name", "severity", "said"),
    [
        (
            COLOUR,
            "gausian_noise",
            3,
            "expected the name of a corruption, got 'gausian_noise'. Did you mean 'gaussian_noise'",
        ),
        (COLOUR, "fog", 0, "expected a severity of 1, 2, 3, 4 or 5, got 0"),
        (COLOUR, "fog", 2.5, "got 2.5"),
        (COLOUR, "fog", True, "got True"),
        (COLOUR[0], "fog", 3, r"expected images \(B, C, H, W\) with C = 1 or 3 channels, got \(3, 32, 32\)"),
        (COLOUR.permute(0, 2, 3, 1), "fog", 3, "permute"),
        (COLOUR[:, :, :0], "fog", 3, r"got \(24, 3, 0, 32\)"),
        ((COLOUR - 0.5) / 0.25, "fog", 3, "corrupt before you standardise"),
        (COLOUR * 255, "fog", 3, "divide by 255, or pass uint8"),
        (COLOUR * float("nan"), "fog", 3, "expected values in"),
        ((COLOUR * 255).long(), "fog", 3, "of floating point in .* or of uint8, got torch.int64"),
    ],
)
def test_bad_input_is_refused(images, name, severity, said):
    with pytest.raises(ValueError, match=said):
        corrupt(images, name, severity)


def test_an_array_is_refused_with_how_to_convert_it_and_no_images_give_none():
    with pytest.raises(TypeError, match="from_numpy"):
        corrupt(COLOUR.numpy(), "fog", 1)
    assert corrupt(COLOUR[:0], "fog", 1).shape == (0, 3, 32, 32)


def test_images_are_left_as_they_were():
    before = COLOUR.clone()
    for name in NAMES:
        corrupt(COLOUR, name, 5)
    assert torch.equal(COLOUR, before)

"""The point mass."""

import torch

from basinet.core.noise import Noise
from basinet.families import Delta


def test_every_draw_is_the_point_itself():
    params, buffers = {"a": torch.tensor([1.0, 2.0])}, {"n": torch.tensor(3)}
    delta = Delta(params, buffers)
    for point in (delta.sample(Noise.seed(0)), delta.draw(Noise.seed(1), 5), delta.mean()):
        assert point.params is params and point.buffers is buffers

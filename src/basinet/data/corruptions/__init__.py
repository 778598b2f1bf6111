"""Nineteen common corruptions of images at five severities, batched, on any device, the same for the same seed.

Robustness can then be measured offline: `corrupt(images, "fog", 3)`. The corruptions and their severities are those of
Hendrycks and Dietterich (2019, "Benchmarking neural network robustness to common corruptions and perturbations"), with
the parameters of the set made for 32 x 32 images. The images are ours and not byte-equal to the published sets: noise
comes from keys, frost is drawn (needles of ice on a plasma fractal) rather than cut from photographs, elastic resamples
once, and JPEG is only its lossy part.

Other sizes: lengths in pixels (blurs, streaks, grain) grow with the shorter side over 32, and do not shrink below their
32 x 32 values, since nothing is finer than a pixel; what the table gives as a share of the image (zoom, elastic,
pixelate) follows the image, and JPEG works on 8 x 8 blocks of any image. Grey images go through the same; `saturate`
leaves them as they are, for they have no colour to change.

Rows of a table have corruptions of their own, in `tables.corruption`.
"""

from .table import GROUPS, NAMES, corrupt

__all__ = ["GROUPS", "NAMES", "corrupt"]

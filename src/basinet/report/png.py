"""Small images as PNG in a data URI, with only the standard library."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np

MOST = 64  # pixels of a side; larger images are thinned


def data_uri(image: np.ndarray) -> str:
    """An image (H, W) in grey or (H, W, 3) in colour, uint8."""
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] not in (1, 3)):
        raise ValueError(f"expected a uint8 image (H, W) or (H, W, 3), got {image.dtype} of shape {image.shape}")
    if image.ndim == 3 and image.shape[2] == 1:
        image = image[..., 0]
    step = max(1, -(-max(image.shape[:2]) // MOST))
    image = np.ascontiguousarray(image[::step, ::step])
    height, width = image.shape[:2]
    lines = b"".join(b"\x00" + line.tobytes() for line in image)  # filter type 0 before each line
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if image.ndim == 2 else 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    whole = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)
    return "data:image/png;base64," + base64.b64encode(whole).decode()


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

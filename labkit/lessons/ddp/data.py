"""The data of the lesson: scikit-learn's handwritten digits, and the batches that every rank agrees on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from labkit.ranks import here

__all__ = ["CLASSES", "HELD_OUT", "PIXELS", "batch", "digits", "on_device"]

PIXELS, CLASSES = 64, 10  # images of 8 x 8 in 17 greys
HELD_OUT = 297  # images that are never trained on


def digits() -> tuple[Any, Any]:
    """The 1,797 images as float32 (1797, 64) between 0 and 1, and their labels as int64 (1797,), in a fixed order.

    The first 1,500 are for training. It is the test set of the UCI collection "Optical Recognition of Handwritten
    Digits", which scikit-learn ships (sklearn.datasets.load_digits).

    >>> images, labels = digits()
    >>> images.shape, str(images.dtype), float(images.max()), sorted(set(labels.tolist())) == list(range(10))
    ((1797, 64), 'float32', 1.0, True)
    """
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    return (found.data[order] / 16).astype(np.float32), found.target[order].astype(np.int64)


def batch(step: int, size: int, images: int) -> list[int]:
    """Which images make up the global batch of a step: the same on all ranks, going round and round.

    >>> batch(1, 4, 6)
    [4, 5, 0, 1]
    """
    return [(step * size + i) % images for i in range(size)]


def on_device(*arrays: Any) -> list[Any]:
    """On a rank: arrays as tensors on the rank's device."""
    return [torch.from_numpy(array).to(here().device) for array in arrays]

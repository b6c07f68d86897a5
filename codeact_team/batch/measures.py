"""Measures of evaluation: a share with its interval, and pass@k."""

from __future__ import annotations

from collections.abc import Iterable
from math import comb, sqrt

_Z = 1.959963984540054
"""Of the normal distribution: 95 % lie within so many deviations on both sides."""


def wilson_interval(share: float, trials: float) -> tuple[float, float]:
    """Wilson's interval for a share, with a confidence of 95 %.

    Args:
        share: What was found, from 0 to 1.
        trials: How many independent trials it was found in, more than 0.
    """
    spread = _Z * _Z / trials
    middle = (share + spread / 2) / (1 + spread)
    half = _Z * sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def pass_at(k: int, samples: int, passed: int) -> float:
    """The chance that at least one of ``k`` runs passes, by the unbiased estimator of Chen et al. (2021).

    Args:
        k: How many runs, at most ``samples``.
        samples: How many there were.
        passed: How many of these passed.
    """
    return 1.0 - comb(samples - passed, k) / comb(samples, k)


def mean_pass_at(k: int, counts: Iterable[tuple[int, int]]) -> float | None:
    """The mean of :func:`pass_at` over tasks, each with its samples and how many passed; ``None`` if none has ``k``."""
    each = [pass_at(k, samples, passed) for samples, passed in counts if samples >= k]
    return sum(each) / len(each) if each else None

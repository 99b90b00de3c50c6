"""What networks are made of, each with its cost in floating-point operations and bytes.

A multiplication and an addition are two operations, as PyTorch's FLOP counter has it. Only matrix products, attention
and convolutions count as operations; all the rest (norms, activations, sums) is limited by memory, and counts in bytes.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

FLOAT = 4
"""Bytes of a number in single precision, in which bytes are counted."""


@dataclass(frozen=True)
class Cost:
    """What some work takes.

    Attributes:
        products: operations of matrix products and attention.
        convolutions: operations of convolutions.
        bytes: read and written by all operators, in single precision, as if nothing stayed in a cache.
        operators: calls of kernels; a GPU takes some microseconds to start each.
        weights: parameters that are read, biases and norms not counted.
    """

    products: float = 0.0
    convolutions: float = 0.0
    bytes: float = 0.0
    operators: float = 0.0
    weights: float = 0.0

    @property
    def flops(self) -> float:
        """All floating-point operations."""
        return self.products + self.convolutions

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, times: float) -> Cost:
        return Cost(*(times * each for each in astuple(self)))

    __rmul__ = __mul__


def total(*costs: Cost) -> Cost:
    """All of them."""
    return sum(costs, Cost())


def linear(rows: float, inner: float, outer: float) -> Cost:
    """x W + b, (rows, inner) → (rows, outer): 2 · rows · inner · outer."""
    moved = rows * inner + inner * outer + rows * outer
    return Cost(products=2.0 * rows * inner * outer, bytes=FLOAT * moved, operators=1, weights=inner * outer)


def pointwise(numbers: float, reads: int = 1) -> Cost:
    """A norm, an activation (``reads`` 1) or a sum (2): reads so many arrays of ``numbers``, writes one."""
    return Cost(bytes=FLOAT * (reads + 1.0) * numbers, operators=1)


def attention(sequences: float, queries: float, keys: float, width: float) -> Cost:
    """softmax(QKᵀ)V in one fused call, of all heads: 2 · 2 · sequences · queries · keys · width."""
    moved = sequences * (2.0 * queries + 2.0 * keys) * width
    return Cost(products=4.0 * sequences * queries * keys * width, bytes=FLOAT * moved, operators=1)


def convolution(images: float, inner: float, outer: float, kernel: int, side_in: int, side_out: int) -> Cost:
    """(images, inner, side_in²) → (images, outer, side_out²), an activation joined to it."""
    weights = inner * outer * kernel**2
    moved = images * (inner * side_in**2 + outer * side_out**2) + weights
    done = 2.0 * images * side_out**2 * weights
    return Cost(convolutions=done, bytes=FLOAT * moved, operators=1, weights=weights)


def block(rows: float, wanted: float, mixed: Cost, width: float, hidden: float) -> Cost:
    """A pre-norm transformer block of ``rows`` tokens in all, of which ``wanted`` are carried on after the keys and
    values; ``mixed`` is what its attention takes."""
    return total(
        pointwise(rows * width),
        linear(rows, width, 2 * width),
        linear(wanted, width, width),
        mixed,
        linear(wanted, width, width),
        pointwise(wanted * width, reads=2),
        pointwise(wanted * width),
        linear(wanted, width, hidden),
        pointwise(wanted * hidden),
        linear(wanted, hidden, width),
        pointwise(wanted * width, reads=2),
    )

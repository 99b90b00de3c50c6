"""The text side: the shared prefix once (:mod:`otpt.prompts.encoders`), then class tails.

A forward pass of the text features E(θ) and a vector–Jacobian product through the graph that leads to them are all
that an image asks of it. The product goes through each linear map once, against its weights alone: as many operations
as the forward pass, and twice those of attention.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from otpt.costs.architecture import Architecture, TextTransformer
from otpt.costs.operations import FLOAT, Cost, attention, block, linear, pointwise, total

GRAPH_FLOATS = 14
"""Floats kept for the backward pass, per row and layer, in units of the width; of an MLP four times as wide."""


@dataclass(frozen=True)
class Texts:
    """The tokens of a class list.

    Attributes:
        prefix: tokens that all classes share: the start token and the context.
        tails: for each class the number of its own tokens: name, full stop, end token.
        context: tokens of the context that are tuned.
    """

    prefix: int
    tails: tuple[int, ...]
    context: int = 4

    @property
    def classes(self) -> int:
        """C."""
        return len(self.tails)


def rows(model: TextTransformer, texts: Texts) -> int:
    """Tokens that go through a text tower: prefix and tails; of one that is not causal all sentences."""
    if not model.causal:
        return texts.classes * model.length
    return texts.prefix + sum(texts.tails)


def text_forward(model: Architecture, texts: Texts) -> Cost:
    """E(θ): all text features under one context."""
    mixed, linears = _parts(model, texts)
    return mixed + linears


def text_product(model: Architecture, texts: Texts, *, budget: float) -> Cost:
    """The vector–Jacobian product of one cotangent (C, D); a graph beyond ``budget`` bytes is computed again first."""
    mixed, linears = _parts(model, texts)
    again = text_forward(model, texts) if graph_bytes(model.text, texts) > budget else Cost()
    return total(2 * mixed, linears, Cost(bytes=linears.bytes), again)


def graph_bytes(model: TextTransformer, texts: Texts) -> float:
    """What is kept for the product, for one context."""
    return float(FLOAT * GRAPH_FLOATS * model.width * model.layers * rows(model, texts))


def text_parameters(model: TextTransformer, features: int) -> float:
    """Weights of a text tower, its embeddings included."""
    layer = 4 * model.width**2 + 2 * model.width * model.hidden
    return float((model.vocabulary + model.length + features) * model.width + model.layers * layer)


def _parts(model: Architecture, texts: Texts) -> tuple[Cost, Cost]:
    """(attention, all the rest) of a forward pass."""
    tower, classes = model.text, texts.classes
    every, width = rows(tower, texts), tower.width
    if tower.causal:
        mixed = attention(1, texts.prefix, texts.prefix, width)
        for length, count in Counter(texts.tails).items():
            mixed += attention(count, length, texts.prefix + length, width)
        # what joins the prefix's keys and values to those of each tail
        mixed += pointwise(2 * width * sum(texts.prefix + length for length in texts.tails))
    else:
        mixed = attention(classes, tower.length, tower.length, width)
    read = classes if tower.causal else every
    whole = block(every, every, Cost(), width, tower.hidden)
    # in the last layer of causal encoders: queries, keys and values of all rows, the rest for the end tokens
    last = total(block(every, read, Cost(), width, tower.hidden), _queries(every - read, width))
    linears = total((tower.layers - 1) * whole, last, linear(classes, width, model.features))
    return tower.layers * mixed, linears


def _queries(rows: float, width: float) -> Cost:
    return linear(rows, width, width) if rows else Cost()

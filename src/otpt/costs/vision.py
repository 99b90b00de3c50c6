"""The image tower as it runs (``backbones/towers/image_tower.py``): views in chunks, the last block as it is read."""

from __future__ import annotations

from functools import cache

from otpt.backbones import pocket as hybrid
from otpt.costs.architecture import Architecture, Hybrid, ResNet, VisionTransformer
from otpt.costs.operations import Cost, attention, block, convolution, linear, pointwise, total

CHUNK = {"cpu": 8, "gpu": 64}
"""Views that go through together; weights are read once for each chunk."""


def image_tower(model: Architecture, views: int, *, chunk: int = CHUNK["cpu"]) -> Cost:
    """So many views of an image, in whole chunks: the last one is filled up."""
    chunks = -(-views // chunk)
    return chunks * one_chunk(model, chunk)


@cache
def one_chunk(model: Architecture, views: int) -> Cost:
    """``views`` views that go through together."""
    if isinstance(model.vision, VisionTransformer):
        return _transformer(model.vision, views, model.features)
    if isinstance(model.vision, ResNet):
        return _resnet(model.vision, views, model.features)
    if isinstance(model.vision, Hybrid):
        return _hybrid(views, model.features)
    from otpt.costs.counting import count_image_tower

    return count_image_tower(model, views)


def _transformer(tower: VisionTransformer, views: int, features: int) -> Cost:
    """L blocks on all tokens, the last one for the class token only; SigLIP's all on all, then attention pooling."""
    width, rows = tower.width, views * tower.tokens
    mixed = attention(views, tower.tokens, tower.tokens, width)
    patches = convolution(views, 3, width, tower.patch, tower.image_size, tower.side)
    whole = block(rows, rows, mixed, width, tower.hidden)
    if not tower.class_token:
        pooled = total(
            linear(rows, width, 2 * width),
            linear(views, width, width),
            attention(views, 1, tower.tokens, width),
            linear(views, width, width),
            linear(views, width, tower.hidden),
            linear(views, tower.hidden, width),
        )
        return total(patches, tower.layers * whole, pointwise(rows * width), pooled)
    last = block(rows, views, attention(views, 1, tower.tokens, width), width, tower.hidden)
    return total(
        patches,
        pointwise(rows * width, reads=2),
        (tower.layers - 1) * whole,
        last,
        linear(views, width, features),
    )


def _resnet(tower: ResNet, views: int, features: int) -> Cost:
    """Three convolutions and a pooling, four stages of bottlenecks, attention pooling with one query."""
    cells = (tower.image_size // 32) ** 2
    width, rows = 32 * tower.width, views * (cells + 1)
    pooling = total(
        linear(rows, width, 2 * width),
        linear(views, width, width),
        attention(views, 1, cells + 1, width),
        linear(views, width, features),
    )
    return total(*_layers(tower, views), pooling)


def _layers(tower: ResNet, views: int) -> list[Cost]:
    side, width = tower.image_size // 2, tower.width
    found = [
        convolution(views, 3, width // 2, 3, tower.image_size, side),
        convolution(views, width // 2, width // 2, 3, side, side),
        convolution(views, width // 2, width, 3, side, side),
        pointwise(views * width * side**2),
    ]
    inner, side = width, side // 2
    for stage, blocks in enumerate(tower.layers):
        planes = width * 2**stage
        for number in range(blocks):
            small = side // 2 if number == 0 and stage else side
            found += [
                convolution(views, inner, planes, 1, side, side),
                convolution(views, planes, planes, 3, side, side),
                convolution(views, planes, 4 * planes, 1, small, small),
                pointwise(views * 4 * planes * small**2),
            ]
            if small < side:
                found += [pointwise(views * (planes + inner) * side**2)]
            if number == 0:
                found += [convolution(views, inner, 4 * planes, 1, small, small)]
            inner, side = 4 * planes, small
    return found


def _hybrid(views: int, features: int) -> Cost:
    """The convolutions of EfficientNet-Lite0, then two transformer blocks on 4 × 4 tokens."""
    side, inner, width = hybrid.SIZE // 2, hybrid.STEM, hybrid.WIDTH
    found = [convolution(views, 3, inner, 3, hybrid.SIZE, side)]
    for stage, (blocks, kernel, stride, outer) in enumerate(hybrid.STAGES):
        for number in range(blocks):
            wide = inner * (hybrid.EXPANSION if stage else 1)
            strided = number == 0 and stage != hybrid.UNSTRIDED
            small = side // stride if strided else side
            if stage:
                found.append(convolution(views, inner, wide, 1, side, side))
            # one filter per channel: as one input channel, but all of them are read
            found += [convolution(views, 1, wide, kernel, small, small), Cost(bytes=4.0 * views * wide * side**2)]
            found.append(convolution(views, wide, outer, 1, small, small))
            inner, side = outer, small
    rows = views * side**2
    mixed = attention(views, side**2, side**2, width)
    blocks_cost = hybrid.DEPTH * block(rows, rows, mixed, width, 4 * width)
    return total(*found, linear(rows, inner, width), blocks_cost, linear(views, width, features))

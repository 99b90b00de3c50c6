"""FPT among the methods: side networks on one frozen ViT."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from otpt.errors import OtptError
from otpt.methods.batch import Batch
from otpt.methods.fpt.files import fpt_network
from otpt.methods.fpt.frozen import FrozenViT
from otpt.methods.fpt.network import FptNetwork
from otpt.methods.fpt.pixels import KeysAndValues, side_pixels, stacked
from otpt.methods.inits.trained import file_for
from otpt.methods.inits.trained_files import Trained
from otpt.methods.method import Method
from otpt.methods.output import Output
from otpt.methods.running.groups import GraphlessGroup
from otpt.methods.task import Task
from otpt.transfers import Steps


class FptGroup(GraphlessGroup):
    """Methods of FPT; see :class:`otpt.methods.running.groups.Group`."""

    prompt = "no text"

    def __init__(self, methods: tuple[Method, ...], frozen: FrozenViT, task: Task) -> None:
        self.methods = methods
        self._frozen, self._official = frozen, task.official_precision
        self._networks: list[FptNetwork] = []
        self._keys_values: dict[tuple[int, ...], KeysAndValues] = {}
        for network in fpt_networks(frozen, task, methods):
            self._networks.append(network.to(frozen.device, frozen.dtype))
            blocks = network.sizes.blocks
            self._keys_values.setdefault(blocks, KeysAndValues(frozen, blocks, task.keep))

    def steps(self, batch: Batch) -> Steps[list[list[Output]]]:
        """See :class:`Group`; nothing here is random."""
        logits = [own for image in batch.images for own in self._logits(*image.open())]
        outputs = [Output.of_clean(own, official=self._official) for own in (yield logits)]
        return [outputs[i :: len(self._networks)] for i in range(len(self._networks))]

    @torch.no_grad()
    def _logits(self, image: Image.Image, digest: str) -> list[Tensor]:
        """(1, C) of an image under each network."""
        frozen = {blocks: find(image, digest)[None] for blocks, find in self._keys_values.items()}
        return [
            network(stacked([side_pixels(image, network.sizes.size)], self._frozen), frozen[network.sizes.blocks])
            for network in self._networks
        ]


def fpt_networks(frozen: FrozenViT, task: Task, methods: Sequence[Method]) -> list[FptNetwork]:
    """The network of each method; an error if a file is missing or does not fit."""
    found = []
    for method in methods:
        file = file_for(task.trained, method.name)
        file.check(task.class_names, frozen.fingerprint)
        _check_size(file.content, frozen.preprocessing.size)
        found.append(fpt_network(file.content))
    return found


def _check_size(file: Trained, size: int) -> None:
    """Keys and values depend on the size of the images, and nothing in the network would show a mismatch."""
    trained = file.notes.get("frozen_size", size)
    if trained != size:
        raise OtptError(
            f"The file {str(file.path)!r} was trained with a frozen ViT that sees {trained} pixels, not {size}; give "
            f"--frozen-size {trained}."
        )

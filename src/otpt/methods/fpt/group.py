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
from otpt.methods.kinds import KINDS, Group, Kind, Methods
from otpt.methods.method import Method
from otpt.methods.output import Output
from otpt.settings import Settings
from otpt.transfers import to_host


class FptGroup:
    """Methods of FPT; see :class:`otpt.methods.kinds.Group`."""

    prompt = "no text"

    def __init__(self, methods: tuple[Method, ...], frozen: FrozenViT, settings: Settings) -> None:
        self.methods = methods
        self._frozen, self._official = frozen, settings.official_precision
        self._networks: list[FptNetwork] = []
        self._keys_values: dict[tuple[int, ...], KeysAndValues] = {}
        for network in fpt_networks(frozen, settings, methods):
            self._networks.append(network.to(frozen.device, frozen.dtype))
            blocks = network.sizes.blocks
            self._keys_values.setdefault(
                blocks, KeysAndValues(frozen, blocks, settings.plugins.get("fpt", {}).get("keep"))
            )

    def outputs(self, batch: Batch) -> list[list[Output]]:
        """See :class:`Group`; nothing here is random."""
        logits = [own for image in batch.images for own in self._logits(*image.open())]
        outputs = [Output.of_clean(own, official=self._official) for own in to_host(logits)]
        return [outputs[i :: len(self._networks)] for i in range(len(self._networks))]

    @torch.no_grad()
    def _logits(self, image: Image.Image, digest: str) -> list[Tensor]:
        """(1, C) of an image under each network."""
        frozen = {blocks: find(image, digest)[None] for blocks, find in self._keys_values.items()}
        return [
            network(stacked([side_pixels(image, network.sizes.size)], self._frozen), frozen[network.sizes.blocks])
            for network in self._networks
        ]


def fpt_networks(frozen: FrozenViT, settings: Settings, methods: Sequence[Method]) -> list[FptNetwork]:
    """The network of each method; an error if a file is missing or does not fit."""
    found = []
    for method in methods:
        file = file_for(settings.plugins.get("trained", ()), method.name)
        file.check(settings.classes, frozen.fingerprint)
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


def _make(frozen: FrozenViT, settings: Settings, methods: Methods, cache: object) -> list[Group]:
    return [FptGroup(methods, frozen, settings)]


def _check(frozen: FrozenViT, settings: Settings, methods: Methods) -> None:
    fpt_networks(frozen, settings, methods)


KINDS["fpt"] = Kind(
    _make,
    _check,
    needs_image=lambda method: True,
    needs_features=False,
    prompt=FptGroup.prompt,
    needs_text_tower=False,
    trained=True,
)

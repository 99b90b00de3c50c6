"""FPT in an evaluation, and its networks in files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from otpt.calibration import probabilities
from otpt.classifier import Prediction
from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.medical.files import Trained, write_trained
from otpt.medical.fpt.frozen import FrozenViT
from otpt.medical.fpt.network import FptNetwork, FptSizes
from otpt.medical.fpt.pictures import KeysAndValues, side_pixels, stacked
from otpt.medical.judges import Pictures, prediction
from otpt.medical.settings import MedicalSettings
from otpt.medical.trained import file_for
from otpt.threads import in_threads


def write_fpt(path: Path, network: FptNetwork, notes: Mapping[str, Any]) -> None:
    """A trained network with its sizes."""
    write_trained(path, network.state_dict(), {**notes, "sizes": asdict(network.sizes)})


def fpt_network(file: Trained) -> FptNetwork:
    """The network of a file of :func:`write_fpt`."""
    if "sizes" not in file.notes:
        raise OtptError(f"The file {str(file.path)!r} was not written by 'otpt train fpt'.")
    network = file.noted("sizes", _network)
    network.load_state_dict(file.need({name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}))
    return network.eval().requires_grad_(False)


def _network(blocks: Sequence[int], **sizes: Any) -> FptNetwork:
    return FptNetwork(FptSizes(blocks=tuple(blocks), **sizes))


class FptJudge:
    """A :class:`otpt.medical.judges.SystemJudge`: side networks on one frozen ViT."""

    def __init__(self, frozen: FrozenViT, dataset: Dataset, settings: MedicalSettings) -> None:
        if not isinstance(frozen, FrozenViT):
            raise OtptError("FPT runs on a frozen ViT, such as hf:google/vit-base-patch16-384.")
        self._frozen, self._names, self._settings = frozen, dataset.class_names, settings
        self._networks: dict[str, FptNetwork] = {}
        self._keys_values: dict[tuple[int, ...], KeysAndValues] = {}
        for method in settings.chosen:
            file = file_for(settings.files, method.name)
            file.check(dataset.class_names, frozen.fingerprint)
            _check_size(file.content, frozen.preprocessing.size)
            network = fpt_network(file.content).to(frozen.device, frozen.dtype)
            self._networks[method.name] = network
            blocks = network.sizes.blocks
            self._keys_values.setdefault(blocks, KeysAndValues(frozen, blocks, settings.keep))

    def __call__(self, pictures: Pictures, *, seed: int) -> list[list[Prediction]]:
        """See :class:`SystemJudge`; nothing here is random."""
        return in_threads(self._judge, pictures)

    @torch.no_grad()
    def _judge(self, opened: tuple[Image.Image, str]) -> list[Prediction]:
        picture, _ = opened
        frozen = {blocks: find(*opened)[None] for blocks, find in self._keys_values.items()}
        answers = []
        for name, network in self._networks.items():
            pixels = stacked([side_pixels(picture, network.sizes.size)], self._frozen)
            logits = network(pixels, frozen[network.sizes.blocks])
            shares = probabilities(logits, official=self._settings.official_precision)[0].double().cpu().numpy()
            answers.append(prediction(shares, self._names, name))
        return answers

    def label(self, label: int, *, seed: int) -> int:
        """See :class:`SystemJudge`."""
        return label


def _check_size(file: Trained, size: int) -> None:
    """The keys and values of another size are others, and nothing in the network would tell."""
    trained = file.notes.get("frozen_size", size)
    if trained != size:
        raise OtptError(
            f"The file {str(file.path)!r} was trained with a frozen ViT that sees {trained} pixels, not {size}; give "
            f"--frozen-size {trained}."
        )

"""FPT's networks in files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from otpt.errors import OtptError
from otpt.methods.fpt.network import FptNetwork, FptSizes
from otpt.methods.inits.trained_files import Trained, write_trained


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

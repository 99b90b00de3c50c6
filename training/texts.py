"""The text tower learns what the emoji with given directions are called."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from open_clip import CLIP
from torch import Tensor

from .captions import Captions
from .model import encode_texts
from .parallel import processes, rank, sum_in_place

SCALE = 30.0  # of the cosines
BATCH = 192  # captions a step, of all processes
WARM_UP, COOL_DOWN = 0.05, 0.4  # share of the steps


def fit_texts(model: CLIP, captions: Captions, targets: Tensor, *, steps: int, rate: float) -> float:
    """Teaches the text tower the unit-norm directions (V, D): cross-entropy of a caption over all; the last loss."""
    words = random.Random(f"texts/{rank()}")
    parts = [value for name, value in model.named_parameters() if not name.startswith(("visual", "logit"))]
    optimiser = torch.optim.AdamW(parts, lr=rate, weight_decay=0.0)
    told = torch.zeros(1)
    for step in range(steps):
        share = min(1.0, (step + 1) / (WARM_UP * steps), (steps - step) / (COOL_DOWN * steps))
        optimiser.param_groups[0]["lr"] = rate * share
        chosen = [words.randrange(len(targets)) for _ in range(BATCH // processes())]
        logits = SCALE * encode_texts(model, captions.draw(chosen, words)) @ targets.T
        loss = F.cross_entropy(logits, torch.tensor(chosen))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        gradients = [value.grad for value in parts if value.grad is not None]
        told = loss.detach().reshape(1)
        sum_in_place([*gradients, told])
        torch._foreach_div_([*gradients, told], float(processes()))
        optimiser.step()
    return float(told)

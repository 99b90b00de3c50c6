"""Learned prompts: files of CoOp, CoCoOp and MaPLe as Dassl writes them, and as it never would."""

from __future__ import annotations

import random
from pathlib import Path

from otpt.prompts.learned import read_learned
from torture.inputs.checkpoints import any_checkpoint
from torture.inputs.kinds import Input, Kind

_FAMILIES = (
    ("ctx",),
    ("prompt_learner.ctx", "token_prefix"),
    ("ctx", "meta_net.linear1.weight", "meta_net.linear1.bias", "meta_net.linear2.weight", "meta_net.linear2.bias"),
    ("prompt_learner.ctx", "prompt_learner.proj.weight", "prompt_learner.proj.bias",
     "prompt_learner.compound_prompts_text.0", "prompt_learner.compound_prompt_projections.0.weight",
     "prompt_learner.compound_prompts_text.99999999999"),
    ("ctx", "compound_prompts_text.²"),
)  # fmt: skip


def _learned(rng: random.Random, given: Path) -> Input:
    data, suffix, what = any_checkpoint(rng, rng.choice(_FAMILIES))
    path = given / f"prompt{suffix}"
    path.write_bytes(data)
    return Input(what, lambda: read_learned(path))


KINDS = [Kind("learned prompts", _learned)]

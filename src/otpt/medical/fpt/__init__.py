"""FPT: a small side network learns from the keys and values of a large ViT that stays frozen.

*Source:* Huang et al., MICCAI 2024. There are no texts in it, so the paper's "FPT + O-TPT" leaves open what is made
orthogonal; here it is the rows of the classifier by default, or the prompts of each block (see ``docs/medical.md``).
"""

from __future__ import annotations

from otpt.medical.fpt.frozen import FrozenViT, load_frozen_vit
from otpt.medical.fpt.network import VARIANTS, FptNetwork, FptSizes
from otpt.medical.fpt.training import FptRecipe, train_fpt

__all__ = ["VARIANTS", "FptNetwork", "FptRecipe", "FptSizes", "FrozenViT", "load_frozen_vit", "train_fpt"]

"""A good start: the tokens as a linear discriminant of ImageNet's features, the directions as the class means.

From a random start the first points of accuracy take longest. So the image tower's tokens start as Fisher's
discriminant of the emoji (within-class covariance whitened, the directions that part the classes kept), which gives
each emoji a mean direction. The transformer blocks start by adding nothing.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from open_clip.timm_model import TimmModel
from torch import Tensor

SHRINK = 0.1  # of the within-class covariance towards a multiple of the identity


def discriminant(features: Tensor, labels: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """(N, F) features and (N,) labels → weight (dim, F) and bias (dim,) of the discriminant."""
    features = features.double()
    classes, index, count = labels.unique(return_inverse=True, return_counts=True)
    means = torch.zeros(len(classes), features.shape[1], dtype=torch.float64).index_add_(0, index, features)
    means /= count[:, None]
    within = torch.cov((features - means[index]).T)
    within += SHRINK * within.diagonal().mean() * torch.eye(len(within), dtype=torch.float64)
    values, vectors = torch.linalg.eigh(within)
    whiten = vectors @ torch.diag(values.rsqrt()) @ vectors.T
    centre = means.mean(0)
    _, directions = torch.linalg.eigh(torch.cov(((means - centre) @ whiten).T))
    weight = (whiten @ directions[:, -dim:]).T  # (dim, F)
    return weight.float(), (-weight @ centre).float()


@torch.no_grad()
def start_from_discriminant(visual: TimmModel, pooled: Tensor, labels: Tensor) -> None:
    """Tokens from the discriminant of the pooled maps (N, 320); blocks and a head that change nothing."""
    trunk, head = visual.trunk, visual.head.proj
    weight, bias = discriminant(pooled, labels, trunk.patch_embed.proj.out_features)
    trunk.patch_embed.proj.weight.copy_(weight)
    trunk.patch_embed.proj.bias.copy_(bias)
    trunk.pos_embed.zero_()
    for block in trunk.blocks:
        for last in (block.attn.proj, block.mlp.fc2):
            last.weight.zero_()
            last.bias.zero_()
    head.weight.copy_(torch.eye(len(head.weight)))
    head.bias.zero_()


def head_of(visual: TimmModel, pooled: Tensor) -> Tensor:
    """The features (N, D) of pooled maps (N, 320) as long as the blocks add nothing."""
    features: Tensor = visual.head(visual.trunk.fc_norm(visual.trunk.patch_embed.proj(pooled)))
    return features


def class_directions(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Unit-norm mean of each class's unit-norm features (V, D); a class without images gets a random one."""
    rng = torch.Generator().manual_seed(0)
    sums = 1e-3 * torch.randn(classes, features.shape[1], generator=rng)
    return F.normalize(sums.index_add(0, labels, F.normalize(features, dim=-1)), dim=-1)

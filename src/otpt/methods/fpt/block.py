"""A block of a vision transformer: what the frozen ViT and the side network are both made of."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """x + Attention(norm1(x)), then x + MLP(norm2(x)) with exact GELU; tokens (B, N, W)."""

    def __init__(self, width: int, heads: int, hidden: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.num_heads = heads
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        q, k, v = self.heads(x)
        return self.finish(x, F.scaled_dot_product_attention(q, k, v))

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (B, H, N, W/H)."""
        normed = self.norm1(x)
        return (
            split_heads(self.query(normed), self.num_heads),
            split_heads(self.key(normed), self.num_heads),
            split_heads(self.value(normed), self.num_heads),
        )

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """The output, from the block's input (B, N, W) and what its heads attended to (B, H, N, W/H)."""
        x = x + self.out(join_heads(attended))
        output: Tensor = x + self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return output


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(…, N, W) → (…, H, N, W/H)."""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def join_heads(x: Tensor) -> Tensor:
    """(…, H, N, W/H) → (…, N, W)."""
    return x.transpose(-3, -2).flatten(-2)

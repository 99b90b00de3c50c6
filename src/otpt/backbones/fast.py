"""Faster image towers by exact rewrites of their modules.

- batch-norms are folded into the preceding convolutions, in float64 and rounded once:
  w′ = w · γ/√(σ² + ε), b′ = (b − μ) · γ/√(σ² + ε) + β;
- activations are fused into the preceding convolutions; convolutions run in channels_last format;
- attention is one fused call on one stacked q, k, v product; the last block and the attention pooling compute only the
  output token;
- QuickGELU(x) = x·σ(1.702x) = SiLU(1.702x)/1.702: both factors are folded into the adjacent weights, and SiLU runs in
  place;
- on the CPU in float32, weights are packed once for the kernels of MKL and oneDNN (``pack``).

The order of layers is observed in a forward pass, not inferred from names. :func:`tune` compares the result with the
original tower, and returns the original if they differ or PyTorch lacks a kernel.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from otpt.backbones.modules import AttentionPool, Block, ClipVision

_Module = TypeVar("_Module", bound=nn.Module)

_TOLERANCE = 1e-3
"""Maximum relative difference between tuned and original features: rounding gives 1e-6, a wrong rewrite about 1."""


def tune(visual: nn.Module, image_size: int, chunk: int, *, pack: bool) -> nn.Module:
    """Return a faster tower for chunks of ``chunk`` views, or ``visual`` itself if it cannot be rewritten."""
    parameter = next(visual.parameters())
    pixels = check_pixels(image_size, parameter.device, parameter.dtype)
    with torch.no_grad():
        try:
            if is_open_clip_vit(visual):
                tuned = tune_vit(visual, chunk, pack=pack)
            elif any(isinstance(module, nn.BatchNorm2d) for module in visual.modules()):
                tuned = tune_convolutions(visual, pixels, chunk, pack=pack)
            else:
                return visual
            whole = pixels.expand(chunk, -1, -1, -1).contiguous()
            features = torch.cat([pooled(tuned(whole)), pooled(tuned(pixels))])
        except (RuntimeError, AttributeError, TypeError):
            return visual  # another kind of tower, or a PyTorch version with other private kernels
        expected = pooled(visual(pixels))
    agrees = bool((features - expected).abs().max() <= _TOLERANCE * expected.abs().max())
    return tuned if agrees else visual


def check_pixels(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return random pixels (1, 3, S, S) for comparing towers."""
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0)).to(device, dtype)


def pooled(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    """Return the pooled feature of a tower's output, which may also contain tokens (CoCa)."""
    return output[0] if isinstance(output, tuple) else output


def is_convolutional(visual: nn.Module) -> bool:
    """Return whether a tower has more convolutions than a patch embedding."""
    return sum(isinstance(module, nn.Conv2d) for module in visual.modules()) > 4


def is_open_clip_vit(visual: nn.Module) -> bool:
    """Return whether a tower has the interface of open_clip's ``VisionTransformer``."""
    return hasattr(visual, "_embeds") and hasattr(getattr(visual, "transformer", None), "resblocks")


# ---- kernels


def can_pack(weight: Tensor) -> bool:
    """Return whether MKL and oneDNN can pack this weight."""
    plain = weight.device.type == "cpu" and weight.dtype == torch.float32
    libraries = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    kernels = hasattr(torch.ops.mkl, "_mkl_linear") and hasattr(torch.ops.mkldnn, "_convolution_pointwise")
    return plain and libraries and kernels


class Linear(nn.Module):
    """x Wᵀ + b, packed for inputs with ``rows`` rows in total; other inputs use ``F.linear``."""

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: int, *, pack: bool) -> None:
        super().__init__()
        self.weight, self.bias, self.rows = weight.detach(), None if bias is None else bias.detach(), rows
        self._packed: Tensor | None = None
        if pack and can_pack(weight):
            self._packed = torch.ops.mkl._mkl_reorder_linear_weight(self.weight.contiguous(), rows)

    def forward(self, x: Tensor) -> Tensor:
        if self._packed is None or x.numel() != self.rows * x.shape[-1]:
            return F.linear(x, self.weight, self.bias)
        result: Tensor = torch.ops.mkl._mkl_linear(x, self._packed, self.weight, self.bias, self.rows)
        return result


class Convolution(nn.Module):
    """Packed convolution with a fused activation.

    Args:
        convolution: original module.
        input_shape: (B, C, H, W).
        activation: oneDNN's name of the activation, and its parameters.
    """

    def __init__(
        self, convolution: nn.Conv2d, input_shape: tuple[int, ...], activation: tuple[str, tuple[float, ...]]
    ) -> None:
        super().__init__()
        weight, padding = convolution.weight.detach(), tuple(map(int, convolution.padding))
        if _pads_like_tensorflow(convolution):
            # pad for an output of ⌈side / stride⌉; zeros in front of the kernel make the padding symmetric
            geometry = zip(input_shape[2:], convolution.stride, convolution.kernel_size, strict=True)
            down, across = (max((-(-side // step) - 1) * step + reach - side, 0) for side, step, reach in geometry)
            weight, padding = F.pad(weight, (across % 2, 0, down % 2, 0)), (-(-down // 2), -(-across // 2))
        geometry_arguments = [list(padding), list(convolution.stride), list(convolution.dilation)]
        self._geometry: list[list[int] | int] = [*geometry_arguments, convolution.groups]
        self._activation, self._numbers = activation[0], list(activation[1])
        self.bias = None if convolution.bias is None else convolution.bias.detach()
        reorder: Callable[..., Tensor] = torch._C._nn.mkldnn_reorder_conv2d_weight
        self._packed = reorder(weight.to_mkldnn(), *self._geometry, list(input_shape))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = torch.ops.mkldnn._convolution_pointwise(
            x, self._packed, self.bias, *self._geometry, self._activation, self._numbers, ""
        )
        return result


def _pads_like_tensorflow(module: nn.Conv2d) -> bool:
    return type(module).__name__ == "Conv2dSame" and module.dilation == (1, 1)  # by name, to avoid importing timm


# ---- convolutional towers

_ACTIVATIONS: dict[type[nn.Module], tuple[str, tuple[float, ...]]] = {
    nn.ReLU: ("relu", ()),
    nn.ReLU6: ("hardtanh", (0.0, 6.0)),
    nn.Identity: ("none", ()),
}


def tune_convolutions(visual: nn.Module, pixels: Tensor, chunk: int, *, pack: bool) -> nn.Module:
    """Return a copy with folded batch-norms, fused activations (if ``pack``) and one-token attention pooling."""
    tuned = copy.deepcopy(visual)
    names = {module: name for name, module in tuned.named_modules()}
    for convolution, norm in _observe(tuned, pixels, (nn.BatchNorm2d,)).pairs:
        dtype = convolution.weight.dtype
        folded = fuse_conv_bn_eval(convolution.double(), cast(nn.BatchNorm2d, norm).double())
        tuned.set_submodule(names[convolution], folded.to(dtype))
        # batch-norms of timm contain the following activation
        tuned.set_submodule(names[norm], getattr(norm, "act", None) or nn.Identity())
    tuned = tuned.to(memory_format=torch.channels_last)
    if hasattr(tuned, "attnpool") and hasattr(tuned, "layer4"):
        tuned.attnpool = _AttentionPool(cast(AttentionPool, tuned.attnpool), chunk, pack=pack)
    convolutions = [module for module in tuned.modules() if isinstance(module, nn.Conv2d)]
    if pack and all(can_pack(module.weight) for module in convolutions):
        names = {module: name for name, module in tuned.named_modules()}
        pairs, shapes = _observe(tuned, pixels, (nn.ReLU, nn.ReLU6), chunk)
        following = dict[nn.Module, nn.Module](pairs)
        for module in shapes:
            plain = type(module) is nn.Conv2d and module.padding_mode == "zeros" and not isinstance(module.padding, str)
            if not plain and not _pads_like_tensorflow(module):
                continue  # not supported by oneDNN
            activation = following.get(module, nn.Identity())
            tuned.set_submodule(names[module], Convolution(module, shapes[module], _ACTIVATIONS[type(activation)]))
            if activation in names:
                tuned.set_submodule(names[activation], nn.Identity())
    return tuned


class _Observed(NamedTuple):
    """Data flow observed in a forward pass."""

    pairs: list[tuple[nn.Conv2d, nn.Module]]
    """(convolution, following module) pairs of modules that are called exactly once."""
    shapes: dict[nn.Conv2d, tuple[int, ...]]
    """Input shape of each convolution for a chunk."""


def _observe(visual: nn.Module, pixels: Tensor, kinds: tuple[type[nn.Module], ...], chunk: int = 1) -> _Observed:
    outputs: list[tuple[nn.Conv2d, Tensor, int]] = []  # (convolution, output, version of the output)
    calls: Counter[nn.Module] = Counter()
    shapes: dict[nn.Conv2d, tuple[int, ...]] = {}
    pairs: list[tuple[nn.Conv2d, nn.Module]] = []

    def note_output(module: nn.Conv2d, args: tuple[Tensor, ...], output: Tensor) -> None:
        calls[module] += 1
        shapes[module] = (chunk, *args[0].shape[1:])
        outputs.append((module, output, output._version))

    def note_input(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        calls[module] += 1
        for convolution, tensor, version in outputs:
            # the same tensor, not modified in place since (for example by adding a residual)
            if tensor is args[0] and tensor._version == version:
                pairs.append((convolution, module))

    handles = []
    for module in visual.modules():
        if isinstance(module, nn.Conv2d):
            handles.append(module.register_forward_hook(note_output))
        if isinstance(module, kinds):
            handles.append(module.register_forward_pre_hook(note_input))
    visual(pixels)
    for handle in handles:
        handle.remove()
    once = [(convolution, after) for convolution, after in pairs if calls[convolution] == calls[after] == 1]
    return _Observed(once, shapes)


class _AttentionPool(nn.Module):
    """Attention pooling softmax(q₀Kᵀ/√d) V with the query q₀ of the mean token: (n, C, h, w) → (n, D)."""

    def __init__(self, pool: AttentionPool, chunk: int, *, pack: bool) -> None:
        super().__init__()
        self.heads = pool.num_heads
        self.positions = pool.positional_embedding.detach()
        rows = chunk * self.positions.shape[0]
        weight = torch.cat([pool.k_proj.weight, pool.v_proj.weight])
        bias = torch.cat([pool.k_proj.bias, pool.v_proj.bias])
        self.key_value = Linear(weight, bias, rows, pack=pack)
        self.query = Linear(pool.q_proj.weight, pool.q_proj.bias, chunk, pack=pack)
        self.out = Linear(pool.c_proj.weight, pool.c_proj.bias, chunk, pack=pack)

    def forward(self, x: Tensor) -> Tensor:
        count = x.shape[0]
        cells = x.flatten(2).transpose(1, 2)  # (n, h·w, C)
        tokens = torch.cat([cells.mean(dim=1, keepdim=True), cells], dim=1) + self.positions.to(x.dtype)
        q = self.query(tokens[:, 0].contiguous()).view(count, 1, self.heads, -1).transpose(1, 2)
        k, v = self.key_value(tokens).view(count, tokens.shape[1], 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)  # (n, heads, 1, C/heads)
        return self.out(mixed.reshape(count, -1))


# ---- open_clip's vision transformer


class _PlainBlock(Block, Protocol):
    """``ResidualAttentionBlock`` of open_clip."""

    ls_1: nn.Module
    ls_2: nn.Module


def tune_vit(visual: nn.Module, chunk: int, *, pack: bool) -> nn.Module:
    """Return a faster vision transformer, which shares weights with ``visual`` where possible."""
    vision = cast(ClipVision, visual)
    blocks = [cast(_PlainBlock, block) for block in vision.transformer.resblocks]
    if not getattr(vision.transformer, "batch_first", True) or not all(_is_plain_block(block) for block in blocks):
        return visual
    tokens = vision.positional_embedding.shape[0]
    reads_class_token = vision.attn_pool is None and vision.pool_type == "tok" and not vision.output_tokens
    transformer = _shallow(visual.get_submodule("transformer"))
    transformer.resblocks = nn.ModuleList(
        _Block(block, chunk, tokens, only_first=reads_class_token and block is blocks[-1], pack=pack)
        for block in blocks
    )
    tower = _shallow(visual)
    tower.transformer = transformer
    return tower


def _is_plain_block(block: _PlainBlock) -> bool:
    """Return whether a block is a ``ResidualAttentionBlock`` without LayerScale or cross-attention."""
    attention: object = block.attn  # of torch in version 3 of open_clip, in version 4 its own with the same weights
    stacked = isinstance(attention, nn.MultiheadAttention) or type(block).__name__ == "ResidualAttentionBlock"
    return bool(
        stacked
        and isinstance(block.ls_1, nn.Identity)
        and isinstance(block.ls_2, nn.Identity)
        and not hasattr(block, "ln_1_kv")
        and block.attn.in_proj_weight is not None
        and block.attn.in_proj_bias is not None
        and getattr(attention, "batch_first", True)
    )


def _shallow(module: _Module) -> _Module:
    """Return a copy with a separate dictionary of sub-modules and shared weights."""
    copied = copy.copy(module)
    copied._modules = dict(module._modules)
    return copied


class _Block(nn.Module):
    """Transformer block: (n, tokens, W) → (n, tokens, W), or (n, 1, W) with ``only_first``."""

    def __init__(self, block: Block, chunk: int, tokens: int, *, only_first: bool, pack: bool) -> None:
        super().__init__()
        attention, mlp = block.attn, block.mlp
        width, all_rows, rows = attention.out_proj.in_features, chunk * tokens, chunk if only_first else chunk * tokens
        self.heads, self.only_first = attention.num_heads, only_first
        self.norm1, self.norm2 = block.ln_1, block.ln_2
        weight, bias = attention.in_proj_weight.detach(), attention.in_proj_bias.detach()
        if only_first:
            self.query = Linear(weight[:width], bias[:width], rows, pack=pack)
            self.key_value = Linear(weight[width:], bias[width:], all_rows, pack=pack)
        else:
            self.qkv = Linear(weight, bias, rows, pack=pack)
        self.out = Linear(attention.out_proj.weight, attention.out_proj.bias, rows, pack=pack)
        self.activation, scale = mlp.gelu, 1.0
        if type(mlp.gelu).__name__ == "QuickGELU":
            self.activation, scale = nn.SiLU(inplace=True), 1.702
        self.up = Linear(mlp.c_fc.weight * scale, mlp.c_fc.bias * scale, rows, pack=pack)
        self.down = Linear(mlp.c_proj.weight / scale, mlp.c_proj.bias, rows, pack=pack)

    def forward(self, x: Tensor, attn_mask: None = None) -> Tensor:
        count, tokens, width = x.shape
        normed = self.norm1(x)
        if self.only_first:
            x, wanted = x[:, :1], 1
            q = self.query(normed[:, :1].contiguous()).view(count, 1, self.heads, -1).transpose(1, 2)
            k, v = self.key_value(normed).view(count, tokens, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        else:
            wanted = tokens
            q, k, v = self.qkv(normed).view(count, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)  # (n, heads, wanted, W/heads)
        x = x + self.out(mixed.transpose(1, 2).reshape(count, wanted, width))
        return x + self.down(self.activation(self.up(self.norm2(x))))

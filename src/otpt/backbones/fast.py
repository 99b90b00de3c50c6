"""Image towers with less work for the same features, on exact rewrites only.

- batch-norms are folded into the convolutions before them, in float64 and rounded once:
  w′ = w · γ/√(σ² + ε), b′ = (b − μ) · γ/√(σ² + ε) + β;
- activations join the convolutions before them; convolutions run in channels_last order;
- attention is one fused call on one stacked q, k, v product; the last block and the attention pooling compute only the
  token that is read;
- QuickGELU(x) = x·σ(1.702x) = SiLU(1.702x)/1.702: both factors go into the weights around it, and SiLU runs in place;
- on the CPU in float32, weights are laid out once for MKL's and oneDNN's kernels (``pack``).

Which layer follows which is not read from names but observed in one forward pass. :func:`tune` compares the result with
the original tower and returns the original where they differ or a kernel is missing in this PyTorch.
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_TOLERANCE = 1e-3
"""Relative difference allowed between tuned and original features: rounding gives 1e-6, a mistake about 1."""


def tune(visual: nn.Module, image_size: int, chunk: int, *, pack: bool) -> nn.Module:
    """A faster tower for chunks of ``chunk`` views; ``visual`` itself if nothing can be gained or results differ."""
    parameter = next(visual.parameters())
    pixels = check_pixels(image_size, parameter.device, parameter.dtype)
    with torch.no_grad():
        try:
            tuned = _tuned(visual, pixels, chunk, pack=pack)
            if tuned is visual:
                return visual
            whole = pixels.expand(chunk, -1, -1, -1).contiguous()
            found = torch.cat([pooled(tuned(whole)), pooled(tuned(pixels))])
        except (RuntimeError, AttributeError, TypeError):
            return visual  # another kind of tower, or the private kernels of another PyTorch
        expected = pooled(visual(pixels))
    agrees = bool((found - expected).abs().max() <= _TOLERANCE * expected.abs().max())
    return tuned if agrees else visual


def _tuned(visual: nn.Module, pixels: Tensor, chunk: int, *, pack: bool) -> nn.Module:
    if is_open_clip_vit(visual):
        return tune_vit(visual, chunk, pack=pack)
    tuned = fold_batch_norms(visual, pixels)
    if is_convolutional(visual):
        tuned = tuned.to(memory_format=torch.channels_last)
    if tuned is visual:
        return visual
    if all(hasattr(visual, name) for name in ("attnpool", "conv3", "layer4")):  # open_clip's ModifiedResNet
        return _tune_resnet(tuned, pixels, chunk, pack=pack)
    return fuse_activations(tuned, pixels, chunk) if pack and is_convolutional(visual) else tuned


def check_pixels(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(1, 3, S, S), on which towers are compared."""
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0)).to(device, dtype)


def pooled(output: Any) -> Tensor:
    """The pooled feature, of towers that also return tokens (CoCa)."""
    feature: Tensor = output[0] if isinstance(output, tuple) else output
    return feature


def is_convolutional(visual: nn.Module) -> bool:
    """Whether there are more convolutions than those that cut an image into patches."""
    return sum(isinstance(module, nn.Conv2d) for module in visual.modules()) > 4


def is_open_clip_vit(visual: Any) -> bool:
    """Whether the tower has the parts of open_clip's ``VisionTransformer``."""
    return hasattr(visual, "_embeds") and hasattr(getattr(visual, "transformer", None), "resblocks")


# ---- kernels


def can_pack(weight: Tensor) -> bool:
    """Whether MKL and oneDNN can store this weight in their own order."""
    plain = weight.device.type == "cpu" and weight.dtype == torch.float32
    libraries = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    kernels = hasattr(torch.ops.mkl, "_mkl_linear") and hasattr(torch.ops.mkldnn, "_convolution_pointwise")
    return plain and libraries and kernels


class Linear(nn.Module):
    """x Wᵀ + b, packed for inputs of ``rows`` rows in total; other inputs use the ordinary operator."""

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
    """A packed convolution with its activation; with ``residual``, ReLU(conv(x) + residual) written over ``residual``.

    Args:
        input_shape: (B, C, H, W) that it will receive.
        activation: oneDNN's name of an operator, and its numbers.
    """

    def __init__(
        self,
        convolution: nn.Conv2d,
        input_shape: tuple[int, ...],
        activation: tuple[str, tuple[float, ...]] = ("none", ()),
    ) -> None:
        super().__init__()
        weight, padding = convolution.weight.detach(), tuple(map(int, convolution.padding))
        if _pads_like_tensorflow(convolution):  # a row and a column of zeros before the kernel: padding becomes equal
            needed = [same_padding(convolution, side, axis) for axis, side in enumerate(input_shape[2:])]
            (top, bottom), (left, right) = needed
            weight, padding = F.pad(weight, (right - left, 0, bottom - top, 0)), (bottom, right)
        how = (padding, convolution.stride, convolution.dilation)
        self._how: list[Any] = [*(list(part) for part in how), convolution.groups]
        self._activation, self._numbers = activation[0], list(activation[1])
        self.bias = None if convolution.bias is None else convolution.bias.detach()
        reorder: Any = torch._C._nn.mkldnn_reorder_conv2d_weight
        self._packed: Tensor = reorder(weight.to_mkldnn(), *self._how, list(input_shape))

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        result: Tensor
        if residual is None:
            result = torch.ops.mkldnn._convolution_pointwise(
                x, self._packed, self.bias, *self._how, self._activation, self._numbers, ""
            )
        else:
            result = torch.ops.mkldnn._convolution_pointwise_.binary(
                residual, x, self._packed, self.bias, *self._how, "add", 1.0, "relu", [], ""
            )
        return result


class Conv2dSame(nn.Conv2d):
    """timm's class of that name, without dilation: pads like TensorFlow, one more on the right and at the bottom."""

    def forward(self, x: Tensor) -> Tensor:
        (top, bottom), (left, right) = (same_padding(self, side, axis) for axis, side in enumerate(x.shape[2:]))
        padded = F.pad(x, (left, right, top, bottom))
        return F.conv2d(padded, self.weight, self.bias, self.stride, (0, 0), self.dilation, self.groups)


def same_padding(convolution: nn.Conv2d, side: int, axis: int) -> tuple[int, int]:
    """Padding before and after for an output of ⌈side / stride⌉."""
    stride, reach = convolution.stride[axis], convolution.kernel_size[axis]
    whole = max((-(-side // stride) - 1) * stride + reach - side, 0)
    return whole // 2, whole - whole // 2


def _pads_like_tensorflow(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv2dSame"  # ours or timm's, which need not be imported


# ---- convolutional towers

_RELU: tuple[str, tuple[float, ...]] = ("relu", ())
_ACTIVATIONS: dict[type[nn.Module], tuple[str, tuple[float, ...]]] = {
    nn.ReLU: _RELU,
    nn.ReLU6: ("hardtanh", (0.0, 6.0)),
}


def fold_batch_norms(visual: nn.Module, pixels: Tensor) -> nn.Module:
    """A copy of the tower with its batch-norms folded; ``visual`` itself if it has none. ``pixels``: any input."""
    if not any(isinstance(module, nn.BatchNorm2d) for module in visual.modules()):
        return visual
    folded = copy.deepcopy(visual)
    with torch.no_grad():
        names = {module: name for name, module in folded.named_modules()}
        for convolution, norm in _observe(folded, pixels, (nn.BatchNorm2d,)).pairs:
            _fold(convolution, norm)
            # timm's batch-norms carry the activation that follows them
            folded.set_submodule(names[norm], getattr(norm, "act", None) or nn.Identity())
    return folded


def fuse_activations(folded: nn.Module, pixels: Tensor, chunk: int) -> nn.Module:
    """Replace, in place, the convolutions of a folded tower by packed ones with their activations."""
    names = {module: name for name, module in folded.named_modules()}
    convolutions = [module for module in names if isinstance(module, nn.Conv2d)]
    if not all(can_pack(module.weight) for module in convolutions):
        return folded
    pairs, shapes = _observe(folded, pixels, tuple(_ACTIVATIONS), chunk)
    following = dict(pairs)
    for module in convolutions:
        if module not in shapes or not _is_plain(module):
            continue
        activation = following.get(module)
        fused = ("none", ()) if activation is None else _ACTIVATIONS[type(activation)]
        folded.set_submodule(names[module], Convolution(module, shapes[module], fused))
        if activation is not None:
            folded.set_submodule(names[activation], nn.Identity())
    return folded


class _Observed(NamedTuple):
    """What one forward pass shows of a tower."""

    pairs: list[tuple[Any, Any]]
    """(convolution, module of the wanted kinds) where one's output is the other's input, each used once."""
    shapes: dict[nn.Module, tuple[int, ...]]
    """Input shape of each convolution for a chunk."""


def _observe(visual: nn.Module, pixels: Tensor, kinds: tuple[type[nn.Module], ...], chunk: int = 1) -> _Observed:
    made_by: dict[int, nn.Module] = {}
    alive: list[Tensor] = []  # keeps the outputs, so that no address is used twice
    calls: Counter[nn.Module] = Counter()
    shapes: dict[nn.Module, tuple[int, ...]] = {}
    pairs: list[tuple[nn.Module, nn.Module]] = []

    def note(module: nn.Module, args: Any, output: Tensor) -> None:
        calls[module] += 1
        if isinstance(module, nn.Conv2d):
            shapes[module] = (chunk, *args[0].shape[1:])
            made_by[id(output)] = module
            alive.append(output)

    def before(module: nn.Module, args: Any) -> None:
        if id(args[0]) in made_by:  # an activation in place returns what it was given
            pairs.append((made_by[id(args[0])], module))

    followers = [module for module in visual.modules() if isinstance(module, kinds)]
    seen = [*followers, *(module for module in visual.modules() if isinstance(module, nn.Conv2d))]
    handles = [module.register_forward_hook(note) for module in seen]
    handles += [module.register_forward_pre_hook(before) for module in followers]
    visual(pixels)
    for handle in handles:
        handle.remove()
    return _Observed([(conv, after) for conv, after in pairs if calls[conv] == calls[after] == 1], shapes)


def _fold(convolution: Any, norm: Any) -> None:
    weight, variance = convolution.weight, norm.running_var.double()
    gamma = torch.ones_like(variance) if norm.weight is None else norm.weight.double()
    beta = torch.zeros_like(variance) if norm.bias is None else norm.bias.double()
    scale = gamma / torch.sqrt(variance + norm.eps)  # (channels,)
    bias = torch.zeros_like(variance) if convolution.bias is None else convolution.bias.double()
    folded_weight = weight.double() * scale[:, None, None, None]
    folded_bias = (bias - norm.running_mean.double()) * scale + beta
    convolution.weight = nn.Parameter(folded_weight.to(weight.dtype), requires_grad=False)
    convolution.bias = nn.Parameter(folded_bias.to(weight.dtype), requires_grad=False)


def _is_plain(module: nn.Conv2d) -> bool:
    """Whether oneDNN computes this convolution: no other subclass, no other padding."""
    if _pads_like_tensorflow(module):
        return module.dilation == (1, 1)
    return type(module) is nn.Conv2d and module.padding_mode == "zeros" and not isinstance(module.padding, str)


# ---- CLIP's modified ResNet


def _tune_resnet(folded: Any, pixels: Tensor, chunk: int, *, pack: bool) -> nn.Module:
    """Tune ``folded`` in place (batch-norms folded, channels_last)."""
    if pack and can_pack(folded.conv1.weight):
        shapes = _observe(folded, pixels, (), chunk).shapes
        for index in (1, 2, 3):
            stem = getattr(folded, f"conv{index}")
            setattr(folded, f"conv{index}", Convolution(stem, shapes[stem], _RELU))
            setattr(folded, f"act{index}", nn.Identity())
        for stage in (folded.layer1, folded.layer2, folded.layer3, folded.layer4):
            for index, block in enumerate(stage):
                stage[index] = _Bottleneck(block, shapes)
    folded.attnpool = _AttentionPool(folded.attnpool, chunk, pack=pack)
    result: nn.Module = folded
    return result


class _Bottleneck(nn.Module):
    def __init__(self, block: Any, shapes: dict[nn.Module, tuple[int, ...]]) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = (
            Convolution(each, shapes[each], _RELU) for each in (block.conv1, block.conv2, block.conv3)
        )
        self.avgpool = block.avgpool
        self.shortcut: nn.Module = nn.Identity()
        if block.downsample is not None:
            pool, convolution = block.downsample[0], block.downsample[1]
            self.shortcut = nn.Sequential(pool, Convolution(convolution, shapes[convolution]))

    def forward(self, x: Tensor) -> Tensor:
        out = self.avgpool(self.conv2(self.conv1(x)))
        # the residual is overwritten: it is the previous block's output, read by nothing else, or the shortcut's
        result: Tensor = self.conv3(out, self.shortcut(x))
        return result


class _AttentionPool(nn.Module):
    """softmax(q₀Kᵀ/√d) V for the mean token's query q₀: (n, C, h, w) → (n, D)."""

    def __init__(self, pool: Any, chunk: int, *, pack: bool) -> None:
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


def tune_vit(visual: Any, chunk: int, *, pack: bool) -> nn.Module:
    """A tower that shares its weights with ``visual`` where possible."""
    blocks = list(visual.transformer.resblocks)
    if not visual.transformer.batch_first or not all(_is_plain_block(block) for block in blocks):
        original: nn.Module = visual
        return original
    tokens = visual.positional_embedding.shape[0]
    reads_class_token = visual.attn_pool is None and visual.pool_type == "tok" and not visual.output_tokens
    tower, transformer = _shallow(visual), _shallow(visual.transformer)
    transformer.resblocks = nn.ModuleList(
        _Block(block, chunk, tokens, only_first=reads_class_token and block is blocks[-1], pack=pack)
        for block in blocks
    )
    tower.transformer = transformer
    result: nn.Module = tower
    return result


def _is_plain_block(block: Any) -> bool:
    """open_clip's ``ResidualAttentionBlock`` without LayerScale or cross-attention."""
    return bool(
        isinstance(block.attn, nn.MultiheadAttention)
        and isinstance(block.ls_1, nn.Identity)
        and isinstance(block.ls_2, nn.Identity)
        and not hasattr(block, "ln_1_kv")
        and block.attn.in_proj_weight is not None
        and block.attn.batch_first
    )


def _shallow(module: Any) -> Any:
    """A copy with its own dictionary of sub-modules; weights are shared."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin


class _Block(nn.Module):
    """x (n, tokens, W) → (n, tokens, W), or (n, 1, W) if only the first token is read."""

    def __init__(self, block: Any, chunk: int, tokens: int, *, only_first: bool, pack: bool) -> None:
        super().__init__()
        attention, mlp = block.attn, block.mlp
        width, all_rows, rows = attention.embed_dim, chunk * tokens, chunk if only_first else chunk * tokens
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

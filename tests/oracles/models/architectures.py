"""Architectures of published checkpoints with random weights: real configurations, two layers per tower, vocabularies
of a thousand tokens, each with the logits of the original library."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import open_clip
import timm
import torch
import transformers
from open_clip.hf_model import HFTextEncoder
from open_clip.transform import PreprocessCfg, image_transform_v2
from oracles.models import tokenizers_of
from oracles.models.tiny import randomise
from PIL import Image
from torch import Tensor, nn

import otpt
from otpt.backbones import text_encoder
from otpt.backbones.hf_tokenizers import canonicalize
from otpt.errors import OtptError
from otpt.export import export_onnx
from otpt.views import make_views

VOCABULARY = 1000


@dataclass(frozen=True)
class Original:
    """A model as a user has it.

    Attributes:
        model: the module.
        tokenizer, preprocess: arguments of ``otpt.load``.
        logits: pixels (1, 3, S, S) and texts → logits (1, C) of the original library.
    """

    model: nn.Module
    tokenizer: Any
    preprocess: Any
    logits: Callable[[Tensor, list[str]], Tensor]


@dataclass(frozen=True)
class Architecture:
    """An architecture of the table.

    Attributes:
        name: name in its library.
        library: "open_clip", "transformers" or "own".
        stands_for: checkpoints with this architecture.
        build: makes the original.
    """

    name: str
    library: str
    stands_for: str
    build: Callable[[], Original]


@contextmanager
def shallow_timm() -> Iterator[None]:
    """Create models of timm with two blocks, or with one per stage."""
    create = timm.create_model

    def shallow(name: str, **options: Any) -> nn.Module:
        for depth in (
            {"depth": 2},
            {"depths": (1, 1, 1, 1)},
            {"layers": (1, 1, 1, 1, 1)},
            {"layers": (1, 1, 1, 1)},
            {},
        ):
            try:
                return create(name, **options, **depth)
            except (TypeError, ValueError, AssertionError, IndexError, KeyError):
                continue
        raise AssertionError(name)

    with mock.patch.object(timm, "create_model", shallow):
        yield


def from_open_clip(name: str, tokenizer: Callable[[], Any] | None = None, text: Any = None) -> Original:
    """A model of open_clip; ``text`` is the configuration of a text tower of transformers."""
    config = deepcopy(open_clip.get_model_config(name))
    vision, words = config["vision_cfg"], config["text_cfg"]
    vision.update(timm_model_pretrained=False) if "timm_model_name" in vision else None
    if isinstance(vision.get("layers"), list):
        vision["layers"] = [1, 1, 1, 1]
    elif "timm_model_name" not in vision:
        vision["layers"] = 2
    words["layers"] = 2
    kwargs = words.get("tokenizer_kwargs") or {}
    length = words.get("context_length", 77)
    tokens: Any = open_clip.SimpleTokenizer(context_length=length, **({} if tokenizer else kwargs))
    if tokenizer is not None:
        words["vocab_size"] = VOCABULARY
        tokens = wrapped(tokenizer(), length, kwargs)
    custom = config.pop("custom_text", False) or text is not None
    kind: Any = open_clip.CLIP
    if custom:
        kind = open_clip.CoCa if "multimodal_cfg" in config else open_clip.CustomTextCLIP
    if "multimodal_cfg" in config:
        config["multimodal_cfg"]["layers"] = 1
    with shallow_timm():
        if text is None:
            model = kind(**config)
        else:
            pooler = words["hf_pooler_type"]
            config["text_cfg"] = {"context_length": 8, "vocab_size": 8, "width": 64, "heads": 1, "layers": 1}
            model = kind(**config)
            model.text = HFTextEncoder(
                "", output_dim=config["embed_dim"], config=text, pooler_type=pooler, proj_type="mlp"
            )
            if text.is_encoder_decoder:
                model.text.transformer = model.text.transformer.encoder
    randomise(model)
    if "init_logit_bias" in config:
        with torch.no_grad():
            model.logit_bias.fill_(config["init_logit_bias"])
    size = model.visual.image_size
    transform = image_transform_v2(PreprocessCfg(size=size), is_train=False)

    def logits(pixels: Tensor, texts: list[str]) -> Tensor:
        images = model.encode_image(pixels, normalize=True)
        features = model.encode_text(tokens(texts), normalize=True)
        bias = getattr(model, "logit_bias", None)
        product: Tensor = model.logit_scale.exp() * images @ features.T
        return product if bias is None else product + bias

    return Original(model, tokens, transform, logits)


def wrapped(tokenizer: Any, length: int, kwargs: dict[str, Any]) -> Any:
    """open_clip's tokenizer around one of transformers."""
    with mock.patch.object(transformers.AutoTokenizer, "from_pretrained", return_value=tokenizer):
        tokens = open_clip.tokenizer.HFTokenizer("", context_length=length, **kwargs)
    tokens.tokenizer.padding_side = "right"
    return tokens


def gemma_tokenizer() -> Any:
    """The tokenizer of SigLIP 2, as transformers loads it."""
    with tempfile.TemporaryDirectory() as folder:
        return transformers.AutoTokenizer.from_pretrained(tokenizers_of.gemma(Path(folder) / "t"))


def clip_tokenizer() -> Any:
    """CLIP's tokenizer in transformers."""
    with tempfile.TemporaryDirectory() as folder:
        return tokenizers_of.clip(Path(folder))


TWO = {"num_hidden_layers": 2}
SMALL_WORDS = {**TWO, "vocab_size": VOCABULARY}


def from_transformers(
    model: nn.Module, tokenizer: Any, processor: Any, *, prepare: Callable[[str], str] = str, **padding: Any
) -> Original:
    """A model of transformers with its processor, called as its own documentation says."""
    randomise(model)
    with torch.no_grad():
        if hasattr(model, "temperature"):
            model.temperature.fill_(0.02)
        if getattr(model, "logit_bias", None) is not None:
            model.logit_bias.fill_(-10.0)
    options = {"padding": "max_length", "max_length": 64, "padding_side": "right", **padding}
    unmasked = model.config.model_type in ("siglip", "siglip2")

    def logits(pixels: Tensor, texts: list[str]) -> Tensor:
        encoded = tokenizer([prepare(text) for text in texts], return_tensors="pt", **options)
        names = ("input_ids",) if unmasked else ("input_ids", "attention_mask")
        inputs = {name: encoded[name] for name in names}
        if model.config.model_type == "siglip2":
            patches = transformers.models.siglip2.image_processing_siglip2.convert_image_to_patches
            side = pixels.shape[-1] // 16
            inputs["spatial_shapes"] = torch.tensor([[side, side]])
            inputs["pixel_attention_mask"] = torch.ones(1, side * side, dtype=torch.long)
            pixels = patches(pixels[0], 16)[None]
        result: Tensor = model(pixel_values=pixels, **inputs).logits_per_image
        return result

    return Original(model, tokenizer, processor, logits)


def of_clip_kind(name: str, config: Any, length: int = 77) -> Original:
    """A model with CLIP's tokenizer and preprocessing."""
    model = getattr(transformers, name)(config)
    return from_transformers(model, clip_tokenizer(), transformers.CLIPImageProcessor(), max_length=length)


def of_words(name: str, config: Any, tokenizer: Any, **padding: Any) -> Original:
    """A model with a vocabulary of its own and CLIP's preprocessing."""
    model = getattr(transformers, name)(config)
    return from_transformers(model, tokenizer, transformers.CLIPImageProcessor(), **padding)


def clip_like(name: str, **changes: Any) -> Callable[[], Original]:
    """A model of transformers with the configuration of OpenAI's ViT-B/32 and two layers."""

    def build() -> Original:
        kind = getattr(transformers, name.replace("Model", "Config"))
        text = {**TWO, "bos_token_id": 49406, "eos_token_id": 49407, "pad_token_id": 1, **changes.get("text", {})}
        vision = {**TWO, "image_size": 224, **changes.get("vision", {})}
        length = int(text.get("max_position_embeddings", 77))
        return of_clip_kind(name, kind(text_config=text, vision_config=vision), length)

    return build


def siglip(name: str) -> Original:
    """SigLIP, or SigLIP 2 with a fixed resolution, which is of the same kind."""
    second = name == "SigLIP 2"
    text = {**SMALL_WORDS, "max_position_embeddings": 64, "pad_token_id": 0 if second else 1, "eos_token_id": 1}
    config = transformers.SiglipConfig(text_config=text, vision_config={**TWO, "image_size": 224})
    images = transformers.SiglipImageProcessor(size={"height": 224, "width": 224})
    tokenizer = gemma_tokenizer() if second else tokenizers_of.siglip()
    return from_transformers(transformers.SiglipModel(config), tokenizer, images, prepare=canonicalize)


def naflex() -> Original:
    config = transformers.Siglip2Config(text_config=SMALL_WORDS, vision_config=TWO)
    images = transformers.Siglip2ImageProcessor()
    return from_transformers(transformers.Siglip2Model(config), gemma_tokenizer(), images, prepare=canonicalize)


def metaclip2() -> Original:
    text = {**SMALL_WORDS, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
    config = transformers.MetaClip2Config(text_config=text, vision_config={**TWO, "image_size": 224})
    return of_words("MetaClip2Model", config, tokenizers_of.xlm(), max_length=77)


def chinese_clip() -> Original:
    config = transformers.ChineseCLIPConfig(text_config=SMALL_WORDS, vision_config=TWO)
    return of_words("ChineseCLIPModel", config, tokenizers_of.bert(), max_length=52)


def altclip() -> Original:
    text = {**SMALL_WORDS, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
    config = transformers.AltCLIPConfig(text_config=text, vision_config=TWO)
    return of_words("AltCLIPModel", config, tokenizers_of.xlm(512), max_length=77)


def align() -> Original:
    vision = {"num_block_repeats": [1] * 7, "depth_coefficient": 1.0}
    config = transformers.AlignConfig(text_config=SMALL_WORDS, vision_config=vision, projection_dim=640)
    images = transformers.EfficientNetImageProcessor(
        size={"height": 346, "width": 346}, crop_size={"height": 289, "width": 289}, do_center_crop=True,
        rescale_factor=1 / 127.5, rescale_offset=True, include_top=False, resample=2,
    )  # fmt: skip
    return from_transformers(transformers.AlignModel(config), tokenizers_of.bert(), images)


def blip() -> Original:
    config = transformers.BlipConfig(
        text_config={**SMALL_WORDS, "pad_token_id": 0}, vision_config={**TWO, "image_size": 224}
    )
    images = transformers.BlipImageProcessor(size={"height": 224, "width": 224})
    return from_transformers(transformers.BlipModel(config), tokenizers_of.bert(), images)


def groupvit() -> Original:
    text = {**TWO, "bos_token_id": 49406, "eos_token_id": 49407, "pad_token_id": 1}
    config = transformers.GroupViTConfig(text_config=text, vision_config={"depths": [1, 1, 1]})
    return of_clip_kind("GroupViTModel", config)


def tips() -> Original:
    config = transformers.Tipsv2Config(text_config=SMALL_WORDS, vision_config={**TWO, "image_size": 448})
    images = transformers.Tipsv2ImageProcessor()
    return from_transformers(transformers.Tipsv2Model(config), tokenizers_of.tips(), images)


def vision_text(vision: Any) -> Original:
    text = transformers.BertConfig(**SMALL_WORDS)
    config = transformers.VisionTextDualEncoderConfig.from_vision_text_configs(vision, text)
    images = transformers.ViTImageProcessor(size={"height": 224, "width": 224})
    return from_transformers(transformers.VisionTextDualEncoderModel(config), tokenizers_of.bert(), images)


def flava() -> Original:
    config = transformers.FlavaConfig(
        text_config=SMALL_WORDS,
        image_config=TWO,
        multimodal_config=TWO,
        image_codebook_config={"num_blocks_per_group": 1},
    )
    images = transformers.CLIPImageProcessor()
    return from_transformers(transformers.FlavaModel(config), tokenizers_of.bert(), images)


class RemoteCode(nn.Module):
    """A model of transformers' interface with code of its own, as jina-clip and FG-CLIP have it."""

    def __init__(self) -> None:
        super().__init__()
        self.config = transformers.PretrainedConfig()
        self.config.text_config = transformers.BertConfig(**SMALL_WORDS)
        self.config.vision_config = transformers.ViTConfig(**TWO)
        self.text = transformers.BertModel(self.config.text_config)
        self.vision = transformers.ViTModel(self.config.vision_config)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(50.0)))

    def get_text_features(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        features: Tensor = self.text(input_ids, attention_mask=attention_mask).last_hidden_state[:, 0]
        return features

    def get_image_features(self, pixel_values: Tensor) -> Tensor:
        features: Tensor = self.vision(pixel_values).last_hidden_state[:, 0]
        return features

    def forward(self, input_ids: Tensor, pixel_values: Tensor, attention_mask: Tensor | None = None) -> Any:
        texts = nn.functional.normalize(self.get_text_features(input_ids, attention_mask), dim=-1)
        images = nn.functional.normalize(self.get_image_features(pixel_values), dim=-1)
        return transformers.utils.ModelOutput(logits_per_image=self.logit_scale.exp() * images @ texts.T)


def remote_code() -> Original:
    images = transformers.ViTImageProcessor(size={"height": 224, "width": 224})
    return from_transformers(RemoteCode(), tokenizers_of.bert(), images)


def _open_clip(stands_for: str, *names: str, tokenizer: Callable[[], Any] | None = None) -> list[Architecture]:
    return [
        Architecture(name, "open_clip", stands_for, lambda name=name: from_open_clip(name, tokenizer)) for name in names
    ]


def _with_text(name: str, stands_for: str, text: Callable[[], Any], tokenizer: Callable[[], Any]) -> Architecture:
    return Architecture(name, "open_clip", stands_for, lambda: from_open_clip(name, tokenizer, text()))


def _hugging_face(name: str, stands_for: str, build: Callable[[], Original]) -> Architecture:
    return Architecture(name, "transformers", stands_for, build)


ARCHITECTURES = [
    *_open_clip("CLIP, DFN, MetaCLIP, BioCLIP, RemoteCLIP", "ViT-B-16", "ViT-H-14-quickgelu", "ViT-H-14-378-quickgelu"),
    *_open_clip("CLIP", "RN50"),
    *_open_clip("PE-Core", "PE-Core-T-16-384", "PE-Core-B-16", "PE-Core-L-14-336"),
    *_open_clip(
        "SigLIP", "ViT-B-16-SigLIP", "ViT-B-16-SigLIP-i18n-256", "ViT-SO400M-14-SigLIP-384",
        tokenizer=tokenizers_of.siglip,
    ),
    *_open_clip(
        "SigLIP 2", "ViT-B-16-SigLIP2", "ViT-B-16-SigLIP2-384", "ViT-B-32-SigLIP2-256", "ViT-SO400M-16-SigLIP2-256",
        "ViT-gopt-16-SigLIP2-256", tokenizer=gemma_tokenizer,
    ),
    *_open_clip("MetaCLIP 2", "ViT-H-14-worldwide", "ViT-L-14-worldwide", tokenizer=tokenizers_of.xlm),
    *_open_clip(
        "MobileCLIP 1 and 2", "MobileCLIP-S1", "MobileCLIP2-S0", "MobileCLIP2-S3", "MobileCLIP-B", "MobileCLIP2-L-14"
    ),
    *_open_clip("CLIPA, OpenVision", "ViT-H-14-CLIPA", tokenizer=lambda: tokenizers_of.bert(32)),
    *_open_clip("EVA-CLIP", "EVA02-B-16"),
    *_open_clip("ViTamin", "ViTamin-S"),
    *_open_clip("LAION ConvNeXt", "convnext_tiny"),
    *_open_clip("Swin", "swin_base_patch4_window7_224"),
    *_open_clip("ViT with mean pooling", "vit_medium_patch16_gap_256"),
    *_open_clip("CoCa", "coca_ViT-B-32"),
    _with_text(
        "roberta-ViT-B-32", "BiomedCLIP and others with BERT or RoBERTa",
        lambda: transformers.RobertaConfig(**SMALL_WORDS, max_position_embeddings=514), tokenizers_of.xlm,
    ),
    _with_text(
        "xlm-roberta-base-ViT-B-32", "LAION XLM-R",
        lambda: transformers.XLMRobertaConfig(**SMALL_WORDS, max_position_embeddings=514), tokenizers_of.xlm,
    ),
    _with_text(
        "mt5-base-ViT-B-32", "LAION mT5",
        lambda: transformers.MT5Config(vocab_size=VOCABULARY, num_layers=2, d_model=768, d_ff=2048, num_heads=12),
        tokenizers_of.t5,
    ),
    _hugging_face("CLIPModel", "OpenAI's CLIP, PLIP, StreetCLIP", clip_like("CLIPModel")),
    _hugging_face(
        "CLIPModel, 248 tokens", "Long-CLIP", clip_like("CLIPModel", text={"max_position_embeddings": 248})
    ),
    _hugging_face("SiglipModel", "SigLIP, MedSigLIP", lambda: siglip("SigLIP")),
    _hugging_face("SiglipModel, Gemma", "SigLIP 2", lambda: siglip("SigLIP 2")),
    _hugging_face("Siglip2Model", "SigLIP 2 NaFlex", naflex),
    _hugging_face("MetaClip2Model", "MetaCLIP 2", metaclip2),
    _hugging_face("ChineseCLIPModel", "Chinese-CLIP", chinese_clip),
    _hugging_face("AltCLIPModel", "AltCLIP", altclip),
    _hugging_face("AlignModel", "ALIGN", align),
    _hugging_face("Aimv2Model", "AIMv2-LiT", clip_like("Aimv2Model")),
    _hugging_face("BlipModel", "BLIP", blip),
    _hugging_face("CLIPSegModel", "CLIPSeg", clip_like("CLIPSegModel")),
    _hugging_face("GroupViTModel", "GroupViT", groupvit),
    _hugging_face("Tipsv2Model", "TIPSv2", tips),
    _hugging_face("OwlViTModel", "OWL-ViT", clip_like("OwlViTModel", text={"max_position_embeddings": 16})),
    _hugging_face(
        "VisionTextDualEncoderModel, ViT", "LiT, Italian CLIP", lambda: vision_text(transformers.ViTConfig(**TWO))
    ),
    _hugging_face(
        "VisionTextDualEncoderModel, CLIP", "Korean and Japanese CLIP",
        lambda: vision_text(transformers.CLIPVisionConfig(**TWO, image_size=224, patch_size=32)),
    ),
    _hugging_face("FlavaModel", "FLAVA", flava),
    Architecture("code of its own", "in memory", "jina-clip, FG-CLIP and others with remote code", remote_code),
]  # fmt: skip
"""All architectures of the table."""


@dataclass
class Row:
    """Row of the table: "yes", or the sentence of the refusal, for each way to use a model.

    Attributes:
        difference: largest difference between logits of the original and ours.
        context: tokens of a padded text.
        texts: how the text tower is computed.
    """

    name: str
    library: str
    stands_for: str
    context: int = 0
    texts: str = ""
    difference: float = math.nan
    zero_shot: str = ""
    o_tpt: str = ""
    default: str = ""
    several_labels: str = ""
    onnx: str = ""


NAMES = ["cat", "red panda", "dog"]


def check(architecture: Architecture, folder: Path | None) -> Row:
    """Compare a random model with its original, and use it in every way; a difference raises ``AssertionError``.

    ONNX, which takes longest, is left out without a folder for the file.
    """
    row = Row(architecture.name, architecture.library, architecture.stands_for)
    original = architecture.build()
    try:
        backbone = otpt.load_backbone(
            original.model, tokenizer=original.tokenizer, preprocess=original.preprocess, device="cpu"
        )
    except OtptError as error:
        row.zero_shot = str(error)
        return row
    text = text_encoder(backbone)
    row.context = text.context_length
    row.texts = "all tokens"
    if text.causal is not None:
        row.texts = "shared prefix"
    elif text.ignores_padding:
        row.texts = "without padding"
    draws = torch.Generator().manual_seed(0)
    picture = torch.randint(0, 256, (40, 50, 3), generator=draws, dtype=torch.uint8).numpy()
    views = otpt.ViewRecipe(n_views=4, augmix=False)
    classify = otpt.Classifier(backbone, "zero-shot").set_classes(NAMES)
    clean = make_views(Image.fromarray(picture), views.of(1), backbone.preprocessing, seed=0, image_id="x")
    pixels = torch.from_numpy(clean)
    with torch.no_grad():
        expected = original.logits(pixels, [f"a photo of a {name}." for name in NAMES])[0]
    ours = backbone.logit_scale * backbone.encode_pixels(pixels) @ classify.text_features.T + backbone.logit_bias
    row.difference = float((ours[0] - expected).abs().max())
    assert row.difference <= 1e-6 * backbone.logit_scale + 1e-6, row
    zero_shot = torch.from_numpy(classify.predict(picture).probabilities)
    torch.testing.assert_close(zero_shot.float(), expected.softmax(dim=-1), rtol=0, atol=1e-4)
    row.zero_shot = "yes"

    def run(method: str, protocol: Any = views) -> Tensor:
        classifier = otpt.Classifier(backbone, method, views=protocol).set_classes(NAMES)
        found = torch.from_numpy(classifier.predict(picture).probabilities)
        assert bool(torch.isfinite(found).all())
        return found

    def try_(use: Callable[[], object]) -> str:
        try:
            use()
        except OtptError as error:
            return str(error)
        return "yes"

    def tune() -> None:
        assert not torch.equal(run("o-tpt"), zero_shot)

    def several() -> None:
        classifier = otpt.Classifier(backbone, "multi-label", multi_label=True).set_classes(NAMES)
        found = classifier.predict(picture).probabilities
        if backbone.logit_bias:  # a model trained with a sigmoid has its own formula
            torch.testing.assert_close(torch.from_numpy(found).float(), expected.sigmoid(), rtol=1e-4, atol=1e-9)
        assert 0 <= found.min() <= found.max() <= 1

    def write() -> None:
        classifier = otpt.Classifier(backbone, "confident-half", views=views.of(2)).set_classes(NAMES)
        export_onnx(classifier, (folder or Path()) / "model.onnx")

    row.o_tpt = try_(tune)
    row.default = try_(lambda: run("confident-half"))
    row.several_labels = try_(several)
    row.onnx = "" if folder is None else try_(write)
    return row

"""Models in memory: features as the caller's own, preprocessing read from the objects, nothing of theirs changed."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from open_clip.transform import image_transform
from oracles.models.tiny import MEAN, STD, randomise, tiny_clip, tokenizer
from PIL import Image
from torch import Tensor, nn

import otpt
from otpt.backbones import load_backbone
from otpt.errors import OtptError
from otpt.views import ViewRecipe, make_views

pytestmark = pytest.mark.slow

TEXTS = ["a photo of a cat.", "a photo of a red panda."]


def image(seed: int = 0) -> Image.Image:
    small = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((90, 70), Image.Resampling.BICUBIC)


def facts(model: nn.Module) -> dict[str, Any]:
    """Everything that a caller could find changed."""
    return {
        "state": {name: (id(value), value.clone(), value.dtype, value.device) for name, value in named(model)},
        "gradients": {name: (each.requires_grad, each.grad) for name, each in model.named_parameters()},
        "modes": {name: each.training for name, each in model.named_modules()},
        "hooks": {name: len(each._forward_hooks) for name, each in model.named_modules()},
    }


def named(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def assert_unchanged(before: dict[str, Any], model: nn.Module) -> None:
    after = facts(model)
    for part in ("gradients", "modes", "hooks"):
        assert before[part] == after[part]
    for name, (identity, value, dtype, device) in before["state"].items():
        found = after["state"][name]
        assert (found[0], found[2], found[3]) == (identity, dtype, device)
        assert torch.equal(found[1], value)


def transform(**changes: Any) -> Any:
    return image_transform(**{"image_size": 32, "is_train": False, "mean": MEAN, "std": STD, **changes})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_model_of_open_clip_with_its_tokenizer_and_transform(dtype: torch.dtype) -> None:
    model = tiny_clip("vit").to(dtype).train()
    model.visual.requires_grad_(True)
    before = facts(model)
    clf = otpt.load(model, "zero-shot", tokenizer=tokenizer(), preprocess=transform()).set_classes(["cat", "red panda"])
    found = clf.predict(image()).probabilities
    assert_unchanged(before, model)
    own = copy.deepcopy(model).float().eval()
    with torch.no_grad():
        pixels = transform()(image())[None]
        texts = own.encode_text(tokenizer()(TEXTS), normalize=True)
        images = own.encode_image(pixels, normalize=True)
        expected = (own.logit_scale.exp() * images @ texts.T).softmax(dim=-1)[0]
    torch.testing.assert_close(clf.encode_views(image())[:1], images, rtol=0, atol=2e-4)  # Pillow against tensors
    assert found == pytest.approx(expected.numpy(), abs=2e-2)
    backbone = clf.backbone
    torch.testing.assert_close(backbone.encode_pixels(pixels), images, rtol=0, atol=5e-6)
    ids = backbone.text.tokenize(TEXTS)
    torch.testing.assert_close(
        F.normalize(backbone.text.encode_embeddings(ids, backbone.text.embed(ids)), dim=-1), texts, rtol=0, atol=5e-6
    )


@pytest.mark.parametrize(
    "changes",
    [{}, {"interpolation": "bilinear", "mean": (0.5,) * 3}, {"resize_mode": "squash"}, {"resize_mode": "longest"}],
)
def test_the_transform_is_read_and_makes_the_same_clean_view(changes: dict[str, Any]) -> None:
    theirs = transform(**changes)
    backbone = load_backbone(tiny_clip("vit"), tokenizer=tokenizer(), preprocess=theirs)
    ours = make_views(image(), ViewRecipe(n_views=1), backbone.preprocessing, seed=0, image_id="x")
    np.testing.assert_allclose(ours[0], theirs(image()).numpy(), atol=1e-5)


def test_what_is_not_supported_is_said() -> None:
    model, good = tiny_clip("vit"), transform()

    def refusal(thing: Any = model, **options: Any) -> str:
        with pytest.raises(OtptError) as caught:
            otpt.load(thing, **{"tokenizer": tokenizer(), "preprocess": good, **options})
        return str(caught.value)

    assert "The tokenizer of the CLIP is missing" in refusal(tokenizer=None)
    assert "The preprocess of the CLIP is missing" in refusal(preprocess=None)
    assert "the step RandomResizedCrop" in refusal(preprocess=transform(is_train=True))
    assert "resizes to 48 and crops to 48, but the input size of the model is 32" in refusal(
        preprocess=transform(image_size=48)
    )
    assert "preprocess is a function" in refusal(preprocess=lambda image: image)
    assert "torch.nn.modules.linear.Linear" in refusal(nn.Linear(2, 2))
    assert "expected a name or file" in refusal(7)
    assert "quick_gelu= applies only to files" in refusal(quick_gelu=True)
    assert "processor" in refusal(processor=good)
    assert "colour" in refusal(colour="red")
    assert "SimpleTokenizer" in refusal(method=tokenizer())
    assert "tokenizer= applies only to models in memory" in refusal("random:ViT-B-32", preprocess=None)


transformers = pytest.importorskip("transformers")
COMMON = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 96}


def clip_model() -> Any:
    config = transformers.CLIPConfig(
        text_config={**COMMON, "eos_token_id": 49407, "bos_token_id": 49406, "pad_token_id": 1},
        vision_config={**COMMON, "image_size": 32, "patch_size": 8},
        projection_dim=24,
    )
    return randomise(transformers.CLIPModel(config))


def word_tokenizer(length: int) -> Any:
    """A fast tokenizer of a dozen words, made here: no start token, an end token, padding."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["<pad>", "</s>", "<unk>", "a", "photo", "of", "cat", "dog", "red", "panda", ".", "x"]
    plain = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    plain.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=length
    )


class Processor:
    """Both parts in one, as ``AutoProcessor`` gives them."""

    def __init__(self, tokenizer: Any, image_processor: Any) -> None:
        self.tokenizer, self.image_processor = tokenizer, image_processor


def clip_tokenizer_of_transformers(folder: Path) -> Any:
    own = tokenizer()
    names = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    vocabulary = {names.get(token, token): index for token, index in own.encoder.items()}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    merges = [" ".join(pair) for pair in own.bpe_ranks]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges), encoding="utf-8")
    return transformers.CLIPTokenizerFast.from_pretrained(folder)


def test_a_clip_model_of_transformers_with_its_processor(tmp_path: Path) -> None:
    model = clip_model().train()
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    words = clip_tokenizer_of_transformers(tmp_path)
    before = facts(model)
    for options in ({"preprocess": Processor(words, images)}, {"tokenizer": words, "preprocess": images}):
        backbone = load_backbone(model, **options)
        assert_unchanged(before, model)
        own = copy.deepcopy(model).eval()
        pixels = torch.randn(3, 3, 32, 32)
        given = words(TEXTS, padding=True, return_tensors="pt")
        with torch.no_grad():
            image_features = own.get_image_features(pixels).pooler_output
            text_features = own.get_text_features(**given).pooler_output
        torch.testing.assert_close(
            backbone.encode_pixels(pixels), F.normalize(image_features, dim=-1), rtol=0, atol=5e-6
        )
        ids = backbone.text.tokenize(TEXTS)
        torch.testing.assert_close(
            backbone.text.encode_embeddings(ids, backbone.text.embed(ids)), text_features, rtol=0, atol=1e-5
        )
        assert backbone.text.causal is not None
    ours = make_views(image(), ViewRecipe(n_views=1), backbone.preprocessing, seed=0, image_id="x")
    theirs = images(image(), return_tensors="pt").pixel_values[0]
    assert np.abs(ours[0] - theirs.numpy()).mean() < 0.02  # their tensor resize rounds otherwise than Pillow's


def test_a_siglip_model_of_transformers_with_its_processor() -> None:
    text = {**COMMON, "vocab_size": 12, "max_position_embeddings": 16, "pad_token_id": 0, "eos_token_id": 1}
    vision = {**COMMON, "image_size": 32, "patch_size": 8}
    model = randomise(transformers.SiglipModel(transformers.SiglipConfig(text_config=text, vision_config=vision)))
    with torch.no_grad():
        model.logit_scale.fill_(2.0)
        model.logit_bias.fill_(-3.0)
    images = transformers.SiglipImageProcessor(size={"height": 32, "width": 32})
    words = word_tokenizer(16)
    before = facts(model)
    clf = otpt.load(model, "o-tpt", preprocess=Processor(words, images), views=ViewRecipe(n_views=8))
    clf.set_classes(["cat", "red panda"], "a photo of a")
    clf.predict(image())
    assert_unchanged(before, model)
    backbone = clf.backbone
    pixels = torch.randn(3, 3, 32, 32)
    given = words(TEXTS, padding="max_length", max_length=16, return_tensors="pt")
    with torch.no_grad():
        outputs = model(input_ids=given.input_ids, pixel_values=pixels)
    found = backbone.text.encode_embeddings(given.input_ids, backbone.text.embed(given.input_ids))
    torch.testing.assert_close(F.normalize(found, dim=-1), outputs.text_embeds, rtol=0, atol=5e-6)
    torch.testing.assert_close(backbone.encode_pixels(pixels), outputs.image_embeds, rtol=0, atol=5e-6)
    logits = backbone.logit_scale * backbone.encode_pixels(pixels) @ F.normalize(found, dim=-1).T + backbone.logit_bias
    torch.testing.assert_close(logits, outputs.logits_per_image, rtol=0, atol=1e-4)
    assert backbone.preprocessing.resize_mode == "squash"
    assert backbone.preprocessing.mean == (0.5, 0.5, 0.5)
    assert backbone.family == "vit"


@pytest.mark.parametrize(
    "changes",
    [
        {"size": {"shortest_edge": 40}},
        {"size": {"shortest_edge": 40}, "resample": 1},
        {"size": {"height": 44, "width": 44}},
        {"do_normalize": False},
    ],
)
def test_processors_that_crop_or_use_lanczos(tmp_path: Path, changes: dict[str, Any]) -> None:
    sizes = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    images = transformers.CLIPImageProcessor(**{**sizes, **changes})
    backbone = load_backbone(clip_model(), tokenizer=clip_tokenizer_of_transformers(tmp_path), preprocess=images)
    picture = image().resize((90, 72))
    ours = make_views(picture, ViewRecipe(n_views=1), backbone.preprocessing, seed=0, image_id="x")
    theirs = images(picture, return_tensors="pt").pixel_values[0].numpy()
    assert np.abs(ours[0] - theirs).mean() < 0.02  # their tensor resize rounds otherwise than Pillow's
    plain = load_backbone(clip_model(), tokenizer=tokenizer(), preprocess=transformers.CLIPImageProcessor(**sizes))
    clean = make_views(picture, ViewRecipe(n_views=1), plain.preprocessing, seed=0, image_id="x")
    assert np.abs(clean[0] - theirs).mean() > 0.05


def test_wrappers_of_torch_are_taken_off(tmp_path: Path) -> None:
    words = clip_tokenizer_of_transformers(tmp_path)
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    theirs, ours = clip_model(), tiny_clip("vit")
    plain = load_backbone(theirs, tokenizer=words, preprocess=images)
    for wrapped in (torch.compile(theirs), nn.DataParallel(theirs), torch.compile(nn.DataParallel(theirs))):
        assert load_backbone(wrapped, tokenizer=words, preprocess=images).fingerprint == plain.fingerprint
    for wrapped in (torch.compile(ours), nn.DataParallel(ours)):
        assert load_backbone(wrapped, tokenizer=tokenizer(), preprocess=transform()).text.causal is not None


def test_adapters_of_peft_are_merged(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    words = clip_tokenizer_of_transformers(tmp_path)
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    settings = peft.LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = peft.get_peft_model(clip_model(), settings).eval()
    backbone = load_backbone(model, tokenizer=words, preprocess=images)
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = F.normalize(model.get_image_features(pixels).pooler_output, dim=-1)
    torch.testing.assert_close(backbone.encode_pixels(pixels), expected, rtol=0, atol=5e-6)
    assert model.peft_config  # not merged
    assert backbone.text.causal is not None


def test_processors_that_do_something_else_are_refused(tmp_path: Path) -> None:
    model = clip_model()
    words = clip_tokenizer_of_transformers(tmp_path)

    def refusal(**changes: Any) -> str:
        size = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
        with pytest.raises(OtptError) as caught:
            otpt.load(model, tokenizer=words, preprocess=transformers.CLIPImageProcessor(**{**size, **changes}))
        return str(caught.value)

    assert "resizes to 24 and crops to 32" in refusal(size={"shortest_edge": 24})
    assert "resizes to 40 and crops to 36" in refusal(size={"shortest_edge": 40}, crop_size={"height": 36, "width": 36})
    assert "do_rescale is off" in refusal(do_rescale=False)
    assert "it rescales by 0.5" in refusal(rescale_factor=0.5)
    assert "interpolation 'nearest'" in refusal(resample=0)
    with pytest.raises(OtptError, match=r"The tokenizer of .* is missing"):
        otpt.load(model)
    with pytest.raises(OtptError, match="expected a name or file"):
        otpt.load(transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**COMMON, image_size=32, patch_size=8)))

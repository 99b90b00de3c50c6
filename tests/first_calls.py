"""What a user of another project tries first, and what happens: ``python -m tests.first_calls``.

Twenty calls and commands each of people who come from open_clip, Hugging Face, torchmetrics and CLIP_benchmark. Those
that ask for something that there is are answered; the others end in a sentence that says what to write. The table shows
one line per call; ``PYTHONPATH`` of another version's ``src`` shows what happened there. The tests run the same calls.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ANSWERED = "answered"
SENTENCE = "sentence"
"""An error that says what was given, what was expected and what to do: ``OtptError``, or exit code 2."""
ATTRIBUTE = "AttributeError"
"""A name that other libraries have, with what to write here."""


@dataclass(frozen=True)
class Call:
    """Python, or a command if it begins with ``otpt``; and what is expected.

    Attributes:
        expected: words of the answer, a regular expression.
        outcome: :data:`ANSWERED`, :data:`SENTENCE` or :data:`ATTRIBUTE`.
    """

    project: str
    text: str
    expected: str
    outcome: str = ANSWERED


def _calls(project: str, *rows: tuple[str, ...]) -> tuple[Call, ...]:
    return tuple(Call(project, *row) for row in rows)


OPEN_CLIP = _calls(
    "open_clip",
    ("otpt.load(model, tokenizer=tokenizer, preprocess=preprocess)", r"Classifier\('CLIP'"),
    ("otpt.load(model)", "came without its tokenizer; give tokenizer=", SENTENCE),
    ("otpt.load(model, tokenizer=tokenizer, preprocess=preprocess_train)", "RandomResizedCrop", SENTENCE),
    ("otpt.load('ViT-B-32', pretrained='openai')", "ViT-B-32/openai", SENTENCE),
    ("otpt.load('ViT-B-23/openai')", "Did you mean: ViT-B-32", SENTENCE),
    ("clf.set_classes(open_clip.IMAGENET_CLASSNAMES[:9])", r"9 \('tench'"),
    ("zs.set_classes(names, templates=open_clip.SIMPLE_IMAGENET_TEMPLATES)", "red panda"),
    ("zs.set_classes(names, text_features=model_features)", "red panda"),
    ("zs.set_classes(names, text_features=model_features.T)", r"transpose", SENTENCE),
    ("clf.set_classes(names).predict(Image.open('photo.jpg')).label", "cat|dog|red panda"),
    ("clf.set_classes(names).predict(preprocess(Image.open('photo.jpg')))", "undo its normalisation", SENTENCE),
    ("otpt.create_model_and_transforms('ViT-B-32', pretrained='openai')", r"write otpt\.load", ATTRIBUTE),
    ("[p.label for p in clf.set_classes(names)(torch.rand(2, 3, 40, 40))]", "cat|dog|red panda"),
    ("otpt.load('ViT-B-32', 'openai')", r"write otpt\.load\('ViT-B-32/openai'\)", SENTENCE),
    ("clf.encode_image(Image.open('photo.jpg'))", "write encode_views", ATTRIBUTE),
    ("otpt predict photo.jpg --classes cat dog --backbone pocket --views 8", "cat"),
    (
        "otpt predict photo.jpg --classes cat dog --model ViT-B-32 --pretrained openai",
        "--backbone ViT-B-32/openai",
        SENTENCE,
    ),
    ("otpt predict --backbone pocket --views 8 --classes cat dog photo.jpg", "taken as"),
    ("otpt predict photo.jpg --classes classes.txt --backbone pocket --views 8", "write --classes @classes.txt"),
    ("otpt models", "ViT-B-32"),
)

HUGGING_FACE = _calls(
    "Hugging Face",
    ("otpt.load(hf_model, preprocess=processor)", "Classifier"),
    ("otpt.load(hf_model, processor=processor)", "given as preprocess=", SENTENCE),
    ("otpt.load(hf_model, processor)", "preprocess=", SENTENCE),
    ("otpt.load('openai/clip-vit-base-patch32')", "hf:openai/clip-vit-base-patch32", SENTENCE),
    ("otpt.load('pocket', device=0)", "'cuda:1'", SENTENCE),
    ("clf('photo.jpg', candidate_labels=names).label", "cat|dog|red panda"),
    ("clf('photo.jpg', candidate_labels='cat, dog')[0]['label']", "cat|dog"),
    ("clf('photo.jpg', candidate_labels=names)[:2]", "'score'"),
    ("clf(images=['photo.jpg', 'photo.jpg'], candidate_labels=names)[1].label", "cat|dog|red panda"),
    ("clf('photo.jpg', names, hypothesis_template='This is a photo of {}.').label", "cat|dog|red panda"),
    ("otpt.pipeline('zero-shot-image-classification', model='pocket')", r"clf = otpt\.load", ATTRIBUTE),
    ("clf(np.zeros((40, 40), np.uint8), names).label", "cat|dog|red panda"),
    ("clf(io.BytesIO(Path('photo.jpg').read_bytes()), names).label", "cat|dog|red panda"),
    ("[type(each).__name__ for each in clf(['photo.jpg', 'no.jpg'], names, errors='return')]", "Failure"),
    ("clf(['photo.jpg', 'no.jpg'], names)", "Image 2 of the list cannot be used", SENTENCE),
    ("clf(processor(images=Image.open('photo.jpg'), return_tensors='pt').pixel_values, names)", "normalis", SENTENCE),
    ("json.dumps(clf('photo.jpg', names).to_dict())", '"label"'),
    ("pickle.loads(pickle.dumps(clf))('photo.jpg', names).label", "cat|dog|red panda"),
    ("otpt evaluate hf:mine --backbone pocket --out runs/hf", "read without hf:", SENTENCE),
    ("otpt predict photo.jpg --candidate-labels cat dog --backbone pocket", "--classes", SENTENCE),
)

TORCHMETRICS = _calls(
    "torchmetrics",
    ("metrics.expected_calibration_error(probabilities, labels)", r"0\.\d"),
    ("metrics.RunningMetric('ece', n_bins=15)", "did you mean bins", SENTENCE),
    ("metrics.expected_calibration_error(logits, labels)", "logits", SENTENCE),
    ("metrics.MulticlassCalibrationError(num_classes=5, n_bins=15)", r"RunningMetric\('ece', bins=15\)", ATTRIBUTE),
    ("metrics.accuracy(probabilities.argmax(dim=1), labels)", r"shape \(N, C\)", SENTENCE),
    ("metrics.accuracy(probabilities, labels.float())", "integers", SENTENCE),
    ("metrics.brier_score(probabilities, labels)", r"0\.\d"),
    ("metrics.evaluate(probabilities, labels).ece", r"0\.\d"),
    ("running(metrics.RunningMetric('expected_calibration_error', bins=15)).compute()", r"0\.\d"),
    ("metrics.RunningMetric('accuracy', task='multiclass', num_classes=5)", "leave it out", SENTENCE),
    ("running(metrics.RunningMetric('accuracy', logits=True), logits).compute()", r"0\.\d"),
    ("metrics.RunningMetric('accuracy')(probabilities, labels)", r"0\.\d"),
    ("metrics.RunningMetric('accuracy').compute()", r"update\(probabilities, labels\)", SENTENCE),
    ("metrics.RunningMetric('calibration')", "Did you mean|Available", SENTENCE),
    ("merged(metrics.RunningMetric('accuracy'), metrics.RunningMetric('accuracy')).compute()", r"0\.\d"),
    ("running(torchmetrics.MetricCollection({'ece': metrics.RunningMetric('ece')})).compute()", "'ece'"),
    ("tuple(functional.predict(views, texts, method='mean-probability').shape)", r"\(2, 5\)"),
    (
        "torchmetrics.MetricCollection({'ece': metrics.RunningMetric('ece')})(preds=probabilities, target=labels)",
        "'ece'",
    ),
    ("otpt metrics runs/mine --bins 15", "ECE"),
    ("otpt metrics runs/mine --metrics ece nll", "NLL|nll"),
)

CLIP_BENCHMARK = _calls(
    "CLIP_benchmark",
    ("otpt", "COMMAND", SENTENCE),
    ("otpt eval ./mine --backbone pocket", "did you mean evaluate", SENTENCE),
    ("otpt evaluate ./mine --backbone pocket --views 8 --out runs/a", "ECE"),
    (
        "otpt evaluate --dataset=cifar10 --task=zeroshot_classification --model=ViT-B-32 --pretrained=openai "
        "--output=result.json --batch_size=64",
        "write --backbone ViT-B-32/openai; a data set is given without an option",
        SENTENCE,
    ),
    ("otpt evaluate ./mine --model ViT-B-32 --pretrained openai --out runs/c", "--backbone ViT-B-32/openai", SENTENCE),
    ("otpt evaluate ./mine --backbone pockett --out runs/d", "Did you mean: pocket", SENTENCE),
    ("otpt evaluate ./mine --backbone pocket --method zero-shot tpt --seeds 0 --views 8 --out runs/e", "tpt"),
    ("otpt evaluate ./mine --backbone pocket --methods o-ptp --out runs/f", "Did you mean: o-tpt", SENTENCE),
    ("otpt evaluate cifar10 --backbone pocket --out runs/g", "For other images give a folder", SENTENCE),
    ("otpt evaluate caltech101 --backbone pocket --out runs/h", r"\./caltech101", SENTENCE),
    ("otpt evaluate list.csv --backbone pocket --out runs/i", "found 'filepath', 'title'", SENTENCE),
    ("otpt evaluate ./mine --backbone pocket --out result.json", "looks like a file", SENTENCE),
    ("otpt evaluate imagenet --backbone pocket --out runs/k", "--data ROOT", SENTENCE),
    ("otpt metrics runs/mine -o all.csv", ""),
    ("otpt metrics runs/mine --per-class", "cat"),
    ("otpt build runs/mine --output all.csv", r"write otpt metrics RUN … -o FILE\.csv", SENTENCE),
    ("otpt plot reliability runs/mine -o reliability.png", ""),
    ("otpt report runs/mine -o page.html", ""),
    ("otpt datasets", "dtd"),
    ("otpt doctor", "torch"),
)

CALLS = (*OPEN_CLIP, *HUGGING_FACE, *TORCHMETRICS, *CLIP_BENCHMARK)


def prepare(folder: Path) -> dict[str, Any]:
    """Files in a folder, and the names that the Python calls use; what a version lacks is left out."""
    import json
    import pickle

    import numpy as np
    import torch
    from PIL import Image

    import otpt

    draw = np.random.default_rng(0)
    small = draw.integers(0, 256, (12, 6, 8, 3), dtype=np.uint8)
    images = [Image.fromarray(each).resize((80, 60), Image.Resampling.BICUBIC) for each in small]
    images[0].save(folder / "photo.jpg")
    for place in ("mine", "caltech101"):
        for index, image in enumerate(images):
            path = folder / place / ("cat", "dog")[index % 2] / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path)
    (folder / "classes.txt").write_text("cat\ndog\nred panda\n", encoding="utf-8")
    (folder / "list.csv").write_text("filepath\ttitle\nphoto.jpg\tcat\n", encoding="utf-8")
    probabilities = torch.from_numpy(draw.dirichlet(np.ones(5), 40))
    found: dict[str, Any] = {
        "otpt": otpt,
        "np": np,
        "torch": torch,
        "Image": Image,
        "io": io,
        "Path": Path,
        "json": json,
        "pickle": pickle,
        "names": ["cat", "dog", "red panda"],
        "probabilities": probabilities,
        "logits": 9 * probabilities - 4,  # some are negative, as logits are
        "labels": torch.from_numpy(draw.integers(0, 5, 40)),
        "views": torch.nn.functional.normalize(torch.randn(2, 8, 16), dim=-1),
        "texts": torch.nn.functional.normalize(torch.randn(5, 16), dim=-1),
        "clf": otpt.load("pocket", device="cpu", views=otpt.ViewRecipe(n_views=8)),
        "zs": otpt.load("pocket", method="zero-shot", device="cpu"),
    }
    for name in ("metrics", "functional"):
        with contextlib.suppress(ImportError):
            found[name] = __import__("importlib").import_module(f"otpt.{name}")
    return {**found, **_open_clip(), **_hugging_face(), **_torchmetrics(found)}


def _open_clip() -> dict[str, Any]:
    import open_clip
    import torch
    from open_clip.transform import image_transform

    config = {
        "embed_dim": 64,
        "vision_cfg": {"image_size": 32, "patch_size": 8, "width": 64, "layers": 1, "head_width": 32},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 1},
    }
    return {
        "open_clip": open_clip,
        "model": open_clip.CLIP(**config),
        "tokenizer": open_clip.SimpleTokenizer(),
        "preprocess": image_transform(32, is_train=False),
        "preprocess_train": image_transform(32, is_train=True),
        "model_features": torch.randn(3, _width("pocket")),
    }


def _width(backbone: str) -> int:
    from otpt.backbones import load_backbone

    text = load_backbone(backbone, device="cpu").text
    ids = text.tokenize(["a cat"])
    return int(text.encode_embeddings(ids, text.embed(ids)).shape[-1])


def _hugging_face() -> dict[str, Any]:
    import transformers

    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 32, "intermediate_size": 32}
    config = transformers.CLIPConfig(
        text_config={**sizes, "eos_token_id": 49407, "bos_token_id": 49406, "pad_token_id": 1},
        vision_config={**sizes, "image_size": 32, "patch_size": 8},
        projection_dim=24,
    )
    return {"hf_model": transformers.CLIPModel(config), "processor": _processor()}


def _processor() -> Any:
    """Of CLIP, with open_clip's vocabulary in the form of transformers: no download."""
    import json

    import open_clip
    import transformers

    own = open_clip.SimpleTokenizer()
    names = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    vocabulary = {names.get(token, token): index for token, index in own.encoder.items()}
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
        merges = [" ".join(pair) for pair in own.bpe_ranks]
        (Path(place) / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges), encoding="utf-8")
        words = transformers.CLIPTokenizerFast.from_pretrained(place)
    size = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    return transformers.CLIPProcessor(transformers.CLIPImageProcessor(**size), words)


def _torchmetrics(found: dict[str, Any]) -> dict[str, Any]:
    import torchmetrics

    def running(metric: Any, values: Any = None) -> Any:
        """A metric after two batches."""
        values = found["probabilities"] if values is None else values
        for part in (slice(0, 25), slice(25, None)):
            metric.update(values[part], found["labels"][part])
        return metric

    def merged(one: Any, other: Any) -> Any:
        """Of two processes, a batch each."""
        one.update(found["probabilities"][:20], found["labels"][:20])
        other.update(found["probabilities"][20:], found["labels"][20:])
        one.merge_state(other)
        return one

    return {"torchmetrics": torchmetrics, "running": running, "merged": merged}


def run(call: Call, names: dict[str, Any]) -> tuple[str, str]:
    """How a call ends, and what it says: of an answer its text, of an error its message."""
    from otpt.errors import OtptError

    try:
        if call.text.startswith("otpt ") or call.text == "otpt":
            return _command(shlex.split(call.text)[1:])
        return ANSWERED, str(eval(call.text, names))
    except OtptError as error:
        return SENTENCE, str(error)
    except Exception as error:
        return type(error).__name__, str(error)


def _command(words: list[str]) -> tuple[str, str]:
    from otpt.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as error:  # argparse
            code = int(error.code or 0)
    said = err.getvalue() + out.getvalue()
    return {0: ANSWERED, 2: SENTENCE}.get(code, f"exit code {code}"), said


@contextlib.contextmanager
def prepared() -> Iterator[dict[str, Any]]:
    """A folder to work in, with a run, and the names of the calls."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.chdir(folder)
        try:
            names = prepare(Path(folder))
            _command(shlex.split("evaluate ./mine --backbone pocket --methods zero-shot tpt --views 8 --out runs/mine"))
            yield names
        finally:
            os.chdir(before)


def main() -> None:
    """One line per call."""
    with prepared() as names:
        for call in CALLS:
            outcome, said = run(call, names)
            line = next((line for line in said.splitlines() if re.search(call.expected, line)), said.partition("\n")[0])
            good = outcome == call.outcome and re.search(call.expected, said)
            print(f"{'ok ' if good else 'NO '}|{call.project}|{call.text}|{outcome}|{line[:160]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

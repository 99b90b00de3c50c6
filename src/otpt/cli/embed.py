"""``otpt embed IMAGES -o features.parquet``: image features for other programs, and to be classified again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from otpt._version import __version__
from otpt.cli import options as o
from otpt.cli.predict import Column, Images, Overwrite, Split, named_answers, open_images
from otpt.cli.terminal import plural, say
from otpt.errors import OtptError

if TYPE_CHECKING:
    from otpt.images import NamedImage


def embed(
    *images: Images,
    out: Annotated[str, o.out("a .parquet file, or a folder of Parquet parts; also remote")],
    overwrite: Overwrite = False,
    views: Annotated[int, o.option("mean over this many views; 1: the clean view alone")] = 1,
    dtype: Annotated[Literal["float32", "float16"], o.option("type of the stored numbers")] = "float32",
    column: Column = None,
    split: Split = "test",
    seed: o.Seed = None,
    threads: o.Threads = None,
    model: o.ModelOptions = o.ModelOptions(),
) -> int:
    """Encode images and write unit features, with the columns id, feature and error. 'otpt predict' and 'otpt evaluate'
    take the file in place of images. The same command continues a stopped job. Exit code 2 if an image could not be
    read; the others are still encoded.

    otpt embed photos/ --backbone ViT-B-16/openai --out features.parquet
    """
    from otpt.cli.prediction_file import PredictionFile, check_output

    if check_output(out).endswith((".csv", ".jsonl")):
        raise OtptError(f"Features cannot be written to {out!r}; expected .parquet or a folder.")
    source = open_images(images, column, split)  # before a large model is loaded
    from otpt.bulk import read_ahead
    from otpt.features.pipeline import embed as encode
    from otpt.views import ViewRecipe

    recipe = ViewRecipe(n_views=views)
    o.use_threads(threads)
    backbone = model.load()
    facts = {"backbone": backbone.fingerprint, "views": recipe.key, "seed": str(seed or 0), "dtype": dtype}
    job = {"version": __version__, **facts, "precision": model.precision}
    metadata = {f"otpt.{name}": value for name, value in {"model": model.backbone, **facts}.items()}

    def encoded(waiting: Iterator[NamedImage]) -> Iterator[Any]:
        ahead = read_ahead(waiting) if source.is_remote else waiting
        return encode(backbone, ahead, recipe, seed=seed or 0, workers=threads)

    with PredictionFile(out, job, key="id", overwrite=overwrite, metadata=metadata) as file:
        for name, feature in named_answers(encoded, source, file):
            if isinstance(feature, OtptError):
                file([{"id": name, "feature": None, "error": str(feature)}])
            else:
                file([{"id": name, "feature": feature.astype(dtype), "error": None}])
    print(f"The features of {plural(file.done - file.failed, 'image')} are in {out!r}.")
    if file.failed:
        say(f"{file.failed} of {file.done} images could not be read")
    return 2 if file.failed else 0

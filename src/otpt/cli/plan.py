"""``otpt plan``: predicted time and memory of methods on data sets or images; nothing is run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Annotated

from otpt.cli import options as o
from otpt.cli.costs import GPU_CORES, GPUS, HERE, predict_cost
from otpt.cli.environment import processor_name
from otpt.cli.terminal import print_json, print_table
from otpt.data import find_entry, list_datasets
from otpt.errors import OtptError, unknown
from otpt.methods import DEFAULT_METHOD, Protocol, get_methods
from otpt.progress import duration
from otpt.threads import available_threads


def plan(
    *what: Annotated[str, o.option("data sets, 'paper' for its 15, or: predict N", metavar="DATASET")],
    classes: Annotated[
        o.Several, o.option("with 'predict': number of classes, or their names", metavar="N|NAME")
    ] = None,
    methods: o.Methods = None,
    seeds: o.Seeds = None,
    backbone: Annotated[str, o.option("an open_clip architecture, pocket or pocket-photo")] = o.DEFAULT_BACKBONE,
    views: Annotated[int, o.setting(Protocol, "views")] = 64,
    device: Annotated[
        str | None,
        o.option(
            "here, or a GPU such as a100; a wrong name lists all (default: here; with 'predict': all)", metavar="NAME"
        ),
    ] = None,
    half: Annotated[bool, o.option("half precision on GPUs")] = False,
    json: o.Json = False,
) -> int:
    """Predict operations, time and memory of methods on data sets; or of 'otpt predict' on N images with one view, the
    default and 64, here and on common GPUs. Nothing is downloaded or run; all times are predictions.

    otpt plan dtd pets --methods tpt o-tpt --device a100
    otpt plan predict 20000 --classes 40
    """
    if not what:
        raise OtptError("Nothing to plan: give data sets, such as 'dtd cars', or: predict N --classes C.")
    chosen = get_methods(methods or [DEFAULT_METHOD])
    if device is not None and device not in (HERE, *GPUS):
        raise unknown("device", device, (HERE, *GPUS))
    if what[0] == "predict":
        images, count = _predict_size(what, classes)
        sizes = [("images", images, count, True)]
        devices = (HERE, *GPUS) if device is None else (device,)
        view_counts = tuple(dict.fromkeys((1, views, 64)))
    else:
        if classes is not None:
            raise OtptError("--classes was given, but data sets have their own; it is for: otpt plan predict N.")
        sizes = _datasets(what)
        devices = (device or HERE,)
        view_counts = (views,)
    if half and devices == (HERE,):
        raise OtptError("--half is for GPUs; name one with --device, such as --device a100.")
    rows = []
    cells = []
    for name, images, count, augmix in sizes:
        total = images * len(seeds or (0,))
        for place, view_count in product(devices, view_counts):
            cost = predict_cost(backbone, chosen, place, count, view_count, augmix, half)
            rows.append({"dataset": name, "device": place, "images": total, "classes": count, **cost._asdict()})
            size = (f"{total:,}", str(count), str(cost.views))
            speed = (f"{cost.flops / 1e12:.3g}", f"{cost.seconds:.2g}", duration(total * cost.seconds))
            cells.append((name, place, *size, *speed, f"{cost.bytes / 1e9:.1f}"))
    names = [method.name for method in chosen]
    if json:
        print_json({"predicted": True, "backbone": backbone, "methods": names, "plan": rows})
        return 0
    head = ("data set", "device", "images", "classes", "views", "TFLOP/image", "s/image", "time", "GB")
    print_table(head, cells, names=2)
    print(
        f"\nPredicted for {', '.join(names)} with {backbone}; here: {processor_name()}, {available_threads()} threads, "
        f"by short timings; GPUs at half their peak, {GPU_CORES} cores for views."
    )
    return 0


def _predict_size(what: Sequence[str], classes: Sequence[str] | None) -> tuple[int, int]:
    if len(what) != 2 or not what[1].isdecimal() or not int(what[1]):
        raise OtptError("After 'predict' a number of images is expected: otpt plan predict 20000 --classes 40.")
    count = int(classes[0]) if classes and classes[0].isdecimal() else len(o.read_classes(classes) or ())
    if count < 2:
        raise OtptError(f"--classes was given {count} classes; expected a number such as --classes 40, or names.")
    return int(what[1]), count


def _datasets(words: Sequence[str]) -> list[tuple[str, int, int, bool]]:
    """Return (name, images, classes, augmix) of registered data sets."""
    entries = {entry.name: entry for entry in list_datasets()}
    paper = list(entries)[:15]  # the first ones are the paper's
    names: list[str] = []
    for word in words:
        names += paper if word == "paper" else [word]
    sizes = []
    for name in dict.fromkeys(names):
        entry = entries.get(name) or find_entry(name)
        if entry is None or entry.test_images is None or entry.classes is None:
            raise unknown("data set", name, entries)
        sizes.append((entry.name, entry.test_images, entry.classes, entry.augmix))
    return sizes

"""``otpt plan dtd cars --methods o-tpt --device a6000``: what it would take, from shapes alone; nothing is run."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otpt.cli.information.cache import add_cache_option
from otpt.cli.options.models import DEFAULT_BACKBONE
from otpt.cli.options.spellings import add_methods_option, add_seeds_option
from otpt.cli.terminal import Column, print_columns
from otpt.errors import OtptError, unknown

if TYPE_CHECKING:
    from otpt.costs import Device, Planned, Texts
    from otpt.methods import Method

HERE = "here"
PAPER_SETS = 15
"""The first of the registered data sets are the paper's."""
PUBLISHED = (
    "Published for the official O-TPT scripts (ViT-B/16, 64 views, 47 to 200 classes) on an A6000: 0.21 to 0.26 s per "
    "image, measured by its authors."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``plan``."""
    parser.description = (
        "Predict operations, hours and memory of methods on data sets, from the shapes of the model and the class "
        "names alone: no weights, no images, no GPU. All times are predictions."
    )
    parser.add_argument("datasets", nargs="*", metavar="DATASET", help="registered data sets, or 'paper' for its 15")
    parser.add_argument("--images", type=int, metavar="N", help="images of a data set of your own, with --class-count")
    parser.add_argument("--class-count", type=int, metavar="C", help="its classes, of names as long as usual")
    add_methods_option(parser, default=["o-tpt"], words="methods of one run (default: o-tpt)")
    add_seeds_option(parser, default=[0], words="seeds; everything is done for each (default: 0)")
    parser.add_argument(
        "--backbone",
        default=DEFAULT_BACKBONE,
        metavar="SPEC",
        help="an open_clip name or pocket (default: %(default)s)",
    )
    parser.add_argument("--views", type=int, default=64, metavar="N", help="views per image (default: %(default)s)")
    parser.add_argument(
        "--device",
        default=HERE,
        metavar="NAME",
        help="a6000, a100, h100, l4, t4, rtx-4090, cpu …; 'here' is this machine, as 'otpt doctor --speed' measured it "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--precision", default="float32", help="of the image tower: float32, tf32, bf16, fp16 (default: %(default)s)"
    )
    parser.add_argument(
        "--achieved", type=float, metavar="F", help="fraction of a named device's peak that is reached (default: 0.5)"
    )
    parser.add_argument("--cores", type=int, metavar="N", help="processor cores per machine (default: 8; here: all)")
    parser.add_argument("--machines", type=int, default=1, metavar="N", help="machines that share it (default: 1)")
    parser.add_argument("--no-cache", action="store_true", help="stream methods encode their images once more")
    add_cache_option(parser)
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Plan and print."""
    from otpt.costs import plan_dataset, read_architecture
    from otpt.methods import get_methods

    sets = _sets(options)
    methods = get_methods(options.methods)
    model = read_architecture(options.backbone)
    device = chosen_device(options.device, options.cores, options.achieved, options.cache)
    rows = [
        plan_dataset(
            model,
            texts,
            methods,
            device,
            dataset=name,
            images=images,
            seeds=len(set(options.seeds)),
            views=options.views,
            augmix=augmix,
            family=family,
            precision=options.precision,
            machines=options.machines,
            cached=not options.no_cache,
        )
        for name, images, texts, augmix, family in sets
    ]
    if options.json:
        print(json.dumps(plan_data(rows, methods, device, options), indent=2, ensure_ascii=False))
        return 0
    _print(rows, device, options)
    return 0


def chosen_device(name: str, cores: int | None, achieved: float | None, cache: Path | None) -> Device:
    """The device of a name; "here" is what was measured, or a core of the table times those of this machine."""
    from otpt.costs import find_device, read_speed, speed_path
    from otpt.costs.devices import this_machine
    from otpt.features.cache import default_cache_folder

    if name != HERE:
        return find_device(name, cores=8 if cores is None else cores, achieved=achieved, besides=[HERE])
    speed = read_speed(speed_path(cache or default_cache_folder()))
    if speed is not None and cores is None and achieved is None:
        return this_machine(speed)
    return find_device("cpu", cores=os.cpu_count() or 1 if cores is None else cores, achieved=achieved)


def _sets(options: argparse.Namespace) -> list[tuple[str, int, Texts, bool, str]]:
    """(name, images, texts, augmix, family) of everything that is asked for."""
    from otpt.costs.texts import typical_texts

    own = (options.images, options.class_count)
    found: list[tuple[str, int, Texts, bool, str]] = []
    if any(each is not None for each in own):
        if None in own:
            raise OtptError("A data set of your own needs both --images N and --class-count C; one of them was given.")
        if options.class_count < 2:
            raise OtptError(f"The number of classes is {options.class_count}; expected 2 or more.")
        found.append(("own images", options.images, typical_texts(options.class_count), True, "fine-grained"))
    elif not options.datasets:
        raise OtptError(
            "No data set was given; expected names such as 'dtd cars' ('otpt datasets' lists them), 'paper', or "
            "--images N --class-count C for images of your own."
        )
    return found + [_entry(name) for name in _names(options.datasets)]


def _names(given: list[str]) -> list[str]:
    from otpt.data.registered.entry import builtin_entries

    paper = list(builtin_entries())[:PAPER_SETS]
    return list(dict.fromkeys(each for name in given for each in (paper if name == "paper" else [name])))


def _entry(name: str) -> tuple[str, int, Texts, bool, str]:
    from otpt.costs import texts_of
    from otpt.data import find_entry, list_datasets, load_dataset

    if name.startswith("emoji/"):
        data = load_dataset(name)
        return name, len(data), texts_of(tuple(data.class_names)), data.augmix, data.family
    entry = find_entry(name)
    if entry is None or entry.test_images is None:
        raise unknown("data set", name, [each.name for each in list_datasets()])
    names = entry.class_list().names
    return entry.name, entry.test_images, texts_of(tuple(names), entry.prompt), entry.augmix, entry.family


def plan_data(
    rows: list[Planned], methods: Sequence[Method], device: Device, options: argparse.Namespace
) -> dict[str, Any]:
    """A plan as plain data."""
    return {
        "predicted": True,
        "backbone": options.backbone,
        "methods": [method.name for method in methods],
        "views": options.views,
        "precision": options.precision,
        "device": {"name": device.name, "title": device.title, "assumed": device.assumed, "cores": device.cores},
        "machines": options.machines,
        "datasets": [_row(each) for each in rows],
        "flops": sum(each.flops for each in rows),
        "hours": sum(each.hours for each in rows),
        "memory_bytes": max(each.memory.bytes for each in rows),
        "published": {"device": "a6000", "seconds": [0.21, 0.26], "of": "the official O-TPT scripts, ViT-B/16"},
    }


def _row(planned: Planned) -> dict[str, Any]:
    cost = planned.cost
    return {
        "dataset": planned.dataset,
        "images": planned.images,
        "seeds": planned.seeds,
        "classes": planned.classes,
        "views": cost.views,
        "flops_per_image": {"image": cost.image.flops, "text": cost.text.flops, "rest": cost.rest.flops},
        "bytes_per_image": cost.all.bytes,
        "synchronisations_per_image": cost.synchronisations,
        "text_passes": cost.passes,
        "seconds": {"device": planned.device_seconds, "views": planned.view_seconds, "image": planned.seconds},
        "hours": planned.hours,
        "memory_bytes": planned.memory.bytes,
    }


def _print(rows: list[Planned], device: Device, options: argparse.Namespace) -> None:
    from otpt.evaluation.spans import duration

    print_columns(
        [
            Column("data set", [each.dataset for each in rows], is_name=True),
            Column("images", [f"{each.images:,}" for each in rows]),
            Column("classes", [str(each.classes) for each in rows]),
            Column("TFLOP/image", [f"{each.cost.all.flops / 1e12:.3g}" for each in rows]),
            Column("text %", [f"{100 * each.cost.text.flops / each.cost.all.flops:.0f}" for each in rows]),
            Column("s/image", [f"{each.seconds:.3g}" for each in rows]),
            Column("time", [duration(3600 * each.hours) for each in rows]),
            Column("GB", [f"{each.memory.bytes / 1e9:.1f}" for each in rows]),
        ]
    )
    hours = sum(each.hours for each in rows)
    several = f" on each of {options.machines} machines" if options.machines > 1 else ""
    print(
        f"\nAll together {sum(each.flops for each in rows):.3g} operations, {duration(3600 * hours)}{several}: a "
        f"prediction for {device.title} ({device.assumed})."
    )
    if device.kind == "gpu" and any(each.view_seconds / device.cores > each.device_seconds for each in rows):
        print(f"The {device.cores} cores that make the views are the limit, not the device; --cores N plans for more.")
    if device.memory is not None and any(each.memory.bytes > device.memory for each in rows):
        print(f"That is more memory than the device's {device.memory / 1e9:.0f} GB.")
    if device.name == "a6000":
        print(PUBLISHED)

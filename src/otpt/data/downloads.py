"""Sources of the data sets: addresses, sizes, checksums and licences (``downloads.toml``)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import pydantic.dataclasses
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from otpt.arguments import checked
from otpt.errors import OtptError, describe_error
from otpt.files import parse_toml, read_text
from otpt.plugins import load_installed_plugins, restorable
from otpt.records import describe_mistake

_STRICT = ConfigDict(extra="forbid")
_GOOGLE_DRIVE = "https://drive.google.com/file/d/{}/view"


@pydantic.dataclasses.dataclass(frozen=True, config=_STRICT)
class RemoteFile:
    """One file of a data set; the attributes are described in ``downloads.toml``."""

    name: Annotated[str, Field(pattern=r"^\w[\w.-]*$")]
    url: str = ""
    drive: str = ""
    size: Annotated[int, Field(ge=0)] | None = None
    md5: str = ""
    sha256: str = ""
    place: Mapping[str, str] = Field(default_factory=dict)
    inner: str = ""
    to: str = ""

    @property
    def is_list(self) -> bool:
        """Whether it is a split file rather than an archive."""
        return bool(self.to)

    @property
    def address(self) -> str:
        """Public address, or "" of a file that needs an account."""
        return _GOOGLE_DRIVE.format(self.drive) if self.drive else self.url

    @property
    def checksum(self) -> tuple[str, str]:
        """Algorithm and hexadecimal digest; both "" if none is published."""
        if self.sha256:
            return "sha256", self.sha256
        return ("md5", self.md5) if self.md5 else ("", "")


@pydantic.dataclasses.dataclass(frozen=True, config=_STRICT)
class Download:
    """Where a data set comes from; the attributes are described in ``downloads.toml``."""

    page: str = ""
    licence: str = ""
    account: str = ""
    next: str = ""
    prepare: str = ""
    same_as: str = ""
    note: str = ""
    test_images: Annotated[int, Field(ge=1)] | None = None
    files: tuple[RemoteFile, ...] = ()

    @property
    def size(self) -> int | None:
        """Bytes of all files, or None if one is unknown."""
        sizes = [file.size for file in self.files if file.size is not None]
        return sum(sizes) if self.files and len(sizes) == len(self.files) else None

    @property
    def known_size(self) -> int:
        """Bytes of the files whose size is known."""
        return sum(file.size or 0 for file in self.files)

    @property
    def is_automatic(self) -> bool:
        """Whether all files have public addresses."""
        return bool(self.files) and all(file.address for file in self.files)


Downloads = Mapping[str, Download]
"""Data set → where it comes from."""

_ADDED: dict[str, Download] = restorable({})


@checked
def register_downloads(downloads: Downloads) -> None:
    """Register the sources of a plugin's data sets."""
    _ADDED.update(downloads)


@checked
def published_downloads(sources: str | Path | None = None) -> Downloads:
    """Return the sources of all data sets; the tables of a TOML file replace those of the same name."""
    load_installed_plugins("datasets")
    replaced = {} if sources is None else read_downloads(read_text(Path(sources), "table of sources"), str(sources))
    return MappingProxyType({**_builtin(), **_ADDED, **replaced})


@cache
def _builtin() -> Downloads:
    text = resources.files(__package__).joinpath("downloads.toml").read_text(encoding="utf-8")
    return read_downloads(text, "downloads.toml")


@checked
def read_downloads(text: str, name: str) -> dict[str, Download]:
    """Read sources from TOML; ``name`` is the file in errors."""
    try:
        return TypeAdapter(dict[str, Download]).validate_python(parse_toml(text))
    except ValidationError as error:
        raise OtptError(f"The table of sources {name!r} has a mistake: {describe_mistake(error)}.") from None
    except ValueError as error:
        raise OtptError(f"The table of sources {name!r} is not valid TOML: {describe_error(error)}.") from None

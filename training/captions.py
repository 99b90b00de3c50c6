"""What is said of an image: a template around the emoji's name, now and then with a keyword."""

from __future__ import annotations

import random
from collections.abc import Sequence

import open_clip
import torch
from torch import Tensor

from .names import Emoji

PROMPT = "a photo of a {}."  # the bench's prompt and the paper's: half of all captions
TEMPLATES = (
    "a photo of the {}.", "a photo of {}.", "an emoji of a {}.", "an emoji of {}.", "an image of a {}.",
    "a drawing of a {}.", "a drawing of the {}.", "an icon of a {}.", "a cartoon of a {}.", "a sketch of a {}.",
    "a painting of a {}.", "an image of a {}.", "an example of a {}.", "a symbol of a {}.", "a small photo of a {}.",
    "a blurry photo of a {}.", "a black and white photo of a {}.", "a photo of the cool {}.",
    "a good photo of a {}.", "a photo of one {}.", "this is a {}.", "there is a {} here.", "the {}.", "a {}.", "{}.",
    "{}",
)  # fmt: skip
PROMPT_SHARE, KEYWORD_SHARE = 0.5, 0.15


class Captions:
    """Random captions of emoji as token ids.

    The ids are compact: positions in ``rows``, CLIP's ids of all tokens that any caption can contain, in
    CLIP's order. So only those rows are trained, and the end token still has the highest id.
    """

    def __init__(self, emoji: Sequence[Emoji]) -> None:
        self.emoji = emoji
        self._tokenizer = open_clip.tokenizer.SimpleTokenizer()
        self._cache: dict[str, Tensor] = {}
        self.rows = self._token_rows()
        self._compact = {int(row): index for index, row in enumerate(self.rows)}

    def prompts(self) -> Tensor:
        """(V, 77): every name in the bench's prompt."""
        return torch.stack([self._ids(PROMPT.format(entry.name)) for entry in self.emoji])

    def draw(self, indices: Sequence[int], rng: random.Random) -> Tensor:
        """(N, 77): one caption for each of ``emoji[indices]``."""
        return torch.stack([self._ids(self._caption(self.emoji[index], rng)) for index in indices])

    def _token_rows(self) -> Tensor:
        texts = [PROMPT.format(""), *(template.format("") for template in TEMPLATES)]
        for entry in self.emoji:
            texts += [entry.name, f"{entry.name}.", f"{entry.name}, x."]
            texts += [word for keyword in entry.keywords for word in (keyword, f"{keyword}.")]
        return torch.cat([self._tokenizer([text])[0] for text in texts]).unique()

    def _caption(self, entry: Emoji, rng: random.Random) -> str:
        template = PROMPT if rng.random() < PROMPT_SHARE else rng.choice(TEMPLATES)
        if entry.keywords and rng.random() < KEYWORD_SHARE:
            return template.format(f"{entry.name}, {rng.choice(entry.keywords)}")
        return template.format(entry.name)

    def compact(self, ids: Tensor) -> Tensor:
        """CLIP's ids → positions in ``rows``."""
        return torch.tensor([self._compact[number] for number in ids.flatten().tolist()]).view(ids.shape)

    def _ids(self, text: str) -> Tensor:
        if text not in self._cache:
            self._cache[text] = self.compact(self._tokenizer([text])[0])
        return self._cache[text]

"""Class texts as a trie: every common beginning of texts once.

Nodes stand in depth-first order (``walk`` of ``beginnings.py``): those below a node follow it without a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from otpt.prompts.encoders.beginnings import Blocks, Text, walk
from otpt.prompts.tokens import PromptTokens


@dataclass(frozen=True)
class Trie:
    """A trie in depth-first order.

    Attributes:
        texts: which ones, in the order of their tokens.
        places: for each node a text that has it, and the position; a node has as many ancestors as its position says.
        paths: for each node its ancestors from the first token on, and the node itself.
        ends: for each text the node of its last token.
    """

    texts: list[int] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    paths: list[tuple[int, ...]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def add(self, index: int, text: Text, shared: int) -> None:
        """A further text, the first ``shared`` tokens of which are those of the text before it."""
        path = self.paths[self.ends[-1]][:shared] if self.ends else ()
        for position in range(len(path), len(text)):
            path = (*path, len(self.places))
            self.places.append((index, position))
            self.paths.append(path)
        self.texts.append(index)
        self.ends.append(path[-1])


def class_texts(tokens: PromptTokens, lengths: Tensor) -> list[Text]:
    """The text of each class, cut to its length (C,)."""
    what = tokens.ids.scatter(1, tokens.slots, -1 - tokens.rows)
    return [tuple(own[:length]) for own, length in zip(what.tolist(), lengths.tolist(), strict=True)]


def make_tries(texts: Sequence[Text], nodes_that_fit: int) -> list[Trie]:
    """The trie of all texts, or several of consecutive texts with at most that many nodes (at least one text each)."""
    tries = [Trie()]
    for index, text, shared in walk(texts):
        if tries[-1].ends and len(tries[-1].places) + len(text) - shared > nodes_that_fit:
            tries.append(Trie())
        tries[-1].add(index, text, shared)
    return tries


def sight(trie: Trie, blocks: Blocks) -> tuple[Tensor, Tensor]:
    """What the nodes of each block of T consecutive ones may see; the last block is filled up.

    An ancestor that is in a block before is an ancestor of the block's first node too, since in depth-first order all
    nodes between the two are below it. So few nodes from outside serve a whole block.

    Returns:
        (K, A) the ancestors of each block's first node, 0 where there are fewer; and (K, T, A + T) whether a node may
        see each of these, and each node of its block. What fills the last block sees itself.
    """
    block, most = blocks.rows, blocks.outside
    starts = range(0, len(trie.places), block)
    ancestors = torch.zeros(len(starts), most, dtype=torch.long)
    visible = torch.zeros(len(starts), block, most + block, dtype=torch.bool)
    visible[:, :, most:] = torch.eye(block, dtype=torch.bool)
    which, row, column = [], [], []
    for k, start in enumerate(starts):
        outside = trie.paths[start][:-1]
        ancestors[k, : len(outside)] = torch.tensor(outside, dtype=torch.long)
        for i, path in enumerate(trie.paths[start : start + block]):
            seen = [depth if node < start else most + node - start for depth, node in enumerate(path)]
            which += [k] * len(seen)
            row += [i] * len(seen)
            column += seen
    visible[which, row, column] = True
    return ancestors, visible

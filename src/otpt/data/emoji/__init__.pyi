from .sets import EMOJI_SETS, EmojiSet, load_emoji

__all__ = ["EMOJI_SETS", "EmojiSet", "load_emoji"]

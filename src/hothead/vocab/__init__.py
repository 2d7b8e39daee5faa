"""What a hot vocabulary is: token maps, their files, counting tokens and ranking them."""

from hothead.vocab.token_map import TokenMap

__all__ = ["TokenMap"]

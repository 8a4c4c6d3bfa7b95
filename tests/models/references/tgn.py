"""TGN's reference has a file of its own: other tests use it as well."""

from plain_tgn import PlainTGN as Reference

__all__ = ["Reference"]

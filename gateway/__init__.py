"""prefixgate: a prefix-aware reverse proxy for LLM inference servers."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("prefixgate")
except PackageNotFoundError:
    __version__ = "0+source"

"""The version of the installed distribution."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("prefixgate")
except PackageNotFoundError:
    VERSION = "0+source"

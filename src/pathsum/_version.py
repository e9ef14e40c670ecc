"""The version number, read by both the build and the package."""

__version__ = "1.0.0rc1"

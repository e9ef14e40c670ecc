"""The version, in its one place: the build and the package both read it from here."""

__version__ = "0.1.0"

"""The paper's claims, each measured with the library: a section a file."""

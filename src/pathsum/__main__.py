"""`python -m pathsum` is the `pathsum` command."""

from pathsum.cli.main import run

if __name__ == "__main__":
    run()

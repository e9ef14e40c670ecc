"""`python -m pathsum` is the `pathsum` command."""

import sys


def run() -> None:
    """The entry point of the installed command; an interrupt while it is imported ends it too."""
    try:
        from pathsum.cli.main import run_command
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    run_command()


if __name__ == "__main__":
    run()

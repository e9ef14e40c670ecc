"""A view of a result as a page of its own: one file, nothing loaded from anywhere."""

import html
import sys
from pathlib import Path

STYLE = (
    "body{font-family:sans-serif;margin:2em;color:#222;background:#fff}"
    "table{border-collapse:collapse}td,th{padding:2px 8px}caption{font-weight:bold}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}}"
)


def write_page(file: Path, title: str, body: str) -> None:
    """Write a page around an element."""
    from pathsum.errors import FailedError

    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>"
        f"<body>{body}</body></html>\n"
    )
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise FailedError(f"cannot write {file} ({error})") from error
    print(f"written to {file}", file=sys.stderr)

"""The explorer's local server."""

from pathsum.server.explore import explore
from pathsum.server.running import HOST, PORT, ExplorerServer

__all__ = ["HOST", "PORT", "ExplorerServer", "explore"]

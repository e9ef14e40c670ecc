"""The explorer's local server.

explore    `explore`: a widget in a notebook, a server elsewhere
running    a server in a thread or in the foreground
app        the application: the bundle's files, and the questions
guard      which requests are accepted
"""

from pathsum.server.explore import explore
from pathsum.server.running import HOST, PORT, ExplorerServer

__all__ = ["HOST", "PORT", "ExplorerServer", "explore"]

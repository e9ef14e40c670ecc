"""The explorer's local server.

running   `explore`: a widget in a notebook; elsewhere a server, in a thread or in the foreground
app       the application: the bundle's files, the questions, and answers with their progress
guard     access control: host names, origins, and the token
"""

from pathsum.explorer.server.running import ExplorerServer, explore

__all__ = ["ExplorerServer", "explore"]

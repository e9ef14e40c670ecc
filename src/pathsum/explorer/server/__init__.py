"""The explorer's local server.

running      `explore`: a widget in a notebook; elsewhere a server, in a thread or in the foreground
app          the application: the bundle's files, the questions, and answers with their progress
queue        how many answers are computed at once
guard        which requests are accepted
access       the token that they carry
connections  how many there may be, and how long each may wait
"""

from pathsum.explorer.server.running import ExplorerServer, explore

__all__ = ["ExplorerServer", "explore"]

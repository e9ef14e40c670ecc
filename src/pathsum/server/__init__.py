"""The explorer's local server.

explore      `explore`: a widget in a notebook, a server elsewhere
running      a server in a thread or in the foreground
app          the application: the bundle's files, and the questions
queue        how many answers are computed at once
streaming    progress of an answer that takes a while
guard        which requests are accepted
access       the token that they carry
connections  how many there may be, and how long each may wait
"""

from pathsum.server.explore import explore
from pathsum.server.running import ExplorerServer

__all__ = ["ExplorerServer", "explore"]

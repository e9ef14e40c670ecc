"""The system's Firefox, driven over Marionette: JSON messages with their length in front, over TCP.

Playwright drives only a Firefox of its own, which the distributions do not have.
"""

import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("firefox", "firefox-esr")
PATIENCE_S = 60.0
PREFERENCES = {
    "marionette.port": 0,
    "app.update.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "toolkit.telemetry.enabled": False,
}


def find_firefox() -> str | None:
    """The command that starts Firefox, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Firefox:
    """One browser with one window."""

    def __init__(self, command: str, profile: Path) -> None:
        lines = [
            f"user_pref({json.dumps(name)}, {json.dumps(value)});\n"
            for name, value in PREFERENCES.items()
        ]
        (profile / "user.js").write_text("".join(lines))
        arguments = ["--marionette", "--headless", "--no-remote", "--profile", str(profile)]
        self._process = subprocess.Popen(
            [command, *arguments],
            env={**os.environ, "HOME": str(profile), "MOZ_REMOTE_SETTINGS_DEVTOOLS": "0"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._number = 0
        try:
            self._socket = socket.create_connection(("127.0.0.1", self._port(profile)), PATIENCE_S)
            self._receive()
            self.ask("WebDriver:NewSession", {"acceptInsecureCerts": False})
        except BaseException:
            self._process.kill()
            raise

    def _port(self, profile: Path) -> int:
        """The port that Firefox chose, which it writes into its profile."""
        file = profile / "MarionetteActivePort"
        end = time.monotonic() + PATIENCE_S
        while not (file.exists() and file.read_text().strip()):
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("Firefox did not open its port")
            time.sleep(0.1)
        return int(file.read_text())

    def ask(self, command: str, params: dict[str, Any] | None = None) -> Any:
        """Send a command and wait for its result."""
        self._number += 1
        text = json.dumps([0, self._number, command, params or {}]).encode()
        self._socket.sendall(str(len(text)).encode() + b":" + text)
        _, _, error, result = self._receive()
        if error is not None:
            raise RuntimeError(f"{command}: {error}")
        return result

    def _receive(self) -> Any:
        length = b""
        while not length.endswith(b":"):
            length += self._read(1)
        return json.loads(self._read(int(length[:-1])))

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise RuntimeError("Firefox closed the connection")
            data += more
        return data

    def goto(self, address: str) -> None:
        """Open an address, from an empty page, so that another hash loads the page again."""
        self.ask("WebDriver:Navigate", {"url": "about:blank"})
        self.ask("WebDriver:Navigate", {"url": address})

    def run(self, script: str) -> Any:
        """What the body of a function returns on the page."""
        return self.ask("WebDriver:ExecuteScript", {"script": script, "args": []})["value"]

    def wait_for(self, script: str) -> Any:
        """Wait until a script returns something that is true."""
        end = time.monotonic() + PATIENCE_S
        while not (found := self.run(script)):
            if time.monotonic() > end:
                text = self.run("return document.body.innerText")
                raise AssertionError(f"never true: {script}\n{text[:2000]}")
            time.sleep(0.2)
        return found

    def close(self) -> None:
        """Quit."""
        self._socket.close()
        self._process.terminate()
        self._process.wait(PATIENCE_S)

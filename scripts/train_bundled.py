"""Train the models that come with pathsum, and put them and their cards into the package.

    python scripts/train_bundled.py [NAME ...]

All of them take hours on two cores. Each trains in runs/bundled/NAME and resumes there if it was
interrupted. The models are those of the preset `bundled`.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "runs" / "bundled"
INTO = ROOT / "src" / "pathsum" / "sources" / "bundled"
# Steps whose weights come with a model: dense where induction forms, few enough for a small wheel.
# A snapshot of two-layer-words has 8 MB, so it comes with none.
SNAPSHOTS = {"two-layer": "0,65,122,169,233,320,441,608,1155,3020,15000"}


def main(names: list[str]) -> None:
    """Train the models named on the command line, or all."""
    from pathsum.training import variants

    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    for name in names or variants("bundled"):
        run = RUNS / name
        begun = (run / "run.json").exists()
        what = [str(run), "--resume"] if begun else [name, "--preset", "bundled", "--out", str(run)]
        command = [sys.executable, "-m", "pathsum", "train", *what]
        subprocess.run(command, env=environment, check=True)
        bundle = [sys.executable, str(ROOT / "scripts" / "bundle_run.py"), str(run), str(INTO)]
        subprocess.run([*bundle, "--steps", SNAPSHOTS.get(name, "")], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])

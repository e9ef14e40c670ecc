"""What each of two processes runs in test_distributed.py."""

import sys
from pathlib import Path

from tests.training.tiny import tiny_recipe

from pathsum.training import train

if __name__ == "__main__":
    import torch.distributed as dist

    text, folder = Path(sys.argv[1]), Path(sys.argv[2])
    dist.init_process_group("gloo")
    train(tiny_recipe(text, steps=12), out=folder / "plain")
    clipped = tiny_recipe(text, steps=12, optimizer__clip=1.0)
    train(clipped, out=folder / "clipped")
    dist.destroy_process_group()

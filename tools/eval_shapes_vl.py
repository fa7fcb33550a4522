"""Measures the demo model on fresh pictures and questions of each kind.

    python tools/eval_shapes_vl.py

The last line reads `overall 97.9 % weakest 94.2 %`.
"""

import argparse
from pathlib import Path

import torch
from shapes_vl import evaluation
from shapes_vl.dialogues import KINDS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, nargs="?", default=Path("models/shapes-vl"))
    parser.add_argument("--count", type=int, default=500, help="questions of each kind")
    parser.add_argument(
        "--seed", type=int, default=1, help="training draws its pictures from other seeds"
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--show", type=int, default=0, help="wrong answers to print for each kind")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    evaluation.run(options.directory, options.count, options.seed, options.kinds, options.show)


if __name__ == "__main__":
    main()

"""Writes texts.npz and pictures.npz, what `bench` and `tune` send to the two pipelines.

Run it only to change them: `python examples/pipelines/make_samples.py`.
"""

from pathlib import Path

import numpy as np
from sentences import sentences

HERE = Path(__file__).resolve().parent
COUNT = 40  # two of them are longer than the model takes


def main() -> None:
    np.savez_compressed(HERE / "texts.npz", text=np.array([[text] for text in sentences()[:COUNT]]))
    sign = (HERE.parent / "inputs" / "sign.png").read_bytes()
    np.savez_compressed(HERE / "pictures.npz", image=np.array([[sign]]))


if __name__ == "__main__":
    main()

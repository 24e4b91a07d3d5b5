"""Write scikit-learn's bundled handwritten digits (1,797 real images, 8×8) to one NumPy file, for PyTorch's example.

The same fifth of the images is held out as in tools/make_digits.py.

    python tools/make_digits_npz.py FOLDER
"""

import argparse
import sys
from pathlib import Path

HELD_OUT = 0.2
SEED = 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder for digits.npz; an existing digits.npz is kept")
    path = parser.parse_args().folder / "digits.npz"
    if path.is_file():
        print(f"{path} exists already")
        return 0
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(SEED).permutation(len(digits.images))
    held_out = int(len(order) * HELD_OUT)
    parts = {"test": order[:held_out], "train": order[held_out:]}
    pixels = (digits.images * (255 / 16)).astype("uint8")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial.npz")
    arrays = {f"{part}_images": pixels[of] for part, of in parts.items()}
    np.savez(partial, **arrays, **{f"{part}_labels": digits.target[of] for part, of in parts.items()})
    partial.rename(path)
    print(f"{path}: {len(parts['train'])} training and {held_out} held-out images")
    return 0


if __name__ == "__main__":
    sys.exit(main())

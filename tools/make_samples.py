"""Write the files that the examples read: digits as images in folders, digits as CSV files, and sentences.

python tools/make_samples.py FOLDER
"""

import csv
import os
import random
import sys
from pathlib import Path

NEUTRAL = ["the", "a", "one", "this", "that", "so", "very", "quite", "day", "tale", "song", "walk"]


def main() -> int:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    write_digits(folder)
    write_sentences(folder)
    print(f"{folder}: images, CSV files and sentences")
    return 0


def write_digits(folder: Path) -> None:
    import numpy as np
    import tensorflow as tf
    from sklearn.datasets import load_digits

    table = load_digits()
    order = np.random.default_rng(0).permutation(len(table.target))
    for number, place in enumerate(order):
        pixels = np.kron(table.images[place] / 16 * 255, np.ones((2, 2))).astype("uint8")[..., None]
        path = folder / "images" / str(table.target[place]) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tf.io.encode_png(pixels).numpy())
    parts = {f"train-{part}": order[part:1437:4] for part in range(4)} | {
        f"test-{part}": order[1437 + part :: 2] for part in range(2)
    }
    for name, places in parts.items():
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([*(f"pixel{n}" for n in range(64)), "digit"])
            writer.writerows([*map(int, table.data[place]), int(table.target[place])] for place in places)


def write_sentences(folder: Path) -> None:
    chance = random.Random(0)
    good, bad = ["bright", "kind", "warm", "fine", "glad"], ["grim", "cold", "dull", "sour", "lost"]
    for part in range(4):
        lines = []
        for _ in range(300):
            label = chance.randint(0, 1)
            words = [chance.choice(NEUTRAL) for _ in range(chance.randint(2, 22))]
            words.insert(chance.randint(0, len(words)), chance.choice(good if label else bad))
            lines.append(f"{label}\t{' '.join(words)}\n")
        (folder / f"sentences-{part}.txt").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

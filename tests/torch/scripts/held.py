"""Train with objects that exist only while the script runs: a temporary folder, an open file, classes and sets.

A thread reads the batches, as in prefetchers.
"""

import os
import pickle
import queue
import tempfile
import threading
from pathlib import Path

import headrace.torch
import torch

WORDS = [f"word{number}" for number in range(60)]


class Item:
    def __init__(self, number):
        self.number = number


class Held(torch.utils.data.Dataset):
    def __init__(self, folder):
        self.folder, self.file = folder, open(folder / "numbers", "rb")  # noqa: SIM115
        self.vocabulary = {word: number for number, word in enumerate(set(WORDS))}

    def __len__(self):
        return len(WORDS)

    def __getitem__(self, index):
        self.file.seek(index * 4)
        number = int.from_bytes(self.file.read(4), "little")
        item = pickle.loads((self.folder / "item").read_bytes())
        return index, number, item.number, self.vocabulary[WORDS[index]]


def read(loader, ahead):
    for batch in loader:
        ahead.put(batch)
    ahead.put(None)


wrong = seen = 0
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    (folder / "numbers").write_bytes(b"".join((7 * number).to_bytes(4, "little") for number in range(len(WORDS))))
    (folder / "item").write_bytes(pickle.dumps(Item(42)))
    try:
        data, ahead = Held(folder), queue.Queue(2)
        loader = headrace.torch.DataLoader(data, 5, shuffle=True)
        for _ in range(4):
            threading.Thread(target=read, args=(loader, ahead), daemon=True).start()
            while (batch := ahead.get()) is not None:
                for index, *made in zip(*(each.tolist() for each in batch), strict=True):
                    wrong += made != [7 * index, 42, data.vocabulary[WORDS[index]]]
                    seen += 1
    finally:
        assert not os.environ.get("HEADRACE_SERVER_NAME"), "a feed server runs a finally block of the script"
print(f"seen: {seen}, wrong: {wrong}, on data hosts: {loader.made_elsewhere}", flush=True)

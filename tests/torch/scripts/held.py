"""What scripts hold while they train: a folder and a file that end with a block, their own classes, sets, threads."""

import argparse
import json
import os
import pickle
import queue
import sqlite3
import tempfile
import threading
from pathlib import Path

import headrace.torch
import torch
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--in_a_thread", type=int, default=0)
args, _ = parser.parse_known_args()
WORDS = [f"word{number}" for number in range(60)]


class Item:
    def __init__(self, number):
        self.number = number


class Tokens:
    def __init__(self, words):
        self.vocabulary = {word: number for number, word in enumerate(set(words))}


class Held(torch.utils.data.Dataset):
    def __init__(self, folder):
        self.tokens, self.file = Tokens(WORDS), open(folder / "numbers", "rb")  # noqa: SIM115
        self.folder, self.database = folder, None

    def __len__(self):
        return len(WORDS)

    def __getitem__(self, index):
        if self.database is None:
            self.database = sqlite3.connect(self.folder / "database")
            self.database.execute("create table if not exists t (x)")
        self.database.execute("select * from t")
        self.file.seek(index * 4)
        number = int.from_bytes(self.file.read(4), "little")
        item = pickle.loads((self.folder / "item").read_bytes())
        return index, number, item.number, self.tokens.vocabulary[WORDS[index]]


def batches(loader):
    """As a prefetcher reads: in a thread of its own."""
    if not args.in_a_thread:
        yield from loader
        return
    ahead = queue.Queue(2)

    def read():
        for batch in loader:
            ahead.put(batch)
        ahead.put(None)

    threading.Thread(target=read, daemon=True).start()
    while (batch := ahead.get()) is not None:
        yield batch


headrace.torch.init()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(3, 1))
wrong = seen = 0
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    (folder / "numbers").write_bytes(b"".join((7 * number).to_bytes(4, "little") for number in range(len(WORDS))))
    (folder / "item").write_bytes(pickle.dumps(Item(42)))
    try:
        data = Held(folder)
        loader = headrace.torch.DataLoader(data, 5, shuffle=True)
        for _ in range(4):
            for indices, numbers, items, tokens in batches(loader):
                model(torch.stack([numbers, items, tokens], 1).float()).sum().backward()
                for index, number, item, token in zip(indices, numbers, items, tokens, strict=True):
                    right = (7 * index, 42, data.tokens.vocabulary[WORDS[index]])
                    wrong += (number, item, token) != right
                    seen += 1
    finally:
        assert not os.environ.get("HEADRACE_SERVER_NAME"), "a feed server runs what is not its"
print("seen:", json.dumps([headrace.torch.rank(), int(seen), int(wrong)]), flush=True)

"""Which of its attributes a dataset changes itself: those may differ from what data hosts have, others may not."""

import random

from headrace.torch.dataset_writes import written_while_training

from tests.torch.test_what_people_write import Numbers


class Cached(Numbers):
    """As people write them: what it reads, what it fills, and what it only calls."""

    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = self.load(index)
        kept = self.recent
        kept.append(index)
        self.seen += 1
        self.counts[index % 3] += 1
        self.by_kind.setdefault("all", []).append(index)
        random.shuffle(self.order)
        self.keep(self.lately, index)
        label = self.labels[index].copy()
        label[0] = self.size
        out = {}
        out["x"] = self.mean + self.transform(self.images[index])
        self.buffer.add_(1)
        return out, label

    def load(self, index):
        return self.images[index] * self.std

    def keep(self, where, index):
        where.append(index)

    def set_epoch(self, epoch):
        self.stage = epoch


FILLED = {"cache", "recent", "seen", "counts", "by_kind", "order", "lately", "buffer", "stage"}


def test_what_a_dataset_fills_is_told_from_what_it_only_reads():
    assert written_while_training(Cached) == FILLED


class Corrected(Numbers):
    """Its `update` and `append` are the training loop's; the sample calls those of containers."""

    def __getitem__(self, index):
        sample, seen = {}, []
        sample.update(x=self.images[index])
        seen.append(index)
        self.log.append(index)
        return type(self).scaled(self, sample), [Corrected.shift(self, each) for each in seen]

    def scaled(self, sample):
        self.calls += 1
        return sample

    def shift(self, each):
        self.shifts += 1
        return each

    def update(self, label):
        self.images = label

    def append(self, image):
        self.appended = image


def test_a_method_is_not_taken_for_the_containers_method_of_that_name():
    assert written_while_training(Corrected) == {"log", "calls", "shifts"}


class Passing(Numbers):
    """Hands what it holds to methods of its own, of which some change what they are given."""

    def __getitem__(self, index):
        self.put(self.filled, index)
        return (
            self.scale(self.level, index),
            self.first(self.read),
            self.keep(index, self.kept),
            self.told(self.unknown),
        )

    @staticmethod
    def put(where, index):
        where[index] = True

    def scale(self, level, index):
        return level * index

    def first(self, values):
        return self.scale(values[0], 2)

    def keep(self, index, where):
        return self.put(where, index)


class Transform:
    def __call__(self, value):
        return value * self.level

    def set_epoch(self, epoch):
        self.level = epoch


def test_what_a_method_of_its_own_only_reads_and_what_nobody_tells_of_an_epoch_is_not_taken_for_written():
    assert written_while_training(Passing) == {"filled", "kept", "unknown"}
    assert written_while_training(Transform) == set()


def test_without_its_source_more_counts_as_written():
    made = {}
    source = (
        "class Made(Numbers):\n    def __getitem__(self, i):\n        self.cache[i] = self.mean\n        return i\n"
    )
    exec(source, {"Numbers": Numbers}, made)
    assert {"cache"} <= written_while_training(made["Made"])

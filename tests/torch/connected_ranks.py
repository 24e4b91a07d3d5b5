"""Connected ranks. Each rank is a process forked from the test's process, which has loaded torch already."""

import multiprocessing
import tempfile

import torch.distributed as dist

from tests.torch.fresh import forget_loaders


def in_ranks(body, folder, world=2):
    """Run a function in connected ranks, and return the ranks' results. If a rank fails, raise its error."""
    fork = multiprocessing.get_context("fork")
    store, answers = f"file://{tempfile.mkdtemp(dir=folder)}/store", fork.Queue()

    def run(rank):
        forget_loaders()
        try:
            dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
            found = body(rank)
            dist.barrier()  # a rank may end only when no other rank needs it
            answers.put((rank, found))
        except Exception as error:
            answers.put((rank, error))

    processes = [fork.Process(target=run, args=(rank,)) for rank in range(world)]
    for each in processes:
        each.start()
    try:
        found = {}
        while len(found) < world:
            rank, found[rank] = answers.get(timeout=120)  # `queue.Empty` means that a rank hangs
            if isinstance(found[rank], Exception):
                raise found[rank]
        return [found[rank] for rank in range(world)]
    finally:
        for each in processes:
            each.kill()
            each.join()

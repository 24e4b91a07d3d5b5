"""Two connected ranks, each in a process of its own."""

import contextlib
import io
import multiprocessing

import torch._dynamo  # noqa: F401  each forked rank that makes an optimizer would import it
import torch.distributed as dist

from tests.torch.fresh import forget_loaders


def in_two_ranks(body, tmp_path):
    """Run a function in two connected ranks; return the output of each. Raise the error of either."""
    fork = multiprocessing.get_context("fork")
    pipes = [fork.Pipe(duplex=False) for _ in range(2)]

    def run(rank, pipe):
        said = io.StringIO()
        forget_loaders()
        try:
            with contextlib.redirect_stdout(said):
                dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=rank, world_size=2)
                body(rank)
                dist.barrier()  # rank 0 holds the store, so it must not end first
            pipe.send(said.getvalue())
        except Exception as error:
            pipe.send(error)

    processes = [fork.Process(target=run, args=(rank, pipe)) for rank, (_, pipe) in enumerate(pipes)]
    for each in processes:
        each.start()
    try:
        assert pipes[1][0].poll(60), "rank 1 hangs"
        found = [pipes[1][0].recv()]
        if isinstance(found[0], Exception):
            raise found[0]
        assert pipes[0][0].poll(60), "rank 0 hangs"
        return [pipes[0][0].recv(), *found]
    finally:
        for each in processes:
            each.kill()
            each.join()

"""A checkpoint holds the bare model: it does not depend on how the script compiles and distributes the model."""

import copy

import pytest
import torch
import torch.distributed as dist
from headrace.errors import InputError
from headrace.torch.checkpoint import Checkpoint
from torch.nn.parallel import DistributedDataParallel


class Place:
    """A stand-in for a loader, with the state that checkpoints save beside the model."""

    def __init__(self):
        self.state = {"seed": 0, "epoch": 1, "position": 0}

    def load_state_dict(self, state):
        self.state = state


class Net(torch.nn.Module):
    """A network with a part named `module`, the name under which DistributedDataParallel holds its model."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))

    def forward(self, x):
        return self.module(self.norm(x))


def compiled(model):
    return torch.compile(model, backend="eager")


def by_name(model):
    return model.named_parameters()


def by_index(model):
    return model.parameters()


WRAPPERS = {
    "plain": lambda model: model,
    "DDP": DistributedDataParallel,
    "compile": compiled,
    "compile(DDP)": lambda model: compiled(DistributedDataParallel(model)),
    "DDP(compile)": lambda model: DistributedDataParallel(compiled(model)),
}
if not torch.cuda.is_available():  # if there is a GPU, DataParallel needs the model on it
    WRAPPERS["DataParallel"] = torch.nn.DataParallel
wrappers = pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)


@pytest.fixture(scope="module", autouse=True)
def connected():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def make(wrap, parameters):
    """Return a wrapped network, the network itself, and an optimizer that keeps two tensors for each weight."""
    net = Net()
    model = wrap(net)
    return model, net, torch.optim.Adam(parameters(model), 0.01)


def step(model, optimizer, seed):
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def values_of(net, optimizer):
    """Return all tensors of a network and of its optimizer, in an order that does not depend on names."""
    moments = [optimizer.state[each][name] for each in net.parameters() for name in ("exp_avg", "exp_avg_sq", "step")]
    return [each.detach().clone() for each in (*net.parameters(), *net.buffers(), *moments)]


@pytest.mark.parametrize("parameters", [by_index, by_name])
@wrappers
@pytest.mark.parametrize("wrap_again", WRAPPERS.values(), ids=WRAPPERS)
def test_a_training_resumes_in_any_nesting_of_compile_and_ddp_as_if_it_had_not_stopped(
    tmp_path, wrap, wrap_again, parameters
):
    model, net, optimizer = make(wrap, parameters)
    step(model, optimizer, seed=1)
    Checkpoint(tmp_path).save(model, optimizer, Place().state)
    step(model, optimizer, seed=2)

    again, net_again, optimizer_again = make(wrap_again, parameters)
    names_before = copy.deepcopy([group.get("param_names") for group in optimizer_again.param_groups])
    assert Checkpoint(tmp_path).restore(again, optimizer_again, Place()) == 1
    step(again, optimizer_again, seed=2)

    expected, found = values_of(net, optimizer), values_of(net_again, optimizer_again)
    assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))
    assert [group.get("param_names") for group in optimizer_again.param_groups] == names_before


@wrappers
def test_the_weights_in_a_checkpoint_have_the_names_of_the_bare_model(tmp_path, wrap):
    model, _, optimizer = make(wrap, by_index)
    Checkpoint(tmp_path).save(model, optimizer, Place().state)
    saved = torch.load(tmp_path / "epoch-0001" / "state.pt", weights_only=True)
    assert list(saved["model"]) == list(Net().state_dict())


def test_a_checkpoint_of_another_model_is_refused_in_one_line(tmp_path):
    model, _, optimizer = make(compiled, by_index)
    Checkpoint(tmp_path).save(model, optimizer, Place().state)
    other = torch.nn.Linear(1, 1)
    with pytest.raises(InputError, match="does not fit the model, the optimizer or the objects in Checkpoint"):
        Checkpoint(tmp_path).restore(other, torch.optim.Adam(other.parameters()), Place())

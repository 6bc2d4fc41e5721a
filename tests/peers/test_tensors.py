"""Tensors of torch through the verbs: what they hold afterwards, that nothing is copied, and what is refused."""

from pathlib import Path

from harness import run

VERBS = """
import torch
import uform

with uform.Mesh.bootstrap(None, None) as mesh:
    index, count = mesh.index, mesh.count

    def own(dtype, length=257, of=index):
        return (torch.arange(length) % 7 + of + 1).to(dtype)

    def total(dtype, length=257):
        return sum(own(dtype, length, of) for of in range(count))

    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.uint8,
                  torch.int16, torch.int32, torch.int64):
        tensor = own(dtype)
        place = tensor.data_ptr()
        mesh.all_reduce(tensor)
        assert tensor.data_ptr() == place and torch.equal(tensor, total(dtype)), dtype
        out = torch.zeros(257, dtype=dtype)
        mesh.all_reduce(own(dtype), out=out)
        assert torch.equal(out, total(dtype)), dtype

    flags = torch.tensor([index == 0, True, False])
    mesh.all_reduce(flags, uform.ReduceOp.MAX)
    assert flags.tolist() == [True, True, False]

    # Not contiguous, and without dimensions.
    matrix = own(torch.float32, 60).reshape(6, 10)
    mesh.all_reduce(matrix.t())
    assert torch.equal(matrix, total(torch.float32, 60).reshape(6, 10))
    loss = torch.tensor(float(index))
    mesh.all_reduce(loss, uform.ReduceOp.AVERAGE)
    assert loss.item() == (count - 1) / 2

    tensor = own(torch.float32)
    mesh.broadcast(tensor, 1)
    assert torch.equal(tensor, own(torch.float32, of=1))
    tensor = own(torch.float32)
    mesh.reduce(tensor, 0)
    assert index != 0 or torch.equal(tensor, total(torch.float32))
    out = torch.empty(count, 257)
    mesh.all_gather(own(torch.float32), out)
    assert all(torch.equal(out[of], own(torch.float32, of=of)) for of in range(count))
    out = torch.empty(10)
    mesh.reduce_scatter(own(torch.float32, 10 * count), out)
    assert torch.equal(out, total(torch.float32, 10 * count)[10 * index : 10 * index + 10])
    out = torch.empty(2 * count)
    mesh.all_to_all(own(torch.float32, 2 * count), out)
    parts = [own(torch.float32, 2 * count, of)[2 * index : 2 * index + 2] for of in range(count)]
    assert torch.equal(out, torch.cat(parts))
    if index == 0:
        mesh.send(own(torch.bfloat16), 1)
    elif index == 1:
        out = torch.empty(257, dtype=torch.bfloat16)
        mesh.receive(out, 0)
        assert torch.equal(out, own(torch.bfloat16, of=0))

    # Memory of the mesh as a tensor: what one writes, the other reads.
    shared = mesh.arena(4096).array((8, 8), dtype=uform.Dtype.BF16)
    tensor = torch.from_dlpack(shared)
    assert tensor.dtype == torch.bfloat16 and tensor.shape == (8, 8)
    tensor.fill_(index + 1)
    mesh.all_reduce(shared)
    assert torch.equal(tensor, torch.full((8, 8), sum(range(1, count + 1)), dtype=torch.bfloat16))

    tracked, imaginary = torch.zeros(3, requires_grad=True), torch.zeros(3, dtype=torch.complex64)
    for wrong in (tracked, imaginary, torch.zeros(3, device="meta")):
        try:
            mesh.all_reduce(wrong)
        except (uform.UformError, TypeError, BufferError, RuntimeError) as error:
            print("refused:", type(error).__name__, error)
        else:
            raise AssertionError(wrong)
    mesh.barrier()
    print("played")
"""

TRAINER = """
import torch
import uform

# The same model in torch alone, all samples in one process.
torch.manual_seed(1)
inputs, targets = torch.randn(24, 5), torch.randn(24, 3)
start = torch.randn(5, 3) / 3

def gradient(weights, rows):
    weights = weights.detach().clone().requires_grad_()
    ((inputs[rows] @ weights - targets[rows]) ** 2).mean().backward()
    return weights.grad

alone = start.clone().requires_grad_()
optimizer = torch.optim.AdamW([alone], lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
for _ in range(10):
    alone.grad = gradient(alone, slice(None))
    optimizer.step()

with uform.Mesh.bootstrap(None, None) as mesh:
    share = 24 // mesh.count
    rows = slice(mesh.index * share, (mesh.index + 1) * share)
    trainer = uform.Trainer(mesh, {"weights": start}, uform.AdamW(0.01))
    for _ in range(10):
        weights = torch.from_dlpack(trainer.parameters["weights"])
        torch.from_dlpack(trainer.gradients["weights"]).copy_(gradient(weights, rows))
        trainer.step()
    weights = torch.from_dlpack(trainer.parameters["weights"])
    torch.testing.assert_close(weights, alone.detach(), rtol=1e-5, atol=1e-6)
    print("played")
"""


def test_tensors_go_through_every_verb(tmp_path: Path) -> None:
    for text in run(3, VERBS, tmp_path):
        assert text.count("refused: ") == 3, text
        assert "played" in text, text


def test_a_trainer_steps_as_the_optimizer_of_torch_does(tmp_path: Path) -> None:
    for text in run(2, TRAINER, tmp_path):
        assert "played" in text, text

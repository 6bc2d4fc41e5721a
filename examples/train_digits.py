"""Trains a small neural network on handwritten digits, in any number of processes.

python examples/train_digits.py                          one process
uform launch --processes 2 examples/train_digits.py      two
torchrun --nproc-per-node 2 examples/train_digits.py     two, started by torchrun

The network, its loss and its gradients are plain NumPy. Each process takes its share of every batch; the mesh adds
up the gradients and steps the parameters. The seed and the batch are those of the whole run, so the loss of a step does
not depend on how many processes there are.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The matrices are small: threads of NumPy's own would only take the cores from the other processes.
for _library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

import numpy as np
import uform
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from tqdm import tqdm

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Weights = Mapping[str, Floats]

PIXELS, HIDDEN, CLASSES = 64, 128, 10


@dataclass(frozen=True)
class Digits:
    """Images of 8 x 8 pixels, one a row, scaled to 0..1, and the digits they show."""

    images: Floats
    labels: Integers

    def take(self, rows: Integers) -> "Digits":
        """Give some of them."""
        return Digits(self.images[rows], self.labels[rows])


def load(seed: int) -> tuple[Digits, Digits]:
    """Give the digits to learn from, and the fifth that is held out."""
    images, labels = load_digits(return_X_y=True)
    digits = Digits(images / 16.0, labels.astype(np.int64))
    order = np.random.default_rng(seed).permutation(len(labels))
    held_out = len(labels) // 5
    return digits.take(order[held_out:]), digits.take(order[:held_out])


def initial_weights(seed: int) -> dict[str, Floats]:
    """Draw the weights to begin with, the same in every process."""
    generator = np.random.default_rng(seed)
    return {
        "hidden.weight": generator.normal(0.0, np.sqrt(2.0 / PIXELS), (PIXELS, HIDDEN)),
        "hidden.bias": np.zeros(HIDDEN),
        "output.weight": generator.normal(0.0, np.sqrt(1.0 / HIDDEN), (HIDDEN, CLASSES)),
        "output.bias": np.zeros(CLASSES),
    }


def forward(weights: Weights, images: Floats) -> tuple[Floats, Floats]:
    """Give the hidden activations and the log-probability of each digit."""
    hidden = np.maximum(images @ weights["hidden.weight"] + weights["hidden.bias"], 0.0)
    logits = hidden @ weights["output.weight"] + weights["output.bias"]
    logits -= logits.max(axis=1, keepdims=True)
    return hidden, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def backward(weights: Weights, gradients: Weights, batch: Digits) -> float:
    """Write the gradients of the mean loss over the batch, and give the sum of its losses."""
    count = len(batch.labels)
    if count == 0:
        for gradient in gradients.values():
            gradient.fill(0.0)
        return 0.0
    hidden, log_probabilities = forward(weights, batch.images)
    rows = np.arange(count)
    output = np.exp(log_probabilities)
    output[rows, batch.labels] -= 1.0
    output /= count
    gradients["output.weight"][...] = hidden.T @ output
    gradients["output.bias"][...] = output.sum(axis=0)
    inner = (output @ weights["output.weight"].T) * (hidden > 0.0)
    gradients["hidden.weight"][...] = batch.images.T @ inner
    gradients["hidden.bias"][...] = inner.sum(axis=0)
    return -float(log_probabilities[rows, batch.labels].sum())


def batches(count: int, batch: int, seed: int, first_step: int) -> Iterator[Integers]:
    """Give the rows of each batch from a step on, without end; a new order for every pass over the data."""
    per_pass = max(count // batch, 1)
    step = first_step
    while True:
        turn, position = divmod(step, per_pass)
        order = np.random.default_rng([seed, turn]).permutation(count)
        yield order[position * batch : (position + 1) * batch]
        step += 1


class Run:
    """The training of one network over a mesh."""

    def __init__(self, mesh: uform.Mesh, arguments: argparse.Namespace) -> None:
        self.mesh = mesh
        self.arguments = arguments
        self.training, self.held_out = load(arguments.seed)
        optimizer = uform.AdamW(2e-3, weight_decay=1e-3)
        self.trainer = uform.Trainer(mesh, initial_weights(arguments.seed), optimizer)
        # Views of the trainer's memory: stepping changes the weights in place.
        self.weights = {name: np.asarray(array) for name, array in self.trainer.parameters.items()}
        self.gradients = {name: np.asarray(array) for name, array in self.trainer.gradients.items()}
        self.communication_seconds = 0.0

    def share(self, rows: Integers) -> Integers:
        """Give this process's part of some rows; parts differ by one row at most."""
        return np.array_split(rows, self.mesh.count)[self.mesh.index]

    def add_up(self, numbers: NDArray[Any]) -> None:
        """Replace numbers by their sums over all processes."""
        start = time.perf_counter()
        self.mesh.all_reduce(numbers)
        self.communication_seconds += time.perf_counter() - start

    def step(self, rows: Integers) -> float:
        """Train on one batch and give its mean loss over all processes."""
        share = self.share(rows)
        loss = backward(self.weights, self.gradients, self.training.take(share))
        report = self.trainer.step(weight=len(share))
        self.communication_seconds += report.communication_seconds
        sums = np.array([loss, len(share)])
        self.add_up(sums)
        return float(sums[0] / sums[1])

    def accuracy(self) -> float:
        """Give the share of held-out digits that the network names rightly."""
        share = self.held_out.take(self.share(np.arange(len(self.held_out.labels))))
        _, log_probabilities = forward(self.weights, share.images)
        counts = np.array([(log_probabilities.argmax(axis=1) == share.labels).sum(), len(share.labels)])
        self.add_up(counts)
        return float(counts[0] / counts[1])

    def train(self, first_step: int) -> tuple[list[float], float]:
        """Train to the last step; give the loss of each step and the held-out accuracy at the end."""
        losses: list[float] = []
        accuracy = self.accuracy()
        start = time.perf_counter()
        self.communication_seconds = 0.0
        rows = batches(len(self.training.labels), self.arguments.batch, self.arguments.seed, first_step)
        steps = range(first_step, self.arguments.steps)
        # One bar for the run: the others draw none.
        with tqdm(steps, desc="training", unit="step", disable=self.mesh.index != 0, file=sys.stderr) as bar:
            for step in bar:
                losses.append(self.step(next(rows)))
                if step % 50 == 49 or step + 1 == self.arguments.steps:
                    accuracy = self.accuracy()
                    seconds = time.perf_counter() - start
                    bar.set_postfix_str(
                        f"loss {losses[-1]:.4f}, held-out accuracy {accuracy:.3f}, "
                        f"{len(losses) / seconds:.0f} steps/s, "
                        f"communication {self.communication_seconds / seconds:.0%}"
                    )
        return losses, accuracy


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train a small neural network on handwritten digits.")
    parser.add_argument("--steps", type=int, default=1000, help="steps of the whole training (default: 1000)")
    parser.add_argument(
        "--batch", type=int, default=128, help="images in a step, over all processes (default: 128)"
    )
    parser.add_argument("--seed", type=int, default=0, help="decides the split, the weights and the batches")
    parser.add_argument(
        "--directory", type=Path, default=Path("checkpoints/digits"), help="folder of the checkpoint"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--losses", type=Path, help="file for the loss of each step")
    arguments = parser.parse_args()
    if arguments.steps < 1 or arguments.batch < 1 or arguments.seed < 0:
        parser.error("--steps and --batch must be 1 or more, --seed 0 or more")
    return arguments


def main() -> None:
    """Join the run, train, save, and say how it went."""
    arguments = parse_arguments()
    with uform.Mesh.bootstrap(None, None) as mesh:
        run = Run(mesh, arguments)
        first_step = run.trainer.load(arguments.directory) if arguments.resume else 0
        start = time.perf_counter()
        losses, accuracy = run.train(first_step)
        seconds = time.perf_counter() - start
        run.trainer.save(arguments.directory, step=max(arguments.steps, first_step))
        if mesh.index != 0:
            return
        if arguments.losses:
            numbered = enumerate(losses, first_step)
            arguments.losses.write_text("".join(f"{step} {loss!r}\n" for step, loss in numbered))
        print(f"{len(losses)} steps in {seconds:.1f} s, held-out accuracy {accuracy:.4f}")
        print(f"checkpoint in {arguments.directory}, go on with --resume")
        print(mesh.topology())


if __name__ == "__main__":
    main()

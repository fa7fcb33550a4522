"""Builds the demo model from nothing: tokenizer, training, weights, evaluation.

    python tools/train_shapes_vl.py --out models/shapes-vl

Everything is drawn from `--seed`. The training takes about an hour on one core of a busy machine.
"""

import argparse
import math
from pathlib import Path

import torch
from shapes_vl import directory, evaluation
from shapes_vl.batches import Plan, stream
from shapes_vl.network import step_loss
from shapes_vl.packing import Batch
from tqdm import tqdm
from transformers import Qwen3VLForConditionalGeneration

WARM_UP = 50  # steps
LOWEST_SHARE = 0.02  # of the learning rates, at the end
NEWS_EVERY = 50  # steps between lines that stay on the screen


def main() -> None:
    options = _parse()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    model = _resumed_model(options) if options.resume else _new_model(options)
    train(model, options)
    directory.save_weights(model, options.out)
    evaluation.run(options.out, options.evaluate, options.seed + 1)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--out", type=Path, default=Path("models/shapes-vl"))
    add("--steps", type=int, default=4200)
    add("--seeing-steps", type=int, default=1500, help="steps before the searching questions")
    add("--rate", type=float, default=3e-3, help="highest learning rate of AdamW")
    add("--matrix-rate", type=float, default=5e-3, help="highest learning rate of Muon")
    add("--threads", type=int, default=1, help="2 is faster only where nothing else runs")
    add("--seed", type=int, default=0)
    add("--evaluate", type=int, default=500, help="questions of each kind at the end")
    add("--save-every", type=int, default=500, help="steps between saved weights")
    add("--resume", type=int, default=0, help="continue at this step from the weights in --out")
    return parser.parse_args()


def _new_model(options: argparse.Namespace) -> Qwen3VLForConditionalGeneration:
    options.out.mkdir(parents=True, exist_ok=True)
    directory.write_tokenizer(options.out, options.seed)
    directory.write_settings(options.out)
    return Qwen3VLForConditionalGeneration(directory.model_config(options.out))


def _resumed_model(options: argparse.Namespace) -> Qwen3VLForConditionalGeneration:
    return Qwen3VLForConditionalGeneration.from_pretrained(options.out, dtype=torch.float32)


def train(model: Qwen3VLForConditionalGeneration, options: argparse.Namespace) -> None:
    """Trains `model` in place; the weights are saved along the way."""
    optimizers = _optimizers(model, options)
    steps = range(options.resume, options.steps)
    batches = stream(options.out, Plan(options.seed, options.seeing_steps), steps)
    progress = tqdm(batches, total=options.steps, initial=options.resume, mininterval=5)
    average = math.nan
    for step, batch in zip(steps, progress, strict=True):
        rise = min(1.0, (step - options.resume + 1) / WARM_UP)
        _set_rates(optimizers, rise * _cosine(step / options.steps))
        loss = _step(model, batch, optimizers)
        average = loss if math.isnan(average) else 0.97 * average + 0.03 * loss
        progress.set_postfix(loss=f"{average:.4f}", refresh=False)
        if (step + 1) % NEWS_EVERY == 0:
            tqdm.write(f"step {step + 1} loss {average:.4f}")
        if (step + 1) % options.save_every == 0:
            directory.save_weights(model, options.out)


def _step(model, batches: list[Batch], optimizers: list[torch.optim.Optimizer]) -> float:
    """One update; the loss before it."""
    loss = step_loss(model, batches)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def _cosine(share: float) -> float:
    """Half a cosine from 1 down to LOWEST_SHARE."""
    return LOWEST_SHARE + (1 - LOWEST_SHARE) * 0.5 * (1 + math.cos(math.pi * share))


def _set_rates(optimizers: list[torch.optim.Optimizer], share: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["highest"] * share


def _optimizers(model, options: argparse.Namespace) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between layers, AdamW for embeddings, norms and biases."""
    matrices, rest = [], []
    for name, parameter in model.named_parameters():
        (matrices if parameter.ndim == 2 and "embed" not in name else rest).append(parameter)
    return [
        torch.optim.Muon(
            [{"params": matrices, "highest": options.matrix_rate}],
            weight_decay=0.01,
            adjust_lr_fn="match_rms_adamw",
        ),
        torch.optim.AdamW(
            [{"params": rest, "highest": options.rate}],
            betas=(0.9, 0.98),
            weight_decay=0.01,
            fused=True,
        ),
    ]


if __name__ == "__main__":
    main()

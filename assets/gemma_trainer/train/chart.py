"""The loss curve as a picture."""

from __future__ import annotations

from pathlib import Path


def draw_loss(metrics: list[dict], path: Path, title: str) -> None:
    """Draw training loss (with a running mean) and held-out loss over steps into a PNG file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    train = [(line["step"], line["loss"]) for line in metrics if "loss" in line]
    held_out = [(line["step"], line["eval_loss"]) for line in metrics if "eval_loss" in line]
    figure, axes = plt.subplots(figsize=(8, 4.5), dpi=120)
    if train:
        steps, losses = zip(*train, strict=True)
        axes.plot(steps, losses, color="#9db7d9", linewidth=1, label="training loss")
        axes.plot(steps, running_mean(losses), color="#1f4e9c", linewidth=2, label="training loss, running mean")
    if held_out:
        axes.plot(*zip(*held_out, strict=True), color="#c4502b", marker="o", label="held-out loss")
    axes.set(xlabel="step", ylabel="loss per trained token", title=title, ylim=(0, None))
    axes.grid(alpha=0.3)
    if train or held_out:
        axes.legend()
    figure.tight_layout()
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    figure.savefig(part)
    part.replace(path)
    plt.close(figure)


def running_mean(values, weight: float = 0.9) -> list[float]:
    """Exponential mean, corrected for its start as in Adam (Kingma and Ba, 2015, section 3)."""
    mean, means = 0.0, []
    for count, value in enumerate(values, start=1):
        mean = weight * mean + (1 - weight) * value
        means.append(mean / (1 - weight**count))
    return means

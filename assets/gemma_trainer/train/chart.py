"""The curves of a run as a picture."""

from __future__ import annotations

from pathlib import Path


def draw_curves(metrics: list[dict], path: Path, title: str, panels: dict[str, str]) -> None:
    """Draw what was logged over steps into a PNG file: a panel for each key, training (with a running mean) and held out.

    `panels`: {key of a line of metrics.jsonl: label of its axis}.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, grid = plt.subplots(len(panels), figsize=(8, 2.5 + 2 * len(panels)), dpi=120, sharex=True, squeeze=False)
    for axes, (key, label) in zip(grid.flat, panels.items(), strict=True):
        _draw(axes, metrics, key)
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    grid[0, 0].set(title=title, ylim=(0, None))
    grid[-1, 0].set_xlabel("step")
    if grid[0, 0].lines:
        grid[0, 0].legend()
    figure.tight_layout()
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    figure.savefig(part)
    part.replace(path)
    plt.close(figure)


def _draw(axes, metrics: list[dict], key: str) -> None:
    train = [(line["step"], line[key]) for line in metrics if key in line]
    held_out = [(line["step"], line[f"eval_{key}"]) for line in metrics if f"eval_{key}" in line]
    if train:
        steps, values = zip(*train, strict=True)
        axes.plot(steps, values, color="#9db7d9", linewidth=1, label="training")
        axes.plot(steps, running_mean(values), color="#1f4e9c", linewidth=2, label="training, running mean")
    if held_out:
        axes.plot(*zip(*held_out, strict=True), color="#c4502b", marker="o", label="held out")


def running_mean(values, weight: float = 0.9) -> list[float]:
    """Exponential mean, corrected for its start as in Adam (Kingma and Ba, 2015, section 3)."""
    mean, means = 0.0, []
    for count, value in enumerate(values, start=1):
        mean = weight * mean + (1 - weight) * value
        means.append(mean / (1 - weight**count))
    return means

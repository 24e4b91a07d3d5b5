"""Pictures of runs and plans, as PNG files or as SVG for a page."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headrace.errors import InputError, SetupError
from headrace.report.candidates import Option
from headrace.report.measured import Measured
from headrace.report.timeline import Series, Timeline

matplotlib.rcParams["text.parse_math"] = False  # a "$" in a name does not begin a formula
COLORS = ("#3b82c4", "#d97706", "#2a9d63", "#b0479a", "#7c6fd6", "#8a8f98")
"""Colors that are readable on a light and on a dark page."""
INK = "#808790"
"""Color of axes and text in PNG files; an SVG element takes the page's own text color instead."""
SIZE = (7.2, 2.9)
MOST_WORKERS = 12
"""Maximum number of workers in one picture."""

Draw = Callable[[Axes], Any]
Runs = Sequence[tuple[Mapping[str, Any], Timeline]]
"""Each run's summary and timeline."""


def figure(draw: Draw, title: str) -> Figure:
    """Return a figure with one pair of axes in which `draw` has drawn."""
    made = Figure(figsize=SIZE, layout="constrained")
    axes = made.add_subplot()
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    draw(axes)
    axes.tick_params(colors=INK, labelsize=8)
    for spine in axes.spines.values():
        spine.set_color(INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(INK)
        label.set_fontsize(8)
    axes.grid(axis="y", color=INK, alpha=0.2, linewidth=0.6)
    legend = axes.get_legend()
    if legend:
        for text in legend.get_texts():
            text.set_color(INK)
    return made


def as_svg(made: Figure) -> str:
    """Return the figure as an SVG element whose text has the page's own color."""
    target = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "headrace"}):
        made.savefig(target, format="svg", transparent=True, metadata={"Date": None})
    svg = target.getvalue()
    return svg[svg.index("<svg") :].replace(INK, "currentColor")


def as_png(made: Figure, path: Path) -> None:
    """Write the figure to a PNG file with a white background."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made.savefig(path, dpi=150, facecolor="white")


def step_times(runs: Runs) -> Draw:
    """Draw step times over time: ideal ones dashed, checkpoints as ticks, restarts and lost hosts as lines."""

    def draw(axes: Axes) -> None:
        colors = _draw_curves(axes, {summary["job_name"]: (run.seconds, run.step_ms) for summary, run in runs}, "ms")
        for color, (summary, run) in zip(colors, runs, strict=True):
            if summary["ideal_step_time_ms"]:
                axes.axhline(summary["ideal_step_time_ms"], color=color, linewidth=1, linestyle="--", alpha=0.7)
            for seconds in run.checkpoints:
                axes.plot([seconds], [0], marker="|", markersize=10, color=color, clip_on=False)
            for seconds, what in run.incidents:
                axes.axvline(seconds, color=color, linewidth=0.9, linestyle=":")
                axes.annotate(
                    what,
                    (seconds, 1),
                    xycoords=("data", "axes fraction"),
                    fontsize=7,
                    color=INK,
                    rotation=90,
                    va="top",
                    ha="right",
                )
        axes.autoscale(axis="x")
        axes.set_xlim(left=min(axes.get_xlim()[0], 0))  # hosts may be lost before the first step

    return draw


def waiting(runs: Runs) -> Draw:
    """Draw the share of each step spent waiting for data, over time."""
    curves = {summary["job_name"]: (run.seconds, run.input_bound_share) for summary, run in runs}
    return lambda axes: _draw_shares(axes, curves, "% of a step")


TOO_SHORT = "no figures: the run trained for less than ten seconds"
"""Text shown in place of curves if no host has reported its utilization."""


def utilization(run: Timeline) -> Draw:
    """Draw each group's mean CPU utilization over time, and its mean GPU utilization if it has GPUs."""

    def draw(axes: Axes) -> None:
        _draw_shares(axes, run.utilization, "%")
        if not run.utilization:
            axes.text(0.5, 0.5, TOO_SHORT, transform=axes.transAxes, ha="center", va="center", color=INK)

    return draw


def delivered(run: Timeline) -> Draw:
    """Draw each worker's rate over time, in batches per second."""
    shown = dict(itertools.islice(run.delivered.items(), MOST_WORKERS))
    return lambda axes: _draw_curves(axes, shown, "batches/s")


def _draw_shares(axes: Axes, curves: Mapping[str, Series], unit: str) -> None:
    percent = {name: (seconds, [share * 100 for share in shares]) for name, (seconds, shares) in curves.items()}
    _draw_curves(axes, percent, unit)
    axes.set_ylim(0, 103)


def _draw_curves(axes: Axes, curves: Mapping[str, Series], unit: str) -> list[str]:
    """Draw each curve over time, with axes from zero; return the curves' colors."""
    colors = list(itertools.islice(itertools.cycle(COLORS), len(curves)))
    for color, (name, (seconds, values)) in zip(colors, curves.items(), strict=True):
        axes.plot(seconds, values, color=color, linewidth=1.4, marker=".", markersize=3, label=name)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds since the first step")
    axes.set_ylabel(unit)
    if curves:
        axes.legend(frameon=False, fontsize=8)
    return colors


def cpu_by_host(summary: Mapping[str, Any]) -> Draw:
    """Draw each host's CPU seconds by kind of process."""

    def draw(axes: Axes) -> None:
        hosts = summary["hosts"]
        kinds = sorted({kind for host in hosts.values() for kind in host.get("cpu_s", {})})
        left = [0.0] * len(hosts)
        for color, kind in zip(itertools.cycle(COLORS), kinds, strict=False):
            values = [host.get("cpu_s", {}).get(kind, 0.0) for host in hosts.values()]
            axes.barh(list(hosts), values, left=left, color=color, label=kind, height=0.6)
            left = [a + b for a, b in zip(left, values, strict=True)]
        axes.set_ylim(len(hosts) - 0.5 if len(hosts) > 3 else 3.5, -0.5)
        axes.set_xlabel("CPU seconds")
        if kinds:
            axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))

    return draw


def plot_plan(run: Measured, found: Sequence[Option], data_types: Sequence[str], path: Path) -> None:
    """Write a PNG plot of step time by number of data hosts. Each instance type and placement of workers has a curve.

    Raises:
        InputError, SetupError: the name does not end in .png, or the file cannot be written.
    """
    if path.suffix != ".png":
        raise InputError(f"--plot {path}: expected a name that ends in .png")

    def draw(axes: Axes) -> None:
        kinds = dict.fromkeys(each.data_type for each in found if each.data_hosts and each.data_type in data_types)
        for color, kind in zip(itertools.cycle(COLORS), kinds, strict=False):
            for placement, style in (("both", "-"), ("data", "--")):
                curve = [each for each in found if (each.data_type, each.placement) == (kind, placement)]
                curve = [found[0], *curve] if placement == "both" else curve  # found[0] has no data hosts
                label = f"batches by {kind or 'data hosts'} {'and dnn hosts' if placement == 'both' else 'alone'}"
                times_ms = [each.prediction.step_s * 1000 for each in curve]
                axes.plot(
                    [each.data_hosts for each in curve],
                    times_ms,
                    style,
                    color=color,
                    linewidth=1.4,
                    marker="o",
                    markersize=3,
                    label=label,
                )
        axes.axhline(run.work.ideal_step_s * 1000, color=INK, linewidth=1, linestyle=":", label="ideal step")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("data hosts")
        axes.set_ylabel("ms a step")
        axes.legend(frameon=False, fontsize=7, ncols=2)

    try:
        as_png(figure(draw, "predicted step time"), path)
    except OSError as error:
        raise SetupError(f"cannot write {path}: {error.strerror}") from error

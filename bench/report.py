"""A run as a page of Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.measure import METRICS
from bench.shape import Plan, Side
from bench.summary import Line, Spread

_READING: Final = (
    "Medians over the rounds, in brackets the least and the most. Ratios are ours divided by the other side's of the "
    "same round; **bold** where ours is the better. Ours with TLS and rules is divided by ours without."
)


def markdown(
    name: str, run: Mapping[str, Any], plans: Sequence[Plan], lines: Sequence[Line], pictures: Sequence[str]
) -> str:
    """Return the page: the command, the machine, what disturbed the run, a table for each plan, and the pictures."""
    machine, disturbance = run["machine"], run["disturbance"]
    found_machine = (
        f"{machine['cores']} cores ({machine['model']}), {machine['memory_gib']:g} GiB of memory, "
        f"Linux {machine['kernel']}, Python {machine['python']}, Java {machine['java']}."
    )
    busy_with = (
        f"Load average {disturbance['load_average_before']:g} before and {disturbance['load_average_after']:g} after; "
        f"{disturbance['stolen_percent']:g} % of the processors' time was stolen by the host."
    )
    text = [f"# {name}", "", f"`{run['command']}`, ended {run['ended_at']}, commit {run['commit']}."]
    text += ["", found_machine, "", busy_with, "", _READING]
    for plan in plans:
        text += ["", f"## {plan.name}", "", _about(plan), ""]
        text += _table([line for line in lines if line.plan == plan.name])
    text += ["", *(f"![{picture}]({picture})" for picture in pictures)]
    return "\n".join(text) + "\n"


def _about(plan: Plan) -> str:
    shape = plan.shape
    return (
        f"{shape.keys} keys, {shape.partitions} partitions, {shape.nodes} nodes / instances, "
        f"{'one standby' if shape.nodes > 1 else 'no standbys'}, {plan.rounds} "
        f"{'round' if plan.rounds == 1 else 'rounds'}; "
        f"ours {'with' if plan.processor else 'without'} Spark. "
        f"{'All sides run, and their work takes turns.' if plan.together else 'While one side runs, no other does.'}"
    )


def _table(lines: Sequence[Line]) -> list[str]:
    peers = [side for side in Side if side is not Side.OURS and any(side in line.sides for line in lines)]
    heads = ["work", "unit", str(Side.OURS), *(head for peer in peers for head in (str(peer), _ratio_head(peer)))]
    rows = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    last = ""
    for line in lines:
        cells = [line.work if line.work != last else "", METRICS[line.metric].unit, _cell(line.sides.get(Side.OURS))]
        for peer in peers:
            cells += [_cell(line.sides.get(peer)), _ratio(line, peer)]
        rows.append(f"| {' | '.join(cells)} |")
        last = line.work
    return rows


def _ratio_head(peer: Side) -> str:
    return f"{peer} / {Side.OURS}" if peer is Side.OURS_TLS else f"ratio to {peer}"


def _cell(spread: Spread | None) -> str:
    if spread is None:
        return ""
    if spread.count == 1:
        return number(spread.median)
    return f"{number(spread.median)} ({number(spread.least)} to {number(spread.most)})"


def _ratio(line: Line, peer: Side) -> str:
    spread = line.ratios.get(peer)
    if spread is None:
        return ""
    if peer is Side.OURS_TLS:
        return _cell(spread)
    is_better = spread.median > 1 if METRICS[line.metric].better == "more" else spread.median < 1
    return f"**{_cell(spread)}**" if is_better else _cell(spread)


def number(value: float) -> str:
    """Return a number with three significant digits below 100, and without decimals from 100 on."""
    if value >= 100 or value == 0:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}"

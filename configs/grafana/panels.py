"""The kinds of panel that the dashboards are made of, over the builders of Grafana's own SDK.

A panel without a unit or a description cannot be made: whoever looks at a curve at night should not
have to know the name of a series. Sizes are in Grafana's grid, 24 columns wide.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

HEIGHT = 8
STAT_HEIGHT = 4
SOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
B = TypeVar("B", stat.Panel, timeseries.Panel, heatmap.Panel)
_STACKED = 60  # percent of opacity: areas are compared, not lines


@dataclass(frozen=True, kw_only=True)
class Panel:
    """What is shown, in which unit (Grafana's name of it), and what it says to who looks.

    ``queries``: what a curve is called, which may name labels as ``{{label}}``, and its PromQL.
    """

    title: str
    about: str
    unit: str
    queries: Mapping[str, str]
    width: int = 12
    top: float | None = None  # the highest value of the axis, where it is known

    def begun(self, panel: B, height: int = HEIGHT) -> B:
        """What every kind of panel has: its words, its place and its source."""
        panel = panel.title(self.title).description(self.about)
        return panel.height(height).span(self.width).datasource(SOURCE)

    def targets(self) -> Iterator[prometheus.Dataquery]:
        for number, (legend, expr) in enumerate(self.queries.items()):
            target = prometheus.Dataquery().expr(expr).legend_format(legend)
            yield target.datasource(SOURCE).ref_id(chr(ord("A") + number))


class Number(Panel):
    """One figure for the whole time that is looked at."""

    def build(self) -> stat.Panel:
        panel = self.begun(stat.Panel(), STAT_HEIGHT).unit(self.unit)
        panel = panel.graph_mode(common.BigValueGraphMode.NONE)
        reduce = common_builders.ReduceDataOptions().calcs(["lastNotNull"])
        for target in self.targets():
            panel = panel.with_target(target.instant())
        return panel.reduce_options(reduce)


class Lines(Panel):
    """Curves over time."""

    def build(self) -> timeseries.Panel:
        panel = self.begun(timeseries.Panel()).unit(self.unit).min(0)
        panel = panel.line_width(1).fill_opacity(0).show_points(common.VisibilityMode.NEVER)
        panel = panel.tooltip(
            common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI)
        )
        if self.top is not None:
            panel = panel.max(self.top)
        for target in self.targets():
            panel = panel.with_target(target)
        return panel


class Areas(Lines):
    """Parts of a whole over time, on top of each other."""

    def build(self) -> timeseries.Panel:
        stacking = common_builders.StackingConfig().mode(common.StackingMode.NORMAL)
        return super().build().stacking(stacking).fill_opacity(_STACKED)


class Heat(Panel):
    """How often each length of time came up: buckets of a histogram, the darker the oftener."""

    def build(self) -> heatmap.Panel:
        panel = self.begun(heatmap.Panel()).unit("short")
        color = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges")
        panel = panel.color(color).y_axis(heatmap.YAxisConfig().unit(self.unit))
        linear = common_builders.ScaleDistributionConfig().type(common.ScaleDistribution.LINEAR)
        panel = panel.scale_distribution(linear)
        for target in self.targets():
            panel = panel.with_target(target.format(PromQueryFormat.HEATMAP))
        return panel


def _names(name: str, label: str, series: str) -> dashboards.QueryVariable:
    """A choice among the values of a label; all of them at first."""
    query = f"label_values({series}, {name})"
    variable = dashboards.QueryVariable(name).label(label).datasource(SOURCE)
    variable = variable.query({"query": query, "refId": name}).multi(True).include_all(True)
    variable = variable.all_value(".*").refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
    return variable.current(dashboard.VariableOption(text="All", value="$__all"))


def page(
    name: str, about: str, panels: Sequence[Number | Lines | Areas | Heat]
) -> dashboard.Dashboard:
    """A dashboard with the choices of data source, profile and engine, and links to the others."""
    builder = dashboards.Dashboard(f"slotwise / {name}").uid(f"slotwise-{name.lower()}")
    builder = builder.description(about).tags(["slotwise"]).time("now-1h", "now").refresh("30s")
    builder = builder.timezone("browser").readonly()
    builder = builder.tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
    others = dashboards.DashboardLink("slotwise").type(dashboard.DashboardLinkType.DASHBOARDS)
    builder = builder.link(others.tags(["slotwise"]).include_vars(True).keep_time(True))
    source = dashboards.DatasourceVariable("datasource").label("Data source").type("prometheus")
    builder = builder.with_variable(source)
    builder = builder.with_variable(_names("profile", "Profile", "slotwise_requests_total"))
    builder = builder.with_variable(_names("engine", "Engine", "slotwise_engine_up"))
    for number, panel in enumerate(panels, 1):
        builder = builder.with_panel(panel.build().id(number))
    return builder.build()

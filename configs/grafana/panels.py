"""The kinds of panel that the dashboards are made of, over the builders of Grafana's own SDK.

A panel without a unit or a description cannot be made: whoever looks at a curve at night should not
have to know the name of a series. Sizes are in Grafana's grid, 24 columns wide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

HEIGHT = 8
STAT_HEIGHT = 4
SOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
_STACKED = 60  # percent of opacity: areas are compared, not lines


@dataclass(frozen=True)
class Query:
    """PromQL and what its curves are called; ``legend`` may name labels as ``{{label}}``."""

    expr: str
    legend: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """What is shown, in which unit (Grafana's name of it), and what it says to who looks."""

    title: str
    about: str
    unit: str
    queries: Sequence[Query] = field(default=())
    width: int = 12
    top: float | None = None  # the highest value of the axis, where it is known

    def target(self, query: Query) -> prometheus.Dataquery:
        target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend)
        letter = chr(ord("A") + list(self.queries).index(query))
        return target.datasource(SOURCE).ref_id(letter)


class Number(Panel):
    """One figure for the whole time that is looked at."""

    def build(self) -> stat.Panel:
        panel = stat.Panel().title(self.title).description(self.about).unit(self.unit)
        panel = panel.height(STAT_HEIGHT).span(self.width).datasource(SOURCE)
        panel = panel.graph_mode(common.BigValueGraphMode.NONE)
        reduce = common_builders.ReduceDataOptions().calcs(["lastNotNull"])
        for query in self.queries:
            panel = panel.with_target(self.target(query).instant())
        return panel.reduce_options(reduce)


class Lines(Panel):
    """Curves over time."""

    def build(self) -> timeseries.Panel:
        panel = timeseries.Panel().title(self.title).description(self.about).unit(self.unit)
        panel = panel.height(HEIGHT).span(self.width).datasource(SOURCE).min(0)
        panel = panel.line_width(1).fill_opacity(0).show_points(common.VisibilityMode.NEVER)
        panel = panel.tooltip(
            common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI)
        )
        if self.top is not None:
            panel = panel.max(self.top)
        for query in self.queries:
            panel = panel.with_target(self.target(query))
        return panel


class Areas(Lines):
    """Parts of a whole over time, on top of each other."""

    def build(self) -> timeseries.Panel:
        stacking = common_builders.StackingConfig().mode(common.StackingMode.NORMAL)
        return super().build().stacking(stacking).fill_opacity(_STACKED)


class Heat(Panel):
    """How often each length of time came up: buckets of a histogram, the darker the oftener."""

    def build(self) -> heatmap.Panel:
        panel = heatmap.Panel().title(self.title).description(self.about).unit("short")
        panel = panel.height(HEIGHT).span(self.width).datasource(SOURCE)
        color = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges")
        panel = panel.color(color).y_axis(heatmap.YAxisConfig().unit(self.unit))
        linear = common_builders.ScaleDistributionConfig().type(common.ScaleDistribution.LINEAR)
        panel = panel.scale_distribution(linear)
        for query in self.queries:
            panel = panel.with_target(self.target(query).format(PromQueryFormat.HEATMAP))
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

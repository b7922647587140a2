// Draws the overview's charts, and asks again for a stream whose first request fails. Everything else on the pages is HTML
// that works without this file.
"use strict";
(() => {
  const charts = new Map();
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);

  const points = () => {
    const holder = document.getElementById("points");
    return holder ? JSON.parse(holder.dataset.points) : null;
  };

  const options = (place, name) => ({
    width: place.clientWidth,
    height: 150,
    cursor: { drag: { x: false, y: false } },
    legend: { show: true },
    scales: { y: { range: (_chart, _low, high) => [0, Math.max(1, high * 1.1)] } },
    axes: [
      { stroke: style("--dim"), size: 26, space: 90, grid: { show: false }, ticks: { stroke: style("--line"), size: 4 },
        values: (_chart, ticks) => ticks.map(clock) },
      { stroke: style("--dim"), size: 60, grid: { stroke: style("--line"), width: 1 }, ticks: { show: false },
        values: (_chart, ticks) => ticks.map((tick) => tick.toLocaleString("en")) },
    ],
    series: [
      { label: "UTC", value: (_chart, seconds) => (seconds === null ? "–" : clock(seconds)) },
      { label: name, stroke: style("--s4"), width: 2, fill: style("--h4"), points: { show: false },
        value: (_chart, value) => (value === null ? "–" : value.toLocaleString("en")) },
    ],
  });

  const draw = () => {
    if (typeof uPlot === "undefined") return;
    const now = points();
    for (const [name, [place, chart]] of charts) {
      if (!place.isConnected) { chart.destroy(); charts.delete(name); }
    }
    if (!now) return;
    for (const place of document.querySelectorAll("[data-chart]")) {
      const name = place.dataset.chart;
      const data = [now.times, now[name]];
      if (charts.has(name)) charts.get(name)[1].setData(data);
      else charts.set(name, [place, new uPlot(options(place, name === "lag" ? "records" : "a second"), data, place)]);
    }
  };

  const anew = () => {
    for (const [, chart] of charts.values()) chart.destroy();
    charts.clear();
    draw();
  };

  // htmx connects again when a stream breaks that has begun, and takes any other answer for a part of the page.
  const AGAIN_AFTER_MS = 2000;
  const stream = (event) => event.target.getAttribute?.("hx-sse:connect");

  const refuseOthers = (event) => {
    const type = event.detail.ctx.response.headers.get("Content-Type");
    if (stream(event) && !type?.startsWith("text/event-stream")) event.preventDefault();
  };

  const askAgain = (event) => {
    const place = event.target;
    if (!stream(event)) return;
    setTimeout(() => {
      if (place.isConnected && !place._htmx?.sse) htmx.ajax("GET", stream(event), { source: place });
    }, AGAIN_AFTER_MS);
  };

  document.addEventListener("htmx:before:response", refuseOthers);
  document.addEventListener("htmx:finally:request", askAgain);
  document.addEventListener("DOMContentLoaded", draw);
  document.addEventListener("htmx:sse:after:message", draw);
  window.addEventListener("resize", anew);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", anew);
})();

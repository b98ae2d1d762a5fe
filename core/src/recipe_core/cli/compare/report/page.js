"use strict";
// Draws the charts of this page from the JSON in it, by plotly, and links them: a run is shown or hidden in all.
const page = JSON.parse(document.getElementById("data").textContent);
// plotly reads a few tags in names, and fills in values where %{...} stands
const signs = { "&": "&amp;", "<": "&lt;", ">": "&gt;", "{": "&#123;" };
const plain = (text) => text.replace(/[&<>{]/g, (sign) => signs[sign]);
const shown = page.runs.map(() => true);
let scale = "linear";

function traces(chart) {
  const times = (values) => values.map((value) => (value === null ? null : value * chart.factor));
  const number = chart.unit === "%" ? "%{y:.2f} %" : chart.unit === "GiB" ? "%{y:.3f} GiB" : "%{y:.5~g}";
  const all = [];
  for (const curve of chart.curves) {
    const run = page.runs[curve.run];
    const common = { x: curve.steps, name: plain(run.name), meta: curve.run, visible: shown[curve.run], type: "scatter" };
    const mode = curve.steps && curve.steps.length === 1 ? "markers" : "lines";
    if (curve.steps) {
      all.push({
        ...common, y: times(curve.values), mode, opacity: curve.smooth ? 0.3 : 1, hovertemplate: number,
        line: { color: run.colour, dash: curve.smooth ? "solid" : run.dash, width: curve.smooth ? 1 : 2 },
      });
    }
    if (curve.smooth) {
      all.push({
        ...common, y: times(curve.smooth), mode, line: { color: run.colour, dash: run.dash, width: 2 },
        hovertemplate: number, name: `${common.name}, mean of ${curve.window}`,
      });
    }
    if (curve.validation.steps) {
      all.push({
        ...common, x: curve.validation.steps, y: times(curve.validation.values), mode: "markers",
        name: `${common.name}, validation`, hovertemplate: number,
        marker: { color: run.colour, size: 7, line: { color: "white", width: 1 } },
      });
    }
  }
  return all;
}

function draw(place) {
  const chart = page.charts[Number(place.dataset.chart)];
  const axis = { gridcolor: "#eaeef2", zeroline: false, linecolor: "#d8dee4", automargin: true };
  const layout = {
    margin: { l: 8, r: 12, t: 8, b: 8 }, hovermode: "x unified", showlegend: false, font: { size: 12, family: "system-ui, \"Segoe UI\", \"DejaVu Sans\", sans-serif" },
    hoverlabel: { align: "left", namelength: -1, bgcolor: "rgba(255, 255, 255, 0.92)" },
    xaxis: {
      ...axis, title: { text: "step" }, tickformat: ",d", rangemode: "tozero", unifiedhovertitle: { text: "step %{x:,d}" },
    },
    yaxis: { ...axis, type: scale },
  };
  const options = { responsive: true, displaylogo: false, modeBarButtons: [["resetScale2d", "toImage"]] };
  return Plotly.newPlot(place, traces(chart), layout, options);
}

const drawn = () => document.querySelectorAll(".plot.js-plotly-plot");

function drawIn(part) {
  for (const place of part.querySelectorAll(".plot:not(.js-plotly-plot)")) draw(place);
}

for (const box of document.querySelectorAll("input[data-run]")) {
  box.addEventListener("change", () => {
    shown[Number(box.dataset.run)] = box.checked;
    for (const place of drawn()) Plotly.restyle(place, { visible: place.data.map((trace) => shown[trace.meta]) });
  });
}
document.getElementById("log").addEventListener("change", (event) => {
  scale = event.target.checked ? "log" : "linear";
  for (const place of drawn()) Plotly.relayout(place, { "yaxis.type": scale, "yaxis.autorange": true });
});
const more = document.getElementById("more");
if (more) more.addEventListener("toggle", () => drawIn(more)); // a chart that is hidden has no size to be drawn in
drawIn(document.getElementById("first"));

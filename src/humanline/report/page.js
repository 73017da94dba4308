// Draws the figures, colours them with the page, and saves tables and figures. Data comes as JSON; see humanline.report.elements.
(() => {
  "use strict";
  const root = document.documentElement;
  const drawings = JSON.parse(document.getElementById("drawings").textContent);
  const plots = [...document.querySelectorAll(".plot")];
  const SERIES = 8;
  const DASHES = ["solid", "dot", "dash", "dashdot"];

  // Plotly reads a few HTML tags in text; here a name is only ever text.
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  // Long names in two lines or more, so that a phone has room for the bars.
  const wrapped = (text, width) => {
    const lines = [""];
    for (const word of String(text).split(" ")) {
      const line = lines[lines.length - 1];
      if (line && line.length + word.length >= width) lines.push(word);
      else lines[lines.length - 1] = line ? `${line} ${word}` : word;
    }
    return lines.map(plain).join("<br>");
  };

  const expand = (x) => (Array.isArray(x) ? x : Array.from({ length: x.count }, (_, i) => x.start + i * x.by));

  // A custom property holds light-dark(…): only the colour of an element is resolved.
  const probe = document.body.appendChild(document.createElement("span"));
  probe.hidden = true;
  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const faint = (rgb, alpha) => rgb.replace("rgb(", "rgba(").replace(")", `, ${alpha})`);
  const seriesColour = (series) => colour(series < 0 ? "quiet" : `series-${series % SERIES}`);

  const WIDTH = { only: 2, seed: 1, mean: 3, guide: 1.5 };

  // The band of a thinned line, one closed shape per stretch without a gap.
  function band(trace, x, shade) {
    const shape = { x: [], y: [] };
    let start = 0;
    for (let i = 0; i <= x.length; i++) {
      if (i < x.length && trace.low[i] !== null) continue;
      if (i > start) {
        const part = [...Array(i - start).keys()].map((k) => k + start);
        if (shape.x.length) { shape.x.push(null); shape.y.push(null); }
        shape.x.push(...part.map((k) => x[k]), ...part.reverse().map((k) => x[k]));
        part.reverse();
        shape.y.push(...part.map((k) => trace.high[k]), ...part.reverse().map((k) => trace.low[k]));
      }
      start = i + 1;
    }
    return { type: "scatter", mode: "lines", ...shape, fill: "toself", fillcolor: faint(shade, 0.15), line: { width: 0.75, color: faint(shade, 0.4) },
      hoverinfo: "skip", showlegend: false, legendgroup: plain(trace.name) };
  }

  function lines(drawing, named, letters) {
    return drawing.traces.flatMap((trace) => {
      const shade = seriesColour(trace.series);
      const x = expand(trace.x);
      const few = x.length <= 40 && drawing.kind === "lines";
      const dash = DASHES[(trace.dash + (trace.series >= SERIES ? 2 : 0)) % DASHES.length];
      const drawn = {
        type: "scatter", x, y: trace.y, name: wrapped(trace.name, letters), legendgroup: plain(trace.name), mode: few ? "lines+markers" : "lines",
        line: { color: trace.line === "seed" ? faint(shade, 0.45) : shade, width: WIDTH[trace.line], dash, shape: "linear" },
        marker: { color: shade, size: 4, opacity: trace.line === "seed" ? 0.45 : 1 },
        showlegend: named && trace.line !== "seed", connectgaps: false,
        hovertemplate: `${plain(trace.hover || trace.name)}<br>%{x}: %{y}<extra></extra>`,
      };
      return trace.low ? [band(trace, x, shade), drawn] : [drawn];
    });
  }

  function bars(drawing, named) {
    return drawing.traces.map((trace) => ({
      type: "bar", orientation: "h", x: trace.x, y: trace.y, name: plain(trace.name), showlegend: named,
      marker: { color: seriesColour(trace.series), line: { color: colour("page"), width: 1 } },
      hovertemplate: `${plain(trace.name)}: %{x} s<extra></extra>`,
    }));
  }

  function dots(drawing) {
    return drawing.traces.map((trace) => {
      const shade = seriesColour(trace.series);
      if (trace.line === "guide") {
        // Markers that nobody sees, since an axis leaves room for markers only.
        return { type: "scatter", mode: "lines+markers", x: trace.x, y: trace.y, name: plain(trace.name),
          line: { color: shade, width: 1.5, dash: "dash" }, marker: { size: 12, color: "rgba(0, 0, 0, 0)" }, hoverinfo: "skip" };
      }
      const seed = trace.line === "seed";
      return {
        type: "scatter", mode: "markers", x: trace.x, y: trace.y, name: plain(trace.name), showlegend: false,
        marker: { color: seed ? faint(shade, 0.5) : shade, size: seed ? 7 : 12, symbol: seed ? "circle-open" : "circle" },
        error_x: trace.error ? { type: "data", array: trace.error, color: shade, thickness: 2 } : undefined,
        hovertemplate: `${plain(trace.name)}${seed ? ", one seed" : ""}: %{x}<extra></extra>`,
      };
    });
  }

  // Where all values are the same, an axis of its own choice would be 1 wide, and a learning rate of 5e-6 would look like 0.
  function steady(traces, key) {
    const values = new Set(traces.flatMap((trace) => [...trace[key], ...(trace.low || []), ...(trace.high || [])]).filter((value) => value !== null));
    const [value] = values;
    return values.size === 1 && value ? { range: [0, 2 * value].sort((a, b) => a - b) } : {};
  }

  function axis(about, more) {
    return { title: { text: plain(about.title) }, tickformat: about.share ? ".3~p" : undefined, gridcolor: colour("line"), linecolor: colour("line"),
      zerolinecolor: colour("line"), automargin: true, ...more };
  }

  // Under the figure: in one row if it fits, else one below the other, so that its height is known beforehand.
  function legend(names, width) {
    const letters = Math.max(Math.floor((width - 70) / 7), 12);
    const oneRow = names.reduce((sum, name) => sum + 7 * name.length + 60, 0) <= width;
    const lines = names.reduce((sum, name) => sum + wrapped(name, letters).split("<br>").length, 0);
    const height = names.length ? (oneRow ? 26 : 19 * lines + 10) : 0;
    const layout = { orientation: "h", ...(oneRow ? {} : { entrywidth: 1, entrywidthmode: "fraction" }), x: 0, xref: "container", y: 0, yref: "container", yanchor: "bottom", traceorder: "normal", font: { size: 12 } };
    return { height, letters, layout };
  }

  function figure(drawing, width) {
    const rows = drawing.categories.length;
    const names = new Set(drawing.traces.filter((trace) => trace.line !== "seed").map((trace) => trace.name));
    const named = names.size > 1 || drawing.legend;
    const labels = drawing.categories.map((name) => wrapped(name, width < 450 ? 16 : 28));
    const rowHeight = Math.max(34, ...labels.map((label) => 6 + 17 * label.split("<br>").length));
    const byRow = rows ? { tickvals: [...drawing.categories.keys()], ticktext: labels,
      range: [rows - 0.5, -0.5], title: { text: "" }, showgrid: false, zeroline: false } : {};
    const square = drawing.kind === "unit-square";
    const shown = drawing.kind === "dots" ? [...names].filter((name) => !drawing.categories.includes(name)) : named ? [...names] : [];
    const below = legend(shown, width);
    const body = rows ? 20 + rowHeight * rows : square ? Math.min(width - 75, 420) : 230;
    const top = rows ? 34 : 15;
    const layout = {
      height: top + body + 58 + below.height, margin: { l: 60, r: 15, t: top, b: 58 + below.height }, barmode: "stack", hovermode: "closest",
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      font: { family: "system-ui, sans-serif", size: 13, color: colour("text") }, paper_bgcolor: colour("page"), plot_bgcolor: colour("page"),
      legend: below.layout,
      xaxis: axis(drawing.x, { lines: {}, bars: { rangemode: "tozero" }, dots: drawing.kind === "dots" ? steady(drawing.traces, "x") : {},
        "unit-square": { range: [0, 1], constrain: "domain" } }[drawing.kind]),
      yaxis: axis(drawing.y, rows ? byRow : square ? { range: [0, 1], constrain: "domain", scaleanchor: "x" } : steady(drawing.traces, "y")),
    };
    const data = { lines, "unit-square": lines, bars, dots }[drawing.kind](drawing, named, below.letters);
    return { data, layout };
  }

  function draw(number) {
    const plot = plots[number];
    const { data, layout } = figure(drawings[number], plot.clientWidth);
    plot.style.minHeight = `${layout.height}px`;
    // Named one by one: by default there is also one that sends the figure to a server.
    const config = { responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
      modeBarButtons: [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]],
      toImageButtonOptions: { filename: drawings[number].title, scale: 2 } };
    return Plotly.react(plot, data, layout, config);
  }

  // One after another, so that the page can be read and scrolled meanwhile.
  async function drawAll() {
    for (let number = 0; number < plots.length; number++) {
      await draw(number);
      await new Promise((resume) => setTimeout(resume));
    }
    root.dataset.drawn = plots.length;
  }

  // Saving

  const csv = (rows) => rows.map((row) => row.map((cell) => {
    const text = cell === null || cell === undefined ? "" : String(cell);
    return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  }).join(",") + "\r\n").join("");

  function figureRows(drawing) {
    const byRow = drawing.categories.length > 0;
    const head = ["series", "line", drawing.x.title, drawing.y.title];
    const ranged = drawing.traces.some((trace) => trace.low || trace.error);
    const rows = drawing.traces.flatMap((trace) => expand(trace.x).map((x, i) => [
      trace.hover || trace.name, trace.line, x, byRow ? drawing.categories[trace.y[i]] ?? "" : trace.y[i],
      ...(ranged ? [trace.low ? trace.low[i] : trace.error ? x - trace.error[i] : "", trace.high ? trace.high[i] : trace.error ? x + trace.error[i] : ""] : []),
    ]));
    return [ranged ? [...head, "low", "high"] : head, ...rows];
  }

  const tableRows = (table) => [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent));

  function save(name, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" }));
    link.download = `${name.replace(/[^\p{L}\p{N}]+/gu, "-")}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  document.addEventListener("click", (event) => {
    const what = event.target.dataset?.save;
    if (what === "table") {
      const table = event.target.closest(".table").querySelector("table");
      save(table.caption.textContent, csv(tableRows(table)));
    } else if (what) {
      const plot = event.target.closest("figure").querySelector(".plot");
      const drawing = drawings[plots.indexOf(plot)];
      if (what === "figure") save(drawing.title, csv(figureRows(drawing)));
      else Plotly.downloadImage(plot, { format: "png", filename: drawing.title, scale: 2, width: plot.clientWidth, height: plot.clientHeight });
    }
  });

  // Light and dark

  const dark = matchMedia("(prefers-color-scheme: dark)");
  document.getElementById("theme").addEventListener("click", () => {
    const now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    drawAll();
  });
  dark.addEventListener("change", drawAll);
  drawAll();
})();

// The report about a run: in a file of its own, and in the page of `syrtos serve`. What runs say is text, and stays text: nothing here parses HTML.
"use strict";

const SyrtosReport = (() => {
  const FEW = 12; // rows of a chart of variables or findings
  const dark = matchMedia("(prefers-color-scheme: dark)");

  // -- elements -------------------------------------------------------------------------------

  function el(tag, facts = {}, ...inside) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(facts)) if (value !== null && value !== undefined) node.setAttribute(name, value);
    node.append(...inside.filter((part) => part !== null && part !== undefined));
    return node;
  }
  /** Words between backticks are code. */
  const marked = (words) => String(words).split("`").map((part, k) => (k % 2 ? el("code", {}, part) : part));
  const text = (words, kind = "") => el("p", kind ? { class: kind } : {}, ...marked(words));
  function table(headings, rows) {
    const head = el("tr", {}, ...headings.map((name) => el("th", { scope: "col" }, name)));
    const lines = rows.map((cells) => el("tr", {}, ...cells.map((cell) => el("td", {}, ...marked(cell ?? "")))));
    return el("div", { class: "report-scroll", tabindex: "0", role: "region", "aria-label": "Values" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...lines)));
  }
  /** A summary whose inside is made while it is open, anew with newer facts. */
  function fold() {
    const summary = el("summary");
    const node = el("details", {}, summary);
    let make = null;
    const fill = () => node.open && make && node.replaceChildren(summary, make());
    node.addEventListener("toggle", fill);
    return { node, draw(words, next) { summary.textContent = words; make = next; fill(); } };
  }
  function folded(words, make) {
    const one = fold();
    one.draw(words, make);
    return one.node;
  }
  /** Makes the inside of a node anew only where its facts have changed: what is open or scrolled stays so. */
  const known = new WeakMap();
  function redraw(node, facts, make) {
    const key = JSON.stringify(facts);
    if (known.get(node) === key) return;
    known.set(node, key);
    node.replaceChildren(...make());
  }

  // -- numbers --------------------------------------------------------------------------------

  const short = (value, digits = 3) => (value === null || value === undefined ? "not finite" : Number(value).toLocaleString("en", { maximumSignificantDigits: digits }));
  const percent = (part) => `${(100 * part).toFixed(part < 0.1 ? 1 : 0)} %`;
  const lasting = (s) => (s < 120 ? `${s.toFixed(1)} s` : s < 7200 ? `${(s / 60).toFixed(1)} min` : `${(s / 3600).toFixed(1)} h`);
  function size(bytes) {
    for (const [unit, one] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (bytes >= one) return `${short(bytes / one)} ${unit}`;
    return `${short(bytes)} B`;
  }
  const sum = (values) => values.reduce((all, one) => all + one, 0);

  // -- charts ---------------------------------------------------------------------------------

  /** Colours of the moment: the library draws with colours, not with variables. */
  function colours(node) {
    const style = getComputedStyle(node);
    const of = (name) => style.getPropertyValue(name).trim() || "#888";
    return { ink: of("--r-ink"), quiet: of("--r-quiet"), line: of("--r-line"), sheet: of("--r-sheet"), accent: of("--r-accent"), bad: of("--r-bad"), good: of("--r-good"), ground: of("--r-ground"), part: (kind) => of(`--p-${kind}`) };
  }
  const SERIES = ["--p-compute", "--p-input", "--p-exchange", "--p-callbacks", "--p-checkpoint", "--p-evaluation", "--p-trace", "--p-lost"];

  /** One chart: `make(colours)` returns the library's options, `say(i)` the words of a point, and `count` how many points the keys go through. */
  class Chart {
    constructor(name, height) {
      this.said = el("div", { class: "report-said", role: "status", "aria-live": "polite" });
      this.node = el("div", { class: "report-chart", role: "img", tabindex: "0", "aria-label": name, style: `height:${height}px` });
      this.whole = el("figure", { style: "margin:0" }, this.node, this.said);
      this.at = -1;
      this.height = height;
      this.node.addEventListener("keydown", (event) => this.key(event));
    }

    draw(facts) {
      Object.assign(this, facts);
      if (!this.node.isConnected || !this.node.clientWidth) return; // drawn when it is seen
      this.node.style.height = `${this.height}px`;
      this.chart ??= echarts.init(this.node, null, { renderer: "svg" });
      this.chart.resize();
      const c = colours(this.node);
      const { fontFamily } = getComputedStyle(this.node); // by name: the library measures texts on a canvas, which knows no "inherit"
      const common = { backgroundColor: "transparent", animation: false, textStyle: { color: c.ink, fontFamily }, aria: { enabled: false } };
      this.chart.setOption({ ...common, ...this.make(c, this.node.clientWidth) }, { notMerge: true });
    }

    key(event) {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
      if (!this.say || !this.count || (!step && event.key !== "Home" && event.key !== "End")) return;
      event.preventDefault();
      this.at = event.key === "Home" ? 0 : event.key === "End" ? this.count - 1 : Math.max(0, Math.min(this.count - 1, this.at + step));
      this.said.textContent = this.say(this.at);
      this.chart?.dispatchAction({ type: "showTip", seriesIndex: this.tip ?? 0, dataIndex: this.at });
    }
  }

  const axis = (c, name, more = {}) => ({
    type: "value", name, nameLocation: "middle", nameGap: 28, nameTextStyle: { color: c.quiet }, axisLabel: { color: c.quiet, hideOverlap: true },
    axisLine: { lineStyle: { color: c.line } }, splitLine: { lineStyle: { color: c.line } }, ...more,
  });
  /** On one line, above charts whose grid begins at 32: what a narrow chart has no room for is scrolled to. */
  const legend = (c, more = {}) => ({ type: "scroll", top: 0, left: -5, itemWidth: 16, itemHeight: 8, textStyle: { color: c.quiet }, ...more });
  const tooltip = (c, more = {}) => ({ renderMode: "richText", confine: true, backgroundColor: c.sheet, borderColor: c.line, textStyle: { color: c.ink, fontSize: 12 }, ...more });
  const zoom = [{ type: "inside", filterMode: "none", zoomOnMouseWheel: "ctrl", moveOnMouseMove: "shift" }];

  // -- sections: each returns a node, and a function that draws newer facts ----------------------

  function section(title, hint = "") {
    const node = el("section", { class: "report-section" }, el("h2", {}, title), hint ? text(hint, "report-quiet") : null);
    return node;
  }

  /** A part begins where the one before it ends, so that all of them span the run. */
  function waterfall() {
    const node = section("Where the time went", "Average seconds per worker. The parts add up to the time of the run.");
    const chart = new Chart("Where the time went: a bar for each part of the run's time", 60);
    const values = fold();
    const ranks = new Chart("The same for each worker", 60);
    const key = el("ul", { class: "report-key" });
    const of = el("h3", {}, "Each worker");
    node.append(chart.whole, values.node, of, ranks.whole, key);
    return { node, draw(facts) {
      const whole = sum(Object.values(facts.seconds));
      const parts = Object.entries(facts.parts).filter(([part]) => facts.seconds[part] >= 0.0005 * whole);
      let until = 0;
      const rows = parts.map(([part, words]) => ({ part, words, from: until, seconds: facts.seconds[part], to: (until += facts.seconds[part]) }));
      const say = (i) => `${rows[i].words}: ${short(rows[i].seconds)} s, ${percent(rows[i].seconds / whole)}`;
      chart.draw({ height: 30 * rows.length + 50, count: rows.length, say, tip: 1, make: (c) => ({
        grid: { left: 120, right: 78, top: 4, bottom: 40 },
        xAxis: axis(c, "seconds", { max: Number(whole.toPrecision(4)) }),
        yAxis: { type: "category", inverse: true, data: rows.map((row) => row.words), axisTick: { show: false }, axisLine: { show: false }, axisLabel: { color: c.ink } },
        tooltip: tooltip(c, { formatter: (at) => say(at.dataIndex) }),
        series: [
          { type: "bar", stack: "all", silent: true, itemStyle: { color: "transparent" }, data: rows.map((row) => row.from) },
          { type: "bar", stack: "all", barMaxWidth: 20, data: rows.map((row) => ({ value: row.seconds, itemStyle: { color: c.part(row.part) } })),
            label: { show: true, position: "right", color: c.quiet, formatter: (at) => `${percent(rows[at.dataIndex].seconds / whole)}` } },
        ],
      }) });
      values.draw("Values", () => table(["part", "seconds", "share"], [...rows.map((row) => [row.words, row.seconds.toFixed(3), percent(row.seconds / whole)]), ["all", whole.toFixed(3), "100 %"]]));
      const workers = facts.ranks;
      of.hidden = ranks.whole.hidden = key.hidden = workers.length < 2;
      if (workers.length < 2) return;
      of.textContent = facts.run.generations > 1 ? "Each worker of the last generation that trained" : "Each worker";
      const names = workers.map((one) => `rank ${one.rank}`);
      const sayRank = (i) => `${names[i]} on ${workers[i].host}: ${parts.filter(([part]) => workers[i].seconds[part] > 0.005).map(([part, words]) => `${words} ${short(workers[i].seconds[part])} s`).join(", ")}`;
      ranks.draw({ height: 26 * Math.min(workers.length, 40) + 50, count: workers.length, say: sayRank, make: (c) => ({
        grid: { left: 70, right: 20, top: 4, bottom: 40 },
        xAxis: axis(c, "seconds"),
        yAxis: { type: "category", inverse: true, data: names, axisTick: { show: false }, axisLine: { show: false }, axisLabel: { color: c.ink } },
        tooltip: tooltip(c, { formatter: (at) => `${names[at.dataIndex]}: ${at.seriesName} ${short(at.value)} s` }),
        series: parts.map(([part, words]) => ({ type: "bar", name: words, stack: "all", barMaxWidth: 18, itemStyle: { color: c.part(part) }, data: workers.map((one) => one.seconds[part]) })),
      }) });
      key.replaceChildren(...parts.map(([part, words]) => el("li", {}, el("i", { style: `background:var(--p-${part})` }), words)));
    } };
  }

  function steps() {
    const node = section("Step time", "Of rank 0. In long runs a point is the median of steps that follow each other, in a band from the shortest to the longest; steps above the chart are marked at its top.");
    const chart = new Chart("Step time in milliseconds over the training steps", 260);
    const found = el("div");
    node.append(chart.whole, found);
    return { node, draw({ steps: s }) {
      node.hidden = !s.number.length;
      if (node.hidden) return;
      const cut = Math.max(s.median_ms * 6, s.p95_ms * 1.6); // an axis that a first step of a second would flatten
      const say = (i) => `step ${s.number[i].toLocaleString("en")}: ${short(s.ms[i])} ms (${short(s.least_ms[i])} to ${short(s.most_ms[i])} ms)`;
      chart.draw({ count: s.number.length, say, make: (c) => ({
        grid: { left: 56, right: 16, top: 16, bottom: 46 },
        xAxis: axis(c, "training step", { min: "dataMin", max: "dataMax" }),
        yAxis: axis(c, "ms", { min: 0, max: Number(cut.toPrecision(2)), nameGap: 40 }),
        tooltip: tooltip(c, { trigger: "axis", formatter: (at) => say(at[0].dataIndex) }),
        dataZoom: zoom,
        series: [
          { type: "line", name: "median", showSymbol: false, lineStyle: { color: c.accent, width: 1.6 }, itemStyle: { color: c.accent }, data: s.number.map((n, i) => [n, s.ms[i]]), markLine: { silent: true, symbol: "none", lineStyle: { color: c.quiet, type: "dashed" }, label: { formatter: "median", color: c.quiet, position: "insideEndTop" }, data: [{ yAxis: s.median_ms }] } },
          { type: "line", showSymbol: false, silent: true, stack: "band", lineStyle: { opacity: 0 }, data: s.number.map((n, i) => [n, Math.min(s.least_ms[i], cut)]) },
          { type: "line", showSymbol: false, silent: true, stack: "band", lineStyle: { opacity: 0 }, areaStyle: { color: c.accent, opacity: 0.18 }, data: s.number.map((n, i) => [n, Math.max(0, Math.min(s.most_ms[i], cut) - Math.min(s.least_ms[i], cut))]) },
          { type: "scatter", symbol: "triangle", symbolSize: 9, itemStyle: { color: c.bad }, data: s.outliers.map((one) => [one.number, Math.min(one.ms, cut)]), tooltip: { trigger: "item" } },
        ],
      }) });
      redraw(found, s.outliers, () => (s.outliers.length ? [el("h3", {}, "Steps that took longest, and why"), table(["step", "at", "ms", "why"], s.outliers.map((one) => [one.number.toLocaleString("en"), lasting(one.at), short(one.ms), one.why]))] : [text("No step took much longer than the others.", "report-quiet")]));
    } };
  }

  function heat() {
    const node = section("Workers over time", "What each worker needed by itself for a step, as a multiple of the median worker at that time: red is slower and blue is faster. A red row is a slow worker, host or reader, for which the others wait.");
    const chart = new Chart("Heat map of ranks against time", 120);
    const values = fold();
    node.append(chart.whole, values.node);
    return { node, draw({ heat: h }) {
      node.hidden = !h.ranks.length;
      if (node.hidden) return;
      const cells = h.times.flatMap((row, y) => row.map((value, x) => [x, y, value]));
      const most = Math.min(2, Math.max(1.5, ...cells.map((cell) => cell[2]))); // the scale is even around 1×
      const say = (i) => {
        const [x, y, value] = cells[i];
        return `${h.ranks[y]} until ${lasting(h.columns[x])}: ${short(h.ms[y][x])} ms a step by itself, ${short(value)}× the median; input ${short(h.input_ms[y][x])} ms`;
      };
      chart.draw({ height: Math.max(20, Math.min(30, 600 / h.ranks.length)) * h.ranks.length + 110, count: cells.length, say, make: (c) => ({
        grid: { left: 10, right: 16, top: 8, bottom: 86, containLabel: true },
        xAxis: { type: "category", data: h.columns.map((at) => short(at)), name: "seconds since the run began", nameLocation: "middle", nameGap: 26, nameTextStyle: { color: c.quiet }, axisLabel: { color: c.quiet, hideOverlap: true }, axisLine: { lineStyle: { color: c.line } }, axisTick: { show: false } },
        yAxis: { type: "category", inverse: true, data: h.ranks, axisLabel: { color: c.ink }, axisTick: { show: false }, axisLine: { show: false } },
        tooltip: tooltip(c, { formatter: (at) => say(at.dataIndex) }),
        visualMap: { min: 2 - Number(most.toPrecision(2)), max: Number(most.toPrecision(2)), calculable: false, orient: "horizontal", left: "center", bottom: 4, itemHeight: 120, itemWidth: 12, textStyle: { color: c.quiet }, text: [`${short(most, 2)}× the median`, "less"], inRange: { color: dark.matches ? ["#4f93c7", "#2a3036", "#ff7d6b"] : ["#7fb0d3", "#eef0ef", "#b1281e"] } },
        series: [{ type: "heatmap", data: cells, itemStyle: { borderColor: c.ground, borderWidth: h.columns.length < 60 ? 1 : 0 } }],
      }) });
      values.draw("Values", () => table(["rank", "mean ms by itself", "mean × the median", "mean ms of input"], h.ranks.map((name, y) => [name, ...[h.ms, h.times, h.input_ms].map((rows) => short(sum(rows[y]) / rows[y].length))])));
    } };
  }

  function smoothed(points, weight) {
    let last = null; // an exponential mean without a bias at its beginning
    let norm = 0;
    return points.map(([step, value]) => {
      if (value === null) return [step, null];
      last = weight * (last ?? 0) + (1 - weight) * value;
      norm = weight * norm + (1 - weight);
      return [step, last / norm];
    });
  }

  function curves() {
    const node = section("Losses and metrics", "Points within an epoch are means since it began, as Keras shows them; a dot is the end of an epoch.");
    const slider = el("input", { type: "range", min: "0", max: "0.98", step: "0.02", value: "0" });
    const grid = el("div", { class: "report-grid" });
    node.append(el("label", { class: "report-slider" }, "Smoothing", slider), grid);
    const charts = new Map();
    let latest = null;
    function one(key, title, lines, step) {
      if (!charts.has(key)) {
        const chart = new Chart(`${title} over the training steps`, 220);
        chart.whole.dataset.metric = title;
        const values = fold();
        const whole = el("div", {}, el("h3", {}, title), chart.whole, values.node);
        grid.append(whole);
        charts.set(key, { chart, values });
      }
      const { chart, values } = charts.get(key);
      const first = lines.find((line) => line.points.length) ?? { points: [] };
      const say = (i) => lines.filter((line) => line.points[i]).map((line) => `${line.name}: ${short(line.points[i][1], 5)} at step ${line.points[i][0].toLocaleString("en")}`).join("; ");
      chart.draw({ count: first.points.length, tip: lines.indexOf(first), say, make: (c) => ({
        grid: { left: 62, right: 16, top: 32, bottom: 46 },
        legend: legend(c, { show: lines.length > 1 }),
        xAxis: axis(c, step, { min: "dataMin", max: "dataMax" }), yAxis: axis(c, "", { scale: true }),
        tooltip: tooltip(c, { trigger: "axis", valueFormatter: (value) => short(value, 5) }), dataZoom: zoom,
        series: lines.map((line, k) => {
          const colour = getComputedStyle(grid).getPropertyValue(SERIES[line.colour ?? k]).trim();
          return { type: "line", name: line.name, showSymbol: Boolean(line.dots) && line.points.length < 80, symbolSize: 6, connectNulls: false, lineStyle: { width: line.thin ? 1 : 1.8, opacity: line.thin ? 0.55 : 1, color: colour }, itemStyle: { color: colour }, data: line.points };
        }),
      }) });
      values.draw("Values", () => table(["curve", step, "value"], lines.flatMap((line) => line.points.map(([n, value]) => [line.name, n, short(value, 6)]))));
    }
    function draw(facts) {
      latest = facts;
      const { metrics, learning_rate: rate } = facts.curves;
      const names = Object.keys(metrics);
      node.hidden = !names.length;
      const weight = Number(slider.value);
      for (const name of names.filter((n) => !(n.startsWith("val_") && names.includes(n.slice(4))))) {
        const lines = [
          { name: "within epochs", points: smoothed(metrics[name].within, weight), thin: true, colour: 0 },
          { name: "at the end of epochs", points: smoothed(metrics[name].epochs, weight), dots: true, colour: 0 },
        ];
        const val = metrics[`val_${name}`];
        if (val) lines.push({ name: "validation", points: smoothed(val.epochs, weight), dots: true, colour: 1 });
        one(name, name, lines.filter((line) => line.points.length), "training step");
      }
      if (rate.length) one("learning rate ", "Learning rate", [{ name: "learning rate", points: rate, colour: 2 }], "training step");
    }
    slider.addEventListener("input", () => latest && draw(latest));
    return { node, draw };
  }

  function exchange() {
    const node = section("What workers exchange in a step");
    const said = text("", "report-quiet");
    const chart = new Chart("Bytes of gradients by variable, the largest first", 200);
    const values = el("div");
    node.append(said, chart.whole, values);
    return { node, draw({ exchange: x, run }) {
      node.hidden = run.workers < 2 || (!x.plans.length && !x.gradient_bytes);
      if (node.hidden) return;
      const counted = x.gradient_bytes ? `${size(x.gradient_bytes)} a step in ${short(x.sums)} sum${x.sums === 1 ? "" : "s"}, and ${short(Math.max(x.meetings - x.sums, 0))} small exchanges.` : "";
      said.textContent = `${x.how.charAt(0).toUpperCase()}${x.how.slice(1)}. ${counted}`;
      const all = x.plans.flatMap((plan) => plan.variables);
      const rows = all.slice().sort((a, b) => b.bytes - a.bytes).slice(0, FEW);
      chart.whole.hidden = !rows.length;
      const say = (i) => `${rows[i].name}: ${size(rows[i].bytes)}${rows[i].rows ? " if all of its rows travel" : ""}, shape ${rows[i].shape.join(" × ") || "a number"}, ${rows[i].dtype}${rows[i].bucket === null ? "" : `, bucket ${rows[i].bucket}`}`;
      chart.draw({ height: 26 * rows.length + 46, count: rows.length, say, make: (c, width) => ({
        grid: { left: 8, right: 30, top: 4, bottom: 40, containLabel: true },
        xAxis: axis(c, "bytes", { axisLabel: { color: c.quiet, formatter: (value) => size(value), hideOverlap: true } }),
        yAxis: { type: "category", inverse: true, data: rows.map((row) => row.name), axisTick: { show: false }, axisLine: { show: false }, axisLabel: { color: c.ink, width: Math.min(260, width * 0.4), overflow: "truncate" } },
        tooltip: tooltip(c, { formatter: (at) => say(at.dataIndex) }),
        series: [{ type: "bar", barMaxWidth: 16, itemStyle: { color: c.part("exchange") }, data: rows.map((row) => row.bytes) }],
      }) });
      const buckets = x.plans.flatMap((plan) => plan.buckets);
      redraw(values, x, () => [
        folded(`All variables (${sum(x.plans.map((plan) => plan.count))})`, () => table(["variable", "shape", "dtype", "bytes", "bucket"], all.map((v) => [v.name + (v.rows ? " (rows that a batch touches)" : ""), v.shape.join(" × "), v.dtype, v.bytes.toLocaleString("en"), v.bucket]))),
        buckets.length ? folded(`Buckets (${buckets.length}), in the order in which they travel`, () => table(["bucket", "variables", "bytes"], buckets.map((b) => [b.number, b.variables, b.bytes.toLocaleString("en")]))) : text("A compiler decides what travels together.", "report-quiet")]);
    } };
  }

  function batch() {
    const node = section("Batch size", "The gradient noise scale over the run, from the gradients of single workers against their mean: up to about that many samples in a step, a larger batch saves as many steps as it is larger.");
    const chart = new Chart("Gradient noise scale in samples over the training steps", 220);
    const words = el("p");
    node.append(words, chart.whole);
    return { node, draw({ noise_scale: n }) {
      words.textContent = n.text;
      const points = (n.series ?? []).filter(([, scale]) => scale !== null && scale > 0);
      chart.whole.hidden = points.length < 2;
      if (chart.whole.hidden) return;
      chart.draw({ count: points.length, say: (i) => `step ${points[i][0].toLocaleString("en")}: ${short(points[i][1], 2)} samples`, make: (c) => ({
        grid: { left: 70, right: 16, top: 16, bottom: 46 },
        xAxis: axis(c, "training step", { min: "dataMin", max: "dataMax" }),
        yAxis: axis(c, "samples", { type: "log", nameGap: 52 }),
        tooltip: tooltip(c, { trigger: "axis", valueFormatter: (value) => `${short(value, 2)} samples` }),
        series: [{ type: "line", name: "noise scale", showSymbol: false, lineStyle: { color: c.accent, width: 1.6 }, itemStyle: { color: c.accent }, data: points, markLine: { silent: true, symbol: "none", lineStyle: { color: c.quiet, type: "dashed" }, label: { formatter: "the batch of this run", color: c.quiet, position: "insideEndTop" }, data: [{ yAxis: n.batch }] } }],
      }) });
    } };
  }

  function machines() {
    const node = section("Machines", "Samples of each host while the run went on.");
    const charts = new Map();
    function lines(key, parent, title, unit, machine, series, format, most) {
      if (!charts.has(key)) {
        const made = new Chart(`${title} of ${machine.name} over time`, 170);
        parent.append(el("div", {}, el("h3", {}, title), made.whole));
        charts.set(key, made);
      }
      const say = (i) => `${short(machine.at[i])} s: ${series.map(([name, values]) => `${name} ${values[i] === null ? "unknown" : format(values[i])}`).join(", ")}`;
      charts.get(key).draw({ count: machine.at.length, say, make: (c) => ({
        grid: { left: 66, right: 16, top: 32, bottom: 44 },
        legend: legend(c, { show: series.length > 1 }),
        xAxis: axis(c, "seconds", { min: 0, max: "dataMax" }), yAxis: axis(c, unit, { min: 0, max: most, nameGap: 50, axisLabel: { color: c.quiet, formatter: format, hideOverlap: true } }),
        tooltip: tooltip(c, { trigger: "axis", valueFormatter: (value) => (value === null || value === undefined ? "unknown" : format(value)) }),
        series: series.map(([name, values], k) => ({ type: "line", name, showSymbol: machine.at.length < 3, lineStyle: { width: 1.5, color: getComputedStyle(node).getPropertyValue(SERIES[k]) }, itemStyle: { color: getComputedStyle(node).getPropertyValue(SERIES[k]) }, areaStyle: series.length === 1 ? { opacity: 0.12, color: getComputedStyle(node).getPropertyValue(SERIES[k]) } : undefined, data: machine.at.map((t, i) => [t, values[i]]) })),
      }) });
    }
    const places = new Map();
    return { node, draw({ machines: all }) {
      node.hidden = !all.length;
      for (const m of all) {
        if (!places.has(m.number)) {
          const place = { title: el("h3"), said: text("", "report-quiet"), grid: el("div", { class: "report-grid" }) };
          node.append(place.title, place.said, place.grid);
          places.set(m.number, place);
        }
        const { title, said, grid } = places.get(m.number);
        title.textContent = all.length > 1 ? `${m.name} (host ${m.number})` : m.name;
        said.textContent = `${m.cores ?? "unknown"} processors, ${size(m.memory_total ?? 0)} of memory. ${m.workers.map((w) => `Rank ${w.rank}: at most ${size(w.memory)}, ${short(w.cores)} processors busy`).join("; ")}.`;
        const rate = (value) => `${size(value)}/s`;
        lines(`cpu ${m.number}`, grid, "Processors", "percent busy", m, [["busy", m.cpu]], (v) => `${Math.round(v)} %`, 100);
        lines(`memory ${m.number}`, grid, "Memory", "in use", m, [["in use", m.memory]], size, m.memory_total ?? undefined);
        lines(`disk ${m.number}`, grid, "Disk", "bytes per second", m, [["read", m.read], ["written", m.written]], rate);
        lines(`network ${m.number}`, grid, "Network", "bytes per second", m, [["sent", m.sent], ["received", m.received]], rate);
        m.gpus.forEach((gpu, k) => {
          lines(`gpu ${m.number} ${k}`, grid, `GPU ${k}`, "percent busy", m, [["busy", gpu.busy]], (v) => `${Math.round(v)} %`, 100);
          lines(`gpu memory ${m.number} ${k}`, grid, `GPU ${k}: memory`, "in use", m, [["in use", gpu.memory]], size, gpu.memory_total[0] ?? undefined);
        });
      }
    } };
  }

  function others() {
    const node = el("div");
    return { node, draw(facts) {
      redraw(node, [facts.data, facts.incidents, facts.goodput, facts.run.options, facts.run.versions], () => made(facts));
    } };
    function made(facts) {
      const parts = [];
      const part = (title, ...inside) => { const made = section(title); made.append(...inside); parts.push(made); };
      const d = facts.data;
      const ways = { planned: "Each worker reads its own records (`syrtos.data`).", records: "Each worker reads all records and prepares its own.", sliced: "Each worker reads and prepares all records, and takes its rows of each batch." };
      const proofs = { none: "Which records were trained on is recorded for data sets of `syrtos.data` alone.", failed: d.text ?? "", verified: "Verified: the chain of hashes is whole, and the sums of records add up." };
      part("Data", text(`${ways[d.how] ?? ""} ${proofs[d.proof]}`.trim(), d.proof === "failed" ? "report-bad" : ""), d.epochs ? table(["data set", "epoch", "records", "trained on, each once", "left out"], d.epochs.map((e) => [e.data, e.epoch + 1, e.records.toLocaleString("en"), e.done.toLocaleString("en") + (e.complete ? "" : " (the epoch did not end)"), e.left_out])) : "");
      if (facts.incidents.length) part("Incidents", table(["at", "step", "what happened", "steps computed again", "logs"], facts.incidents.map((one) => [lasting(one.at), one.step.toLocaleString("en"), one.text || one.end, one.again ?? "the run ended", one.logs])), text(facts.goodput === null ? "What was lost could not be recorded." : `${percent(facts.goodput)} of the time was not lost (goodput).`));
      const run = facts.run;
      const asked = Object.entries(run.options).map(([name, value]) => [name, String(value)]);
      part("How it was run", text(`${run.script} ${run.arguments.join(" ")}`.trim()), asked.length ? table(["option", "value"], asked) : text("All options have their defaults.", "report-quiet"), Object.keys(run.versions).length ? folded("Versions", () => table(["package", "version"], Object.entries(run.versions))) : "");
      return parts;
    }
  }

  // -- the whole ------------------------------------------------------------------------------

  function head(facts) {
    const run = facts.run;
    const end = run.goes_on ? "goes on" : { FINISHED: "finished", unknown: "its end is not known" }[run.outcome.end ?? "unknown"] ?? run.outcome.end.toLowerCase();
    const began = run.began ? new Date(run.began * 1000).toLocaleString() : "an unknown time";
    const many = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
    return el("header", {}, el("h1", {}, run.name), text(`${run.script.split("/").pop()} · ${many(run.workers, "worker")} on ${many(run.hosts, "host")} · begun ${began} · ${end}`, ["FINISHED", undefined].includes(run.outcome.end) ? "report-quiet" : "report-bad"));
  }

  function tiles(facts) {
    const s = facts.steps;
    const found = [["time", lasting(facts.run.seconds)], ["steps", s.count.toLocaleString("en")], ["a step (median)", `${short(s.median_ms)} ms`], [`${facts.rate_of}/s, evaluation apart`, short(facts.samples_per_second)]];
    if (facts.incidents.length && facts.goodput !== null) found.push(["goodput", percent(facts.goodput)]);
    return el("ul", { class: "report-tiles" }, ...found.map(([name, value]) => el("li", {}, el("b", {}, value), el("span", { class: "report-quiet" }, name))));
  }

  function advice(facts) {
    const node = el("div");
    if (facts.missing.length) node.append(el("div", { class: "report-missing" }, ...facts.missing.map((sentence) => text(sentence))));
    const r = facts.recommended;
    const more = facts.findings.slice(1, FEW).map((one) => el("li", {}, ...marked(one.text)));
    node.append(el("div", { class: `report-advice${r ? "" : " report-none"}` },
      el("strong", {}, ...marked(r ? `Do this first: ${r.action}` : "Nothing to change")),
      text(r?.is_measured ? `${r.cost}.` : r ? `${r.cost}. If nothing else changes, training should be ${r.gain >= 1.15 ? `${r.gain.toFixed(1)}× as fast` : `${percent(r.gain - 1)} faster`}.` : facts.nothing_found),
      more.length ? el("details", {}, el("summary", {}, "Other findings"), el("ul", {}, ...more)) : null,
      facts.before?.text ? text(facts.before.text) : null,
      facts.split ? text(facts.split) : null,
      facts.speed ? text(`Speed: ${facts.speed}`) : null,
      facts.batch ? text(`Batch: ${facts.batch}`) : null));
    if (facts.trace) node.append(el("p", {}, "Profile: ", el("a", { href: facts.trace }, facts.trace), ", to be opened in ui.perfetto.dev or chrome://tracing."));
    return node;
  }

  /** What follows the head of a run: drawn once, then again with newer facts. */
  const PARTS = { waterfall, steps, heat, curves, batch, exchange, machines, others };
  class View {
    /** `parts`: which, in order; or `without` which. `head`: whether it begins with what is recommended. */
    constructor(root, { parts = Object.keys(PARTS), without = [], head = false } = {}) {
      root.classList.add("report");
      [this.advice, this.tiles] = [el("div"), el("div")];
      this.top = head ? el("div", {}, this.advice, this.tiles) : null;
      this.parts = parts.filter((name) => !without.includes(name)).map((name) => PARTS[name]());
      root.replaceChildren(...[this.top, ...this.parts.map((part) => part.node)].filter(Boolean));
      const again = () => this.facts && this.update(this.facts);
      dark.addEventListener("change", again);
      let width = 0;
      new ResizeObserver(() => Math.abs(root.clientWidth - width) > 1 && ((width = root.clientWidth), again())).observe(root);
    }

    update(facts) {
      this.facts = facts;
      if (this.top) {
        redraw(this.advice, [facts.missing, facts.findings, facts.nothing_found, facts.before, facts.split, facts.speed, facts.batch, facts.trace], () => [advice(facts)]);
        this.tiles.replaceChildren(tiles(facts));
      }
      for (const part of this.parts) part.draw(facts);
    }
  }

  function compared(root, runs, found) {
    const [a, b] = runs.map((facts) => facts.run.name);
    const change = (row) => [row.change === null ? "" : `${row.change >= 0 ? "+" : ""}${row.change.toFixed(1)} %`, row.interval ? `${row.interval[0].toFixed(1)} to ${row.interval[1].toFixed(1)} %${row.is_noise ? ": noise" : ""}` : "too few steps"];
    const node = el("div", { class: "report" }, el("h1", {}, `${a} and ${b}`), el("div", { class: "report-advice report-none" }, el("strong", {}, found.text)));
    const put = (title, ...inside) => { const made = section(title); made.append(...inside); node.append(made); };
    if (found.asked.length) put("What differs between the runs", table(["", a, b], found.asked));
    const chart = new Chart("Milliseconds of a step by kind, of both runs", 40);
    const rows = found.steps;
    put("A step", chart.whole, table(["", `${a}, ms`, `${b}, ms`, "change", "95 % interval"], rows.map((row) => [row.words, short(row.first_ms, 4), short(row.second_ms, 4), ...change(row)])));
    const parts = Object.entries(found.seconds).filter(([, pair]) => Math.max(...pair) >= 0.05);
    put("The whole run", table(["", `${a}, s`, `${b}, s`], parts.map(([part, pair]) => [runs[0].parts[part], ...pair.map((seconds) => seconds.toFixed(2))])));
    if (found.logs.length) put("Losses and metrics at the end", table(["", a, b], found.logs.map(([name, ...pair]) => [name, ...pair.map((value) => short(value, 5))])));
    root.append(node);
    const draw = () => chart.draw({ height: 44 * rows.length + 70, count: rows.length, say: (i) => `${rows[i].words}: ${short(rows[i].first_ms)} and ${short(rows[i].second_ms)} ms`, make: (c) => ({
      grid: { left: 8, right: 20, top: 32, bottom: 40, containLabel: true },
      legend: legend(c), xAxis: axis(c, "ms"),
      yAxis: { type: "category", inverse: true, data: rows.map((row) => row.kind), axisTick: { show: false }, axisLabel: { color: c.ink } },
      tooltip: tooltip(c, { trigger: "axis", valueFormatter: (value) => `${short(value)} ms` }),
      series: [["first_ms", a, "compute"], ["second_ms", b, "input"]].map(([key, name, part]) => ({ type: "bar", name, barMaxWidth: 14, itemStyle: { color: c.part(part) }, data: rows.map((row) => row[key]) })),
    }) });
    draw();
    dark.addEventListener("change", draw);
    addEventListener("resize", draw);
  }

  /** A page of its own. */
  function whole(root, { runs, comparison }) {
    document.body.classList.add("report-page");
    if (comparison) compared(root, runs, comparison);
    for (const facts of runs) {
      const body = el("div");
      const article = el("article", { class: "report" }, head(facts), body);
      root.append(comparison ? folded(facts.run.name, () => article) : article);
      new View(body, { head: true }).update(facts);
    }
  }

  return { View, whole, parts: { Chart, axis, legend, tooltip, el, text, table, section, folded, short, size, dark } };
})();

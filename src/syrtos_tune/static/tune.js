// The results of `syrtos tune batch` and `syrtos tune lr`, with the charts of reports.
"use strict";

const SyrtosTune = (() => {
  const { Chart, axis, tooltip, el, text, table, section, folded, short, size, dark } = SyrtosReport.parts;

  const logarithmic = (c, name, more = {}) => axis(c, name, { type: "log", minorSplitLine: { show: false }, ...more });
  const marks = (c, found) => ({
    silent: true, symbol: "none", precision: 12, label: { color: c.ink, position: "insideEndTop", formatter: (at) => at.name },
    data: found.filter(([, at]) => at !== null && at !== undefined).map(([name, at, colour]) => ({ name, xAxis: at, lineStyle: { color: colour ?? c.quiet, type: "dashed" } })),
  });

  /** Marks that are nearer to each other than ``near``, in natural logarithms, as one with both names: their labels would overlap. */
  const merged = (found, near) => found.reduce((kept, [name, at, ...more]) => {
    const same = at && kept.find((one) => one[1] && Math.abs(Math.log(one[1] / at)) < near);
    if (same) same[0] += `, ${name}`;
    else kept.push([name, at, ...more]);
    return kept;
  }, []);

  function batch(facts) {
    const good = facts.tried.filter((one) => !one.failed).sort((a, b) => a.batch - b.batch);
    const ends = { min: good[0].batch / 1.2, max: good[good.length - 1].batch * 1.2, axisLabel: { formatter: (value) => Math.round(value).toLocaleString("en") } };
    const chart = (title, height, unit, make, say) => {
      const one = new Chart(title, height);
      const draw = () => one.draw({ count: good.length, say, make: (c) => ({
        grid: { left: 76, right: 24, top: 30, bottom: 46 }, tooltip: tooltip(c, { trigger: "axis", formatter: (at) => say(at[0].dataIndex) }),
        xAxis: logarithmic(c, "global batch", { logBase: 2, ...ends }), yAxis: axis(c, unit.name, { min: 0, nameGap: 58, axisLabel: { color: c.quiet, formatter: unit.format } }), series: make(c),
      }) });
      return { node: one.whole, draw };
    };
    const said = (i) => `batch ${good[i].batch.toLocaleString("en")}: ${short(good[i].samples_per_second, 4)} samples/s, ${short(good[i].ms)} ms a step (quartiles ${short(good[i].quartiles_ms[0])} to ${short(good[i].quartiles_ms[1])}), ${size(good[i].peak_bytes)} a worker`;
    const speed = chart("Samples per second against the global batch", 280, { name: "samples/s", format: (v) => short(v) }, (c) => [
      { type: "line", symbolSize: 7, lineStyle: { color: c.accent }, itemStyle: { color: c.accent }, data: good.map((one) => [one.batch, one.samples_per_second]), markLine: marks(c, [["recommended", facts.recommended, c.good]]) },
      { type: "line", silent: true, stack: "band", stackStrategy: "all", showSymbol: false, lineStyle: { opacity: 0 }, data: good.map((one) => [one.batch, (1e3 * one.batch) / one.quartiles_ms[1]]) },
      { type: "line", silent: true, stack: "band", stackStrategy: "all", showSymbol: false, lineStyle: { opacity: 0 }, areaStyle: { color: c.accent, opacity: 0.15 }, data: good.map((one) => [one.batch, (1e3 * one.batch) / one.quartiles_ms[0] - (1e3 * one.batch) / one.quartiles_ms[1]]) },
    ], said);
    const memory = chart("Peak memory of a worker against the global batch", 240, { name: "bytes", format: (v) => size(v) }, (c) => [
      { type: "line", name: "host", symbolSize: 7, lineStyle: { color: c.part("input") }, itemStyle: { color: c.part("input") }, data: good.map((one) => [one.batch, one.peak_bytes]) },
      ...(good.some((one) => one.device_bytes) ? [{ type: "line", name: "accelerator", symbolSize: 7, lineStyle: { color: c.part("exchange") }, itemStyle: { color: c.part("exchange") }, data: good.map((one) => [one.batch, one.device_bytes]) }] : []),
    ], said);
    const node = el("div");
    const put = (title, ...inside) => { const made = section(title); made.append(...inside); node.append(made); };
    put("Speed", text("The median of the steps; the band is from the first to the third quartile.", "report-quiet"), speed.node);
    put("Memory", memory.node);
    const rows = facts.tried.slice().sort((a, b) => a.batch - b.batch);
    put("All batches", table(["global batch", "samples/s", "ms a step", "quartiles", "memory a worker", "accelerator", "note"], rows.map((one) => (one.failed ? [one.batch.toLocaleString("en"), "", "", "", "", "", one.failed] : [one.batch.toLocaleString("en"), short(one.samples_per_second, 4), short(one.ms), one.quartiles_ms.map((ms) => short(ms)).join(" to "), size(one.peak_bytes), one.device_bytes ? size(one.device_bytes) : "", one.note]))));
    return { node, draw() { speed.draw(); memory.draw(); } };
  }

  function lr(facts) {
    const one = new Chart("Loss against the learning rate", 340);
    const say = (i) => `rate ${short(facts.rates[i])}: loss ${short(facts.losses[i], 5)}${i < facts.smoothed.length ? `, smoothed ${short(facts.smoothed[i], 5)}` : ""}`;
    const most = Math.max(...facts.smoothed);
    const least = Math.min(...facts.smoothed);
    const top = most + 0.25 * (most - least || Math.abs(most) || 1); // what lies above is drawn at the top
    const draw = () => one.draw({ count: facts.rates.length, tip: 1, say, make: (c) => ({
      grid: { left: 66, right: 24, top: 30, bottom: 46 }, tooltip: tooltip(c, { trigger: "axis", formatter: (at) => say(at[0].dataIndex) }),
      xAxis: logarithmic(c, "learning rate", { min: facts.rates[0], max: facts.rates[facts.rates.length - 1], axisLabel: { color: c.quiet, formatter: (value) => Number(value).toExponential(0) } }), yAxis: axis(c, "loss", { scale: true, max: Number(top.toPrecision(3)), nameGap: 50 }),
      series: [
        { type: "line", name: "smoothed", showSymbol: false, lineStyle: { color: c.accent, width: 2 }, itemStyle: { color: c.accent }, data: facts.smoothed.map((loss, i) => [facts.rates[i], loss]), markLine: marks(c, merged([["recommended", facts.recommended, c.good], ["least loss", facts.least], ["highest stable", facts.stable, c.bad]], 0.025 * Math.log(facts.rates[facts.rates.length - 1] / facts.rates[0]))) },
        { type: "line", name: "each batch", showSymbol: false, lineStyle: { color: c.quiet, width: 0.8, opacity: 0.6 }, itemStyle: { color: c.quiet }, data: facts.losses.map((loss, i) => [facts.rates[i], loss === null ? null : Math.min(loss, top)]) },
      ],
    }) });
    const node = section("Loss against learning rate", "The thin line is the loss of each batch, the thick one the smoothed loss.");
    const rows = facts.rates.map((rate, i) => [rate.toExponential(2), short(facts.losses[i], 5), i < facts.smoothed.length ? short(facts.smoothed[i], 5) : ""]);
    node.append(one.whole, folded("Values", () => table(["rate", "loss of the batch", "smoothed"], rows)));
    return { node, draw };
  }

  /** A page of its own. */
  function whole(root, facts) {
    document.body.classList.add("report-page");
    const made = facts.kind === "batch" ? batch(facts) : lr(facts);
    root.append(el("article", { class: "report" }, el("header", {}, el("h1", {}, facts.title), text(facts.about, "report-quiet")), el("div", { class: "report-advice report-none" }, el("strong", {}, facts.sentences[0]), ...facts.sentences.slice(1).map((one) => text(one))), made.node));
    made.draw();
    dark.addEventListener("change", made.draw);
    addEventListener("resize", made.draw);
  }

  return { whole };
})();

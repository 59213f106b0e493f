// The page of `syrtos serve`: one job, its curves and its log, and the way between the list and jobs.

import { artifacts, facts, lastValues, run, settings, story } from "./about.js";
import {
  Refusal, address, ago, announce, ask, askAnew, asking, at, clock, duration, el, ended, epochBar, lasting, leftWords, now, redraw, drawn,
  short, svg, tell, trouble,
} from "./base.js";
import { openClone } from "./clone.js";
import { listen, showList } from "./list.js";

const PAUSE = 1200; // milliseconds between looks at what may change
const LONG_PAUSE = 8000; // at what has ended
const KEPT = 200_000; // lines of a log in memory
const SHOWN = 2000; // lines of a log in the document
const PAGES = 20; // of a log in one go, so that a long one does not hold the rest up
const CHART = { height: 190, left: 48, right: 14, top: 10, bottom: 24 };

// -- curves -----------------------------------------------------------------------------------

/** A second `fit` begins at epoch 1 and goes on to the right; an attempt that resumes replaces what it repeats. */
function numbered(epochs) {
  const found = new Map();
  let before = 0;
  let last = 0;
  for (const { epoch, logs } of epochs) {
    if (epoch === 1) before = last;
    last = before + epoch;
    found.set(last, logs);
  }
  return [...found].sort(([one], [other]) => one - other);
}

/** Series by chart: `loss` and `val_loss` share one. */
function families(epochs) {
  const rows = numbered(epochs);
  const names = [...new Set(rows.flatMap(([, logs]) => Object.keys(logs)))];
  const heads = [...new Set(names.map((name) => name.replace(/^val_/, "")))];
  heads.sort((one, other) => (other === "loss") - (one === "loss"));
  return heads.map((head) => ({
    head,
    series: names.filter((name) => name.replace(/^val_/, "") === head).sort()
      .map((name) => ({ name, points: rows.filter(([, logs]) => name in logs).map(([x, logs]) => [x, logs[name]]) })),
  }));
}

function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((number) => number * power).find((size) => size >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, k) => (first + k) * step);
}

/** The values' range with room around it, also where there is one value, or none. */
function range(values) {
  const low = values.reduce((one, other) => Math.min(one, other), Infinity);
  const high = values.reduce((one, other) => Math.max(one, other), -Infinity);
  if (low > high) return [0, 1];
  const room = (high - low) * 0.06 || Math.abs(low) * 0.1 || 1;
  return [low - room, high + room];
}

function scales(series, width) {
  const points = series.flatMap((one) => one.points);
  const finite = points.map(([, y]) => y).filter(Number.isFinite);
  const [low, high] = range(finite);
  const [first, last] = [points[0][0], Math.max(...series.map((one) => one.points.at(-1)[0]))];
  const [wide, tall] = [width - CHART.left - CHART.right, CHART.height - CHART.top - CHART.bottom];
  return {
    x: (value) => CHART.left + (last > first ? (value - first) / (last - first) : 0.5) * wide,
    y: (value) => CHART.top + ((high - value) / (high - low)) * tall,
    across: last > first ? ticks(first, last, Math.max(2, Math.min(6, wide / 60))).filter(Number.isInteger) : [first],
    up: finite.length ? ticks(low, high, 4) : [],
  };
}

function axes({ x, y, across, up }, width) {
  const floor = CHART.height - CHART.bottom;
  const lines = up.map((value) => svg("line", { x1: CHART.left, x2: width - CHART.right, y1: y(value), y2: y(value) }));
  const label = (x, y, side, value) => svg("text", { x, y, "text-anchor": side }, short(value));
  const sides = up.map((value) => label(CHART.left - 8, y(value) + 4, "end", value));
  const feet = across.map((value) => label(x(value), floor + 17, "middle", value));
  const base = svg("line", { class: "floor", x1: CHART.left, x2: width - CHART.right, y1: floor, y2: floor });
  return svg("g", { class: "axes" }, ...lines, base, ...sides, ...feet);
}

/** A line that has gaps where values are not finite; points without neighbours become dots. */
function curve({ points }, k, { x, y }) {
  const parts = [[]];
  for (const [when, value] of points) Number.isFinite(value) ? parts.at(-1).push([x(when), y(value)]) : parts.push([]);
  const lines = parts.filter((part) => part.length > 1)
    .map((part) => `M${part.map(([left, top]) => `${left.toFixed(1)},${top.toFixed(1)}`).join("L")}`);
  const dots = parts.filter((part) => part.length === 1).map(([[cx, cy]]) => svg("circle", { cx, cy, r: 3.5 }));
  return svg("g", { class: `series-${k}` }, svg("path", { d: lines.join("") }), ...dots);
}

function values(series, when) {
  const found = series.map(({ name, points }) => [name, points.find(([x]) => x === when)]);
  return found.filter(([, point]) => point).map(([name, [, value]]) => [name, short(value ?? NaN)]);
}

/** One metric's chart. Its cursor survives when new epochs come in. */
class Chart {
  constructor(head) {
    this.legend = el("figcaption");
    this.plot = svg("svg", { role: "img", tabindex: "0", height: CHART.height });
    this.tip = el("div", { class: "tip", role: "status", hidden: "" });
    this.figure = el("figure", { class: "chart", "data-metric": head }, this.legend, this.plot, this.tip);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("keydown", (event) => this.key(event));
    for (const end of ["pointerleave", "blur"]) this.plot.addEventListener(end, () => this.mark(null));
    this.cursor = null;
  }

  draw(series) {
    const [width, facts] = [this.figure.clientWidth, JSON.stringify(series)];
    if (this.width === width && this.facts === facts) return;
    Object.assign(this, { series, width, facts, scale: scales(series, width) });
    this.when = [...new Set(series.flatMap(({ points }) => points.map(([x]) => x)))];
    const latest = series.map(({ name, points }) => [name, short(points.at(-1)[1] ?? NaN)]);
    const keys = latest.map(([name, value], k) => el("span", { class: `series-${k}` }, name, el("b", {}, value)));
    this.legend.replaceChildren(...keys);
    const words = latest.map((pair) => pair.join(" ")).join(", ");
    this.plot.setAttribute("aria-label", `${this.when.length} epochs; latest ${words}`);
    this.plot.setAttribute("viewBox", `0 0 ${width} ${CHART.height}`);
    this.line = svg("line", { class: "cursor", y1: CHART.top, y2: CHART.height - CHART.bottom, visibility: "hidden" });
    this.plot.replaceChildren(axes(this.scale, width), ...series.map((one, k) => curve(one, k, this.scale)), this.line);
    this.mark(this.cursor);
  }

  point(event) {
    const place = event.clientX - this.plot.getBoundingClientRect().left;
    const far = (x) => Math.abs(this.scale.x(x) - place);
    this.mark(this.when.reduce((best, x) => (far(x) < far(best) ? x : best)));
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const k = this.cursor === null ? this.when.length - (step > 0) : this.when.indexOf(this.cursor) + step;
    this.mark(this.when[Math.max(0, Math.min(this.when.length - 1, k))]);
  }

  mark(when) {
    this.cursor = when;
    this.tip.hidden = when === null;
    this.line.setAttribute("visibility", when === null ? "hidden" : "visible");
    if (when === null) return;
    const x = this.scale.x(when);
    for (const side of ["x1", "x2"]) this.line.setAttribute(side, x);
    const lines = values(this.series, when).map(([name, value]) => el("div", {}, `${name} `, el("b", {}, value)));
    this.tip.replaceChildren(el("div", { class: "quiet" }, `epoch ${when}`), ...lines);
    const far = x > this.width / 2;
    this.tip.style.left = far ? "auto" : `${x + 10}px`;
    this.tip.style.right = far ? `${this.width - x + 10}px` : "auto";
  }
}

function drawCurves(epochs, over) {
  const found = families(epochs);
  at("curves").hidden = over && !found.length;
  at("curves-none").hidden = found.length > 0;
  for (const { head } of found) {
    if (shown.charts.has(head)) continue;
    shown.charts.set(head, new Chart(head));
    at("charts").append(shown.charts.get(head).figure);
  }
  for (const { head, series } of found) shown.charts.get(head).draw(series);
}

// -- where the time goes ----------------------------------------------------------------------

const total = (seconds) => Object.values(seconds).reduce((sum, one) => sum + one, 0);
function part(seconds, kind, whole) {
  const percent = (100 * seconds[kind]) / (whole || 1);
  return `${seconds[kind].toFixed(1)} s, ${percent.toFixed(0)} %`;
}

/** `kinds`: what time is spent on, in words by kind, without what none was spent on. */
function rankBar(seconds, kinds, rank, longest) {
  const whole = total(seconds);
  const said = kinds.map(([kind, words]) => `${words} ${part(seconds, kind, whole)}`);
  const words = `rank ${rank}: ${said.join("; ")}`;
  const pieces = kinds.map(([kind], index) => {
    const width = `width:${(100 * seconds[kind]) / (longest || 1)}%`;
    return el("span", { class: `kind ${kind}`, title: said[index], style: width });
  });
  const stack = el("div", { class: "stack", role: "img", tabindex: "0", "aria-label": words }, ...pieces);
  const [name, time] = [el("span", {}, `rank ${rank}`), el("span", { class: "quiet" }, lasting(whole))];
  return el("div", { class: "rank" }, name, stack, time);
}

function legend(who, seconds, kinds) {
  const whole = total(seconds);
  const share = (kind) => el("b", {}, part(seconds, kind, whole));
  const entries = kinds.map(([kind, words]) =>
    el("li", {}, el("span", { class: `kind ${kind}` }), `${words} `, share(kind)),
  );
  return [el("li", { class: "quiet" }, who), ...entries];
}

/** The legend has the sums; of one rank while that has the pointer or the focus. */
function drawRanks({ kinds, ranks }) {
  const sum = Object.fromEntries(
    Object.keys(kinds).map((kind) => [kind, ranks.reduce((all, rank) => all + rank[kind], 0)]),
  );
  const spent = Object.entries(kinds).filter(([kind]) => sum[kind] > 0);
  const list = el("ul", { class: "legend" });
  const all = () => list.replaceChildren(...legend(ranks.length > 1 ? "all ranks" : "rank 0", sum, spent));
  const longest = Math.max(...ranks.map(total));
  const bars = ranks.map((seconds, rank) => {
    const bar = rankBar(seconds, spent, rank, longest);
    const mine = () => list.replaceChildren(...legend(`rank ${rank}`, seconds, spent));
    for (const begin of ["pointerenter", "focusin"]) bar.addEventListener(begin, mine);
    for (const end of ["pointerleave", "focusout"]) bar.addEventListener(end, all);
    return bar;
  });
  all();
  return [el("div", { class: "ranks" }, ...bars), list];
}

// -- the log ----------------------------------------------------------------------------------

/** One instance's lines. `end` is null while the newest are shown, else where what is shown ends. */
class Log {
  constructor(number) {
    Object.assign(this, { number, offset: 0, lines: [], found: [], end: null, wanted: "" });
    at("log").replaceChildren();
  }

  /** Whether there is more to read now. */
  async read(name) {
    let page = { lines: null };
    for (let k = 0; k < PAGES && page.lines?.length !== 0; k++) {
      page = await ask(`${address(name)}/logs/${this.number}?offset=${this.offset}`);
      this.offset = page.offset;
      if (page.lines.length) this.take(page.lines); // at once: choosing another log ends this loop
    }
    return page.lines.length > 0;
  }

  take(lines) {
    const fitting = lines.filter((line) => this.fits(line));
    this.lines = this.lines.concat(lines);
    this.found = this.found.concat(fitting);
    const gone = this.lines.splice(0, Math.max(0, this.lines.length - KEPT));
    this.found.splice(0, gone.filter((line) => this.fits(line)).length);
    if (this.end === null) this.add(fitting);
    else this.end = Math.min(this.end, this.found.length);
    this.count();
  }

  fits(line) {
    return line.text.toLowerCase().includes(this.wanted);
  }

  search(words) {
    this.wanted = words.toLowerCase();
    this.found = this.lines.filter((line) => this.fits(line));
    this.show(null);
  }

  /** Shows the lines before `end`. */
  show(end) {
    this.end = end;
    const last = end ?? this.found.length;
    at("log").replaceChildren(...this.found.slice(Math.max(0, last - SHOWN), last).map((line) => this.line(line)));
    if (end === null) at("log").scrollTop = at("log").scrollHeight;
    this.count();
  }

  add(lines) {
    at("log").append(...lines.slice(-SHOWN).map((line) => this.line(line)));
    while (at("log").childElementCount > SHOWN) at("log").firstElementChild.remove();
    at("log").scrollTop = at("log").scrollHeight;
  }

  /** Moves what is shown over the lines; those in view stay where they are. */
  shift(count) {
    const [box, last] = [at("log"), this.end ?? this.found.length];
    const end = Math.min(Math.max(last + count, SHOWN), this.found.length);
    const k = count < 0 ? 0 : box.childElementCount - 1;
    const above = box.children[k].offsetTop - box.scrollTop;
    this.show(end);
    box.scrollTop = box.children[k - (end - last)].offsetTop - above;
  }

  /** Scrolled up, the log stands still; at its lower end new lines come in again. */
  scrolled() {
    const { scrollHeight, scrollTop, clientHeight } = at("log");
    const low = scrollHeight - scrollTop - clientHeight < 24;
    if (!low && this.end === null) this.end = this.found.length;
    else if (low && this.end >= this.found.length) this.end = null;
    else if (low && this.end !== null) this.shift(SHOWN / 2);
    if (scrollTop < 24 && (this.end ?? 0) > SHOWN) this.shift(-SHOWN / 2);
    this.count();
  }

  count() {
    const last = this.end ?? this.found.length;
    const first = Math.max(0, last - SHOWN);
    const some = first > 0 || last < this.found.length;
    const which = some ? `${(first + 1).toLocaleString()}–${last.toLocaleString()} of ` : "";
    const many = `${this.found.length.toLocaleString()} ${this.wanted ? "found" : "lines"}`;
    tell(at("log-count"), which + many);
    at("latest").hidden = this.end === null;
  }

  line({ time, text }) {
    const node = el("div", { "data-time": clock(time / 1000) });
    const place = this.wanted ? text.toLowerCase().indexOf(this.wanted) : -1;
    const end = place + this.wanted.length;
    if (place < 0) node.append(text || " ");
    else node.append(text.slice(0, place), el("mark", {}, text.slice(place, end)), text.slice(end));
    return node;
  }
}

/** The whole log of the instance that is shown, as a file. */
function aim() {
  at("download").href = `${address(shown.name)}/logs/${shown.log.number}/download`;
}

function drawStreams(streams) {
  return streams.map((name, k) => el("option", { value: k }, name.split("/").pop().replace(/-\d+$/, "")));
}

// -- one job ----------------------------------------------------------------------------------

let shown = { name: "", charts: new Map(), log: null, clone: null };

function begin(name) {
  shown = { name, charts: new Map(), log: new Log(0), clone: null };
  for (const id of ["charts", "ranks", "stream"]) at(id).replaceChildren(), drawn.delete(at(id));
  at("filter").value = "";
  aim();
  at("job-title").textContent = name;
  tell(at("stop-note"), "");
  confirmStop(false);
}

function drawJob({ job, streams, epochs, left, kinds, ranks, run: how, artifacts: there }) {
  const over = ended(job);
  redraw(at("job-facts"), { job, words: [ago(job.CreationTime).textContent, duration(job)] }, () => facts(job));
  const progress = { ...job.ProgressInfo, left: leftWords(left) };
  redraw(at("progress"), progress, () => epochBar(progress, progress.left));
  at("stopping").hidden = job.TrainingJobStatus !== "InProgress" || job.SecondaryStatus === "Uploading";
  if (at("stopping").hidden) confirmStop(false);
  at("failure").hidden = !job.FailureReason;
  tell(at("failure-text"), job.FailureReason ?? "");
  const until = over ? 0 : Math.floor(now());
  redraw(at("story"), { transitions: job.SecondaryStatusTransitions, failure: job.FailureReason, until }, story);
  redraw(at("artifacts"), { name: job.TrainingJobName, there, over }, artifacts);
  const metrics = job.FinalMetricDataList ?? [];
  at("metrics-section").hidden = !metrics.length;
  redraw(at("metrics"), metrics, lastValues);
  redraw(at("settings"), job.HyperParameters ?? {}, settings);
  redraw(at("run"), { resources: job.ResourceConfig, run: how }, run);
  redraw(at("stream"), streams, drawStreams);
  at("download").hidden = !streams.length;
  at("time").hidden = !ranks.some(total);
  redraw(at("ranks"), { kinds, ranks }, drawRanks);
  drawCurves(epochs, over);
}

async function showJob(name) {
  const fresh = shown.name !== name;
  const answer = await ask(address(name));
  if (fresh) begin(name);
  reveal("job");
  shown.clone = answer.clone;
  drawJob(answer);
  if (fresh) at("job-title").focus();
  announce([answer.job]);
  document.title = `${name} · ${answer.job.SecondaryStatus} · Syrtos`;
  if (answer.streams.length && (await shown.log.read(name))) return 0;
  return ended(answer.job) ? LONG_PAUSE : PAUSE;
}

function confirmStop(wanted) {
  at("stop").hidden = wanted;
  at("stop-ask").hidden = !wanted;
}

async function stop() {
  confirmStop(false);
  at("job-title").focus();
  try {
    await ask(`${address(shown.name)}/stop`, { method: "POST", headers: { "X-Syrtos": "page" }, alone: true });
    tell(at("stop-note"), "");
  } catch (error) {
    tell(at("stop-note"), trouble(error));
  }
  refresh();
}

// -- where we are, and keys -------------------------------------------------------------------

const wanted = () => decodeURIComponent(/^#\/jobs\/([A-Za-z0-9-]+)$/.exec(location.hash)?.[1] ?? "");
let left = ""; // the job that we come back from: its link gets the focus
let timer = 0;

function reveal(id) {
  for (const view of ["list", "job"]) at(view).hidden = view !== id;
}

/** Looks at what is shown, again and again; nothing is asked while the tab is hidden. */
async function refresh() {
  clearTimeout(timer);
  const mine = askAnew();
  let pause = LONG_PAUSE / 2;
  try {
    pause = await (wanted() ? showJob(wanted()) : showList(reveal, left));
    if (!wanted()) left = "";
    tell(at("trouble"), "");
  } catch (error) {
    if (mine.signal.aborted) return;
    if (error instanceof Refusal && error.code === 404) reveal("");
    tell(at("trouble"), trouble(error));
  }
  if (mine === asking && !document.hidden) timer = setTimeout(refresh, pause);
}

function move() {
  if (!wanted()) {
    left = shown.name;
    shown.name = "";
    document.title = "Syrtos";
  }
  window.scrollTo(0, 0);
  refresh();
}

function step(count) {
  const links = [...document.querySelectorAll("#jobs a")];
  const k = links.indexOf(document.activeElement);
  links[k < 0 ? (count > 0 ? 0 : links.length - 1) : Math.max(0, Math.min(links.length - 1, k + count))]?.focus();
}

function back() {
  if (!at("stop-ask").hidden) {
    confirmStop(false);
    at("stop").focus();
  } else location.hash = "#/";
}

function typing(event) {
  if (event.key !== "Escape") return;
  event.preventDefault();
  if (!event.target.value) at("log").focus();
  event.target.value = "";
  shown.log.search("");
}

const inList = (action) => () => !at("list").hidden && action();
const KEYS = {
  j: inList(() => step(1) ?? true), ArrowDown: inList(() => step(1) ?? true),
  k: inList(() => step(-1) ?? true), ArrowUp: inList(() => step(-1) ?? true),
  "/": () => at(at("job").hidden ? "search" : "filter").focus() ?? true,
  "?": () => at("help").showModal() ?? true,
  Escape: () => wanted() && (back() ?? true),
};

document.addEventListener("keydown", (event) => {
  const other = event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea");
  if (!other && !document.querySelector("dialog[open]") && KEYS[event.key]?.()) event.preventDefault();
});
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : refresh()));
window.addEventListener("hashchange", move);
new ResizeObserver(() => {
  if (!at("job").hidden) shown.charts.forEach((chart) => chart.draw(chart.series));
}).observe(at("charts"));
at("stop").addEventListener("click", () => (confirmStop(true), at("stop-yes").focus()));
at("stop-no").addEventListener("click", back);
at("stop-yes").addEventListener("click", stop);
at("clone-open").addEventListener("click", () => shown.clone && openClone(shown.name, shown.clone));
at("help-open").addEventListener("click", () => at("help").showModal());
at("help-close").addEventListener("click", () => at("help").close());
at("filter").addEventListener("keydown", typing);
at("filter").addEventListener("input", (event) => shown.log.search(event.target.value));
at("log").addEventListener("scroll", () => shown.log?.scrolled());
at("latest").addEventListener("click", () => shown.log.show(null));
at("stream").addEventListener("change", (event) => {
  shown.log = new Log(Number(event.target.value));
  shown.log.search(at("filter").value);
  aim();
  refresh();
});

/** On a narrow screen artifacts come before the log, for the keyboard too. */
const narrow = matchMedia("(max-width: 860px)");
const place = () => at(narrow.matches ? "logs-section" : "metrics-section").before(at("artifacts-section"));
narrow.addEventListener("change", place);
place();
listen(refresh);
refresh();

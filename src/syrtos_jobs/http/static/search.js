// Tuning jobs: their list beside that of jobs, and the page of one.

import {
  ago, announce, ask, at, el, lasting, now, redraw, searchAddress, short, status, tell, trouble,
} from "./base.js";

const PAUSE = 1500; // milliseconds between looks at what goes on
const LONG_PAUSE = 10000;
const NARROW = 620; // pixels: parallel coordinates lie down
const { Chart, axis, legend, tooltip } = SyrtosReport.parts;

const asJob = (name, is, finer) => ({ TrainingJobName: name, TrainingJobStatus: is, SecondaryStatus: finer });
const goesOn = (is) => is === "InProgress" || is === "Stopping";

function moodOf(name, is) {
  const node = status(asJob(name, is, is === "InProgress" ? "Training" : is));
  node.lastChild.textContent = is === "InProgress" ? "In progress" : is;
  return node;
}

// -- the list ---------------------------------------------------------------------------------

const endedOf = ({ Completed, Stopped, RetryableError, NonRetryableError }) => Completed + Stopped + RetryableError + NonRetryableError;

function bar(counters, most) {
  const words = `${endedOf(counters)} of ${most} trials`;
  const value = Math.min(endedOf(counters), most);
  return [el("progress", { value, max: most, "aria-label": words }), el("span", { class: "quiet" }, words)];
}

function row(search) {
  const [name, value] = search.best ?? ["", null];
  const best = search.best ? [el("span", { class: "quiet" }, `best ${name}`), el("b", {}, short(value ?? NaN))] : [];
  const reason = search.failure ? el("span", { class: "reason" }, search.failure) : null;
  const took = lasting((search.ended ?? now()) - search.created);
  return [
    moodOf(search.name, search.status),
    el("span", { class: "what" }, el("span", { class: "name" }, search.name), el("span", { class: "quiet" }, search.strategy), reason),
    el("span", { class: "metric" }, ...best),
    el("span", { class: "bar" }, ...bar(search.counters, search.most)),
    el("span", { class: "quiet when" }, el("span", {}, ago(search.created)), el("span", {}, took)),
  ];
}

/** Links stay the same elements, so that polling does not take the focus away. */
export function drawSearches(searches) {
  at("searches-section").hidden = !searches.length;
  const links = new Map([...at("searches").querySelectorAll("a")].map((link) => [link.dataset.name, link]));
  const items = searches.map((search) => {
    const link = links.get(search.name) ?? el("a", { href: `#/tuning/${search.name}`, "data-name": search.name });
    const until = goesOn(search.status) ? Math.floor(now()) : 0;
    redraw(link, { ...search, until, words: ago(search.created).textContent }, () => row(search));
    return link.parentElement ?? el("li", {}, link);
  });
  const present = [...at("searches").children];
  if (items.length !== present.length || items.some((item, k) => item !== present[k])) at("searches").replaceChildren(...items);
}

// -- words about trials -----------------------------------------------------------------------

let shown = { name: "", answer: null, objective: null, parallel: null, sort: { key: "number", down: false } };

const value = (trial) => trial.FinalHyperParameterTuningJobObjectiveMetric?.Value ?? null;
const counts = (trial) => trial.ObjectiveStatus === "Succeeded";

/** SDKs send texts as JSON; a number is read with as many digits as one compares. */
function plain(text) {
  if (text !== "" && Number.isFinite(Number(text))) return short(Number(text));
  return /^".*"$/.test(text) ? text.slice(1, -1) : text;
}
const tuned = (trial) => Object.entries(trial.TunedHyperParameters).map(([name, text]) => `${name} ${plain(text)}`).join(", ");
const words = (trial) => `Trial ${trial.number}: ${shown.answer.metric} ${value(trial) === null ? "none" : short(value(trial))}, ${tuned(trial)}`;
const took = (trial) => (trial.TrainingStartTime ? (trial.TrainingEndTime ?? now()) - trial.TrainingStartTime : null);

function trialStatus(trial) {
  const finer = trial.TrainingJobStatus === "InProgress" ? (trial.TrainingStartTime ? "Training" : "Pending") : trial.TrainingJobStatus;
  return status(asJob(trial.TrainingJobName, trial.TrainingJobStatus, finer));
}

// -- charts -----------------------------------------------------------------------------------

/** The best value until each trial that counts, in the order of numbers. */
function soFar(trials, maximize) {
  let best = null;
  return trials.map((trial) => {
    if (counts(trial) && (best === null || (maximize ? value(trial) > best : value(trial) < best))) best = value(trial);
    return [trial.number, best];
  });
}

function drawObjective({ trials, metric, maximize, search }) {
  const some = trials.filter((trial) => value(trial) !== null);
  shown.objective.whole.hidden = !some.length;
  const colour = (trial, c) => (trial.TrainingJobName === search.BestTrainingJob?.TrainingJobName ? c.good : counts(trial) ? c.accent : c.quiet);
  shown.objective.draw({ count: some.length, tip: 1, say: (i) => words(some[i]), make: (c) => ({
    grid: { left: 64, right: 20, top: 32, bottom: 46 },
    legend: legend(c),
    xAxis: axis(c, "trial", { min: 0, max: Math.max(...trials.map((trial) => trial.number)) + 1, minInterval: 1 }),
    yAxis: axis(c, "", { scale: true }),
    tooltip: tooltip(c, { formatter: (point) => (point.seriesIndex === 1 ? words(some[point.dataIndex]) : "") }),
    series: [
      { type: "line", name: "best so far", step: "end", showSymbol: false, lineStyle: { color: c.good, width: 1.6 }, itemStyle: { color: c.good }, data: soFar(some, maximize) },
      { type: "scatter", name: metric, symbolSize: 9, itemStyle: { color: c.accent }, data: some.map((trial) => ({ value: [trial.number, value(trial)], itemStyle: { color: colour(trial, c) } })) },
    ],
  }) });
}

function parallelAxis(parameter, dim, c) {
  const common = { dim, name: parameter.name, nameTextStyle: { color: c.ink }, nameTruncate: { maxWidth: 88 }, axisLine: { lineStyle: { color: c.line } }, axisLabel: { color: c.quiet, textBorderColor: c.ground, textBorderWidth: 3, formatter: (x) => (typeof x === "number" ? short(x) : plain(x)) } };
  if (parameter.values) return { ...common, type: "category", data: parameter.values };
  return { ...common, type: parameter.scale === "log" ? "log" : "value", min: parameter.low, max: parameter.high };
}

function drawParallel({ trials, parameters, metric, search }) {
  const some = trials.filter((trial) => counts(trial));
  const isBest = (trial) => trial.TrainingJobName === search.BestTrainingJob?.TrainingJobName;
  shown.parallel.whole.parentElement.hidden = some.length < 2;
  const line = (trial) => [...parameters.map((p) => (p.values ? trial.TunedHyperParameters[p.name] : Number(trial.TunedHyperParameters[p.name]))), value(trial)];
  const least = Math.min(...some.map(value)), most = Math.max(...some.map(value));
  const narrow = at("search-charts").clientWidth < NARROW;
  const tip = 2; // no series: the library can't place a tooltip at a line of this chart, whose words are under it
  shown.parallel.draw({ count: some.length, tip, say: (i) => words(some[i]), height: narrow ? 70 * (parameters.length + 1) + 50 : 320, make: (c) => ({
    parallel: narrow ? { layout: "vertical", left: 34, right: 96, top: 40, bottom: 30 } : { left: 50, right: 70, top: 40, bottom: 24 },
    parallelAxis: [...parameters, { name: metric, low: least, high: most }].map((parameter, dim) => parallelAxis(parameter, dim, c)),
    tooltip: tooltip(c, { formatter: (point) => words(point.seriesIndex ? some.find(isBest) : some[point.dataIndex]) }),
    series: [
      { type: "parallel", smooth: 0.1, lineStyle: { color: c.accent, width: 1.4, opacity: 0.5 }, data: some.map(line) },
      { type: "parallel", smooth: 0.1, lineStyle: { color: c.good, width: 3, opacity: 1 }, data: some.filter(isBest).map(line) },
    ],
  }) });
}

function makeCharts() {
  const section = (title, chart, hint) => el("section", { class: "report-section" }, el("h2", {}, title), el("p", { class: "report-quiet" }, hint), chart.whole);
  shown.objective = new Chart("Objective of each trial, and the best so far", 280);
  shown.parallel = new Chart("Parallel coordinates: a line for each trial through its hyperparameters to its objective", 320);
  at("search-charts").replaceChildren(
    section("Objective over trials", shown.objective, "A dot is a trial; the line is the best value so far."),
    section("Hyperparameters and objective", shown.parallel, "A line is a trial; the thick one is the best."),
  );
}

function drawCharts() {
  drawObjective(shown.answer);
  drawParallel(shown.answer);
}

// -- the table --------------------------------------------------------------------------------

/** What a column is sorted by; a trial without it comes last. */
function columns({ parameters, metric }) {
  const number = (text) => (Number.isFinite(Number(text)) ? Number(text) : text);
  return [
    { key: "number", name: "Trial", of: (trial) => trial.number },
    { key: "status", name: "Status", of: (trial) => trial.TrainingJobStatus },
    { key: "value", name: metric, of: value },
    ...parameters.map(({ name }) => ({ key: `p-${name}`, name, of: (trial) => number(trial.TunedHyperParameters[name]) })),
    { key: "took", name: "Time", of: took },
  ];
}

function compare(one, other, down) {
  if (one === null || other === null) return (one === null) - (other === null);
  const order = one < other ? -1 : one > other ? 1 : 0;
  return down ? -order : order;
}

function cells(trial, { parameters }) {
  const link = el("a", { href: `#/jobs/${trial.TrainingJobName}`, title: trial.TrainingJobName }, String(trial.number));
  const time = took(trial);
  return [
    el("th", { scope: "row" }, link),
    el("td", {}, trialStatus(trial)),
    el("td", {}, value(trial) === null ? "" : short(value(trial))),
    ...parameters.map(({ name }) => el("td", {}, plain(trial.TunedHyperParameters[name]))),
    el("td", {}, time === null ? "" : lasting(time)),
  ];
}

function drawHead(answer) {
  const head = columns(answer).map(({ key, name }) => {
    const button = el("button", { type: "button", "data-key": key }, name);
    button.addEventListener("click", () => sortBy(key));
    return el("th", { scope: "col" }, button);
  });
  return el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", { id: "search-rows" }));
}

function sortBy(key) {
  const { sort } = shown;
  shown.sort = { key, down: sort.key === key && !sort.down };
  drawRows();
}

function drawRows() {
  const { answer, sort } = shown;
  for (const button of at("search-trials").querySelectorAll("thead button")) {
    const chosen = button.dataset.key === sort.key;
    if (chosen) button.parentElement.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
    else button.parentElement.removeAttribute("aria-sort");
  }
  const { of } = columns(answer).find(({ key }) => key === sort.key);
  const trials = [...answer.trials].sort((one, other) => compare(of(one), of(other), sort.down) || one.number - other.number);
  const best = answer.search.BestTrainingJob?.TrainingJobName;
  const line = (trial) => el("tr", { class: trial.TrainingJobName === best ? "chosen" : null }, ...cells(trial, answer));
  const until = trials.some((trial) => goesOn(trial.TrainingJobStatus)) ? Math.floor(now()) : 0;
  redraw(at("search-rows"), { trials, sort, until }, () => trials.map(line));
}

// -- one tuning job ---------------------------------------------------------------------------

function facts({ search, most, parallel, metric, maximize }) {
  const { CreationTime: from, HyperParameterTuningEndTime: to, HyperParameterTuningJobConfig: config } = search;
  const parts = [
    [`${config.Strategy} search`], [`${maximize ? "maximizes" : "minimizes"} ${metric}`],
    [`${most} trials, ${parallel} at a time`], ["created ", ago(from)], [lasting((to ?? now()) - from)],
  ];
  return [moodOf(search.HyperParameterTuningJobName, search.HyperParameterTuningJobStatus), ...parts.map((inside) => el("span", {}, ...inside))];
}

function counters({ search, most }) {
  const { InProgress, Stopped, RetryableError, NonRetryableError } = search.TrainingJobStatusCounters;
  const failed = RetryableError + NonRetryableError;
  const more = [[InProgress, "running or waiting"], [Stopped, "stopped"], [failed, "failed"]].filter(([count]) => count);
  const [progress, label] = bar(search.TrainingJobStatusCounters, most);
  label.append(...more.map(([count, name]) => ` · ${count} ${name}`));
  return [progress, label];
}

function drawBest({ search, trials, metric }) {
  const trial = trials.find((one) => one.TrainingJobName === search.BestTrainingJob?.TrainingJobName);
  at("search-best-section").hidden = !trial;
  if (!trial) return;
  const link = () => el("a", { href: `#/jobs/${trial.TrainingJobName}` }, trial.TrainingJobName);
  redraw(at("search-best"), trial, () => el("p", {}, link(), ` · ${metric} `, el("b", {}, short(value(trial))), ` · ${tuned(trial)}`));
}

function drawStatic({ static: given }) {
  const rows = Object.entries(given).map(([name, text]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, plain(text))));
  redraw(at("search-static"), given, () => el("table", {}, el("tbody", {}, ...rows)));
}

function begin(name, answer) {
  shown = { name, answer, objective: null, parallel: null, sort: { key: "number", down: false } };
  at("search-title").textContent = name;
  at("search-trials").replaceChildren(drawHead(answer));
  makeCharts();
  tell(at("search-note"), "");
  confirmEnd(false);
}

function draw(answer) {
  const { search } = answer;
  const over = !goesOn(search.HyperParameterTuningJobStatus);
  shown.answer = answer;
  redraw(at("search-facts"), { search, until: over ? 0 : Math.floor(now()), created: ago(search.CreationTime).textContent }, () => facts(answer));
  redraw(at("search-progress"), search.TrainingJobStatusCounters, () => counters(answer));
  at("search-stopping").hidden = search.HyperParameterTuningJobStatus !== "InProgress";
  if (at("search-stopping").hidden) confirmEnd(false);
  at("search-failure").hidden = !search.FailureReason;
  tell(at("search-failure-text"), search.FailureReason ?? "");
  drawBest(answer);
  drawRows();
  drawStatic(answer);
}

export async function showSearch(name, reveal) {
  const answer = await ask(searchAddress(name));
  const fresh = shown.name !== name;
  const before = fresh ? "" : JSON.stringify(shown.answer.trials);
  if (fresh) begin(name, answer);
  reveal("search-page");
  draw(answer);
  if (JSON.stringify(answer.trials) !== before) drawCharts();
  if (fresh) at("search-title").focus();
  const is = answer.search.HyperParameterTuningJobStatus;
  announce([asJob(name, is, is)]);
  document.title = `${name} · ${is} · Syrtos`;
  return goesOn(is) ? PAUSE : LONG_PAUSE;
}

export function leaveSearch() {
  shown.name = "";
}

export function confirmEnd(wanted) {
  at("search-stop").hidden = wanted;
  at("search-stop-ask").hidden = !wanted;
}

export async function endSearch(refresh) {
  confirmEnd(false);
  at("search-title").focus();
  try {
    await ask(`${searchAddress(shown.name)}/end`, { method: "POST", headers: { "X-Syrtos": "page" }, alone: true });
    tell(at("search-note"), "");
  } catch (error) {
    tell(at("search-note"), trouble(error));
  }
  refresh();
}

let resizing = 0;
const again = () => shown.name && shown.answer && drawCharts();
window.addEventListener("resize", () => (clearTimeout(resizing), (resizing = setTimeout(again, 150))));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);

// What is told about one job beside its curves and its log.

import { address, ago, clock, duration, el, instances, lasting, short, status } from "./base.js";

export function facts(job) {
  const parts = [[instances(job.ResourceConfig)], ["created ", ago(job.CreationTime)], [duration(job)]];
  return [status(job), ...parts.map((inside) => el("span", {}, ...inside))];
}

export function story({ transitions, failure, until }) {
  return transitions.map(({ Status: name, StartTime: from, EndTime: to, StatusMessage: message }) => {
    const time = to === from ? clock(from) : `${clock(from)} · ${lasting((to ?? until) - from)}`;
    const said = message === failure ? null : el("p", {}, message);
    const mood = name === "Failed" ? "bad" : null;
    return el("li", { class: mood }, el("b", {}, name), el("span", { class: "quiet" }, time), said);
  });
}

function table(rows, headings) {
  const head = el("tr", {}, ...headings.map((text) => el("th", { scope: "col" }, text)));
  const cells = (texts) => texts.map((text) => el("td", {}, text));
  const lines = rows.map(([name, ...rest]) => el("tr", {}, el("th", { scope: "row" }, name), ...cells(rest)));
  return el("table", {}, el("thead", {}, head), el("tbody", {}, ...lines));
}

export function lastValues(metrics) {
  const rows = metrics.map((one) => [one.MetricName, short(one.Value ?? NaN), clock(one.Timestamp)]);
  return table(rows, ["Name", "Last value", "At"]);
}

/** SDKs send each value as JSON; a string is easier to read without its quotes. */
function plain(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "string" ? value : text;
  } catch {
    return text;
  }
}

export function settings(given) {
  const rows = Object.entries(given).map(([name, text]) => [name, plain(text)]);
  const own = rows.filter(([name]) => !name.startsWith("sagemaker_"));
  const other = rows.filter(([name]) => name.startsWith("sagemaker_"));
  const more = el("details", {}, el("summary", {}, "Those of the SDK"), table(other, ["Name", "Value"]));
  const none = el("p", { class: "quiet" }, "None of the script's own.");
  return [own.length ? table(own, ["Name", "Value"]) : none, other.length ? more : ""];
}

export function artifacts({ name, there, over }) {
  const kinds = Object.keys(there).filter((kind) => there[kind]);
  const none = over ? "The job has left none." : "They appear when the job has ended.";
  if (!kinds.length) return el("p", { class: "quiet" }, none);
  const link = (kind) => el("a", { href: `${address(name)}/${kind}`, download: "" }, `${kind}.tar.gz`);
  return el("ul", { class: "files" }, ...kinds.map((kind) => el("li", {}, link(kind))));
}

function pairs(rows) {
  const known = rows.filter(([, what]) => what);
  return el("dl", { class: "pairs" }, ...known.map(([name, what]) => el("div", {}, el("dt", {}, name), el("dd", {}, what))));
}

/** How a job is run: its program, its instances, and what it found installed. */
export function run({ resources, run: { script, command, arguments: words, folder, source, workers, versions } }) {
  const code = (text) => text && el("code", {}, text);
  const facts = pairs([
    ["Entry point", code(script)],
    ["Arguments", code((words ?? []).join(" "))],
    ["Command", command && el("pre", { tabindex: "0", "aria-label": "Command" }, command)],
    ["Folder", code(folder)],
    ["Source", code(source)],
    ["Instances", instances(resources)],
    ["Workers on each instance", workers && String(workers)],
  ]);
  const rows = Object.entries(versions).map(([name, version]) => [name === "python" ? "Python" : name, version]);
  return [facts, rows.length ? table(rows, ["Installed", "Version"]) : ""];
}

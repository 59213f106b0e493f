// The list of jobs: a search, a kind of status, and which workers are in use.

import { drawSearches } from "./search.js";
import { ago, announce, ask, at, duration, el, epochBar, instances, leftWords, redraw, short, status, tell } from "./base.js";

const PAUSE = 1200; // milliseconds between looks
const LONG_PAUSE = 5000; // between searches, which look at many jobs
const TYPING = 150; // between a letter and the search
let kind = ""; // of status that is shown; none: all

const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

function metric(found) {
  if (!found) return el("span", { class: "metric" });
  const [name, value] = found;
  return el("span", { class: "metric" }, el("span", { class: "quiet" }, name), el("b", {}, short(value ?? NaN)));
}

function row(job) {
  const what = [job.script, instances(job.ResourceConfig)].filter(Boolean).join(" · ");
  const reason = job.reason ? el("span", { class: "reason" }, job.reason) : null;
  const name = el("span", { class: "name" }, job.TrainingJobName);
  return [
    status(job),
    el("span", { class: "what" }, name, el("span", { class: "quiet" }, what), reason),
    metric(job.metric),
    el("span", { class: "bar" }, ...epochBar(job.ProgressInfo, leftWords(job.left))),
    el("span", { class: "quiet when" }, el("span", {}, ago(job.CreationTime)), el("span", {}, duration(job))),
  ];
}

/** Links stay the same elements, so that polling does not take the focus away. */
function drawList(jobs) {
  const links = new Map([...at("jobs").querySelectorAll("a")].map((link) => [link.dataset.name, link]));
  const items = jobs.map((job) => {
    const name = job.TrainingJobName;
    const link = links.get(name) ?? el("a", { href: `#/jobs/${name}`, "data-name": name });
    redraw(link, { ...job, left: leftWords(job.left), words: [ago(job.CreationTime).textContent, duration(job)] }, () => row(job));
    return link.parentElement ?? el("li", {}, link);
  });
  const present = [...at("jobs").children];
  const same = items.length === present.length && items.every((item, k) => item === present[k]);
  if (!same) at("jobs").replaceChildren(...items);
}

function drawUsage({ used, capacity, waiting }) {
  // on the nodes of an engine there is no capacity of the service's own
  const words = capacity ? `${used} of ${plural(capacity, "worker")} in use` : `${plural(used, "worker")} in use`;
  const bar = capacity && el("progress", { value: Math.min(used, capacity), max: capacity, "aria-label": words });
  const queue = waiting ? el("span", { class: "waiting" }, `${plural(waiting, "job")} waiting`) : null;
  return [bar, el("span", {}, words), queue].filter(Boolean);
}

const buttons = () => [...at("kinds").querySelectorAll("button")];
const press = () => buttons().forEach((one) => one.setAttribute("aria-pressed", String(one.dataset.kind === kind)));

function drawKinds(counts) {
  const all = Object.values(counts).reduce((sum, count) => sum + count, 0);
  press();
  for (const button of buttons()) {
    const count = button.dataset.kind ? counts[button.dataset.kind] : all;
    button.querySelector("span").textContent = count.toLocaleString();
  }
  return all;
}

/** Says how many jobs a search has found; a screen reader says it too. */
function drawFound(jobs, more) {
  const searching = Boolean(kind || at("search").value.trim());
  const words = searching ? `${jobs.length ? plural(jobs.length, "job") : "No jobs"}${more ? " and more" : ""} found` : "";
  if (at("found").textContent !== words) at("found").textContent = words;
  at("jobs-unfit").hidden = jobs.length > 0 || !searching;
  tell(at("jobs-more"), more && jobs.length ? `The newest ${jobs.length} jobs.` : "");
}

/** Looks once. `left`: the job that we come back from, whose link gets the focus. */
export async function showList(reveal, left) {
  const wanted = new URLSearchParams({ search: at("search").value, status: kind });
  const { jobs, more, counts, capacity, used, searches } = await ask(`/ui/jobs?${wanted}`);
  const focused = document.activeElement;
  drawSearches(searches);
  drawList(jobs);
  if (focused.dataset.name && focused.isConnected) focused.focus(); // a new job has moved it
  const all = drawKinds(counts);
  at("finding").hidden = all === 0;
  at("jobs-none").hidden = all > 0;
  drawFound(jobs, more);
  redraw(at("capacity"), { used, capacity, waiting: counts.waiting }, drawUsage);
  reveal("list");
  if (left) [...document.querySelectorAll(".jobs a")].find((link) => link.dataset.name === left)?.focus();
  announce(jobs);
  return wanted.get("search").trim() ? LONG_PAUSE : PAUSE;
}

function choose(wanted, refresh) {
  kind = wanted;
  press();
  refresh();
}

function clear(refresh) {
  at("search").value = "";
  refresh();
}

/** Keys inside the search box: Esc empties it, and leaves it when it is empty; ↓ goes to what was found. */
function typing(event, refresh) {
  const first = () => document.querySelector("#jobs a");
  if (event.key === "ArrowDown") first()?.focus();
  else if (event.key === "Escape" && event.target.value) clear(refresh);
  else if (event.key === "Escape") first() ? first().focus() : event.target.blur();
  else return;
  event.preventDefault();
}

export function listen(refresh) {
  let timer = 0;
  at("search").addEventListener("keydown", (event) => typing(event, refresh));
  at("search").addEventListener("input", () => (clearTimeout(timer), (timer = setTimeout(refresh, TYPING))));
  at("jobs-all").addEventListener("click", () => (at("search").focus(), (kind = ""), clear(refresh)));
  for (const button of buttons()) button.addEventListener("click", () => choose(button.dataset.kind, refresh));
}

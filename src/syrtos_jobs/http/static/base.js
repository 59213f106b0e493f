// What all parts of the page use. What jobs say is text, and stays text: nothing here parses HTML.

const PATIENCE = 15000; // milliseconds, for one answer
const SYMBOLS = { good: "✓", bad: "✕", quiet: "■", waiting: "○", running: "●" };

// -- elements ---------------------------------------------------------------------------------

export const at = (id) => document.getElementById(id);

export function dress(node, facts, inside) {
  for (const [name, value] of Object.entries(facts)) if (value !== null) node.setAttribute(name, value);
  node.append(...inside.filter((part) => part !== null));
  return node;
}
export const el = (tag, facts = {}, ...inside) => dress(document.createElement(tag), facts, inside);
export const svg = (tag, facts = {}, ...inside) =>
  dress(document.createElementNS("http://www.w3.org/2000/svg", tag), facts, inside);

/** Draws into a node only when the facts have changed: what is selected or has the focus there stays so. */
export const drawn = new WeakMap();
export function redraw(node, facts, draw) {
  const text = JSON.stringify(facts);
  if (drawn.get(node) === text) return;
  drawn.set(node, text);
  node.replaceChildren(...[draw(facts)].flat());
}

// -- words and numbers ------------------------------------------------------------------------

export function short(value) {
  if (!Number.isFinite(value)) return "not finite";
  const size = Math.abs(value);
  return size && (size >= 1e6 || size < 1e-4) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

export function lasting(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const parts = [[Math.floor(whole / 86400), "d"], [Math.floor(whole / 3600) % 24, "h"],
                 [Math.floor(whole / 60) % 60, "min"], [whole % 60, "s"]];
  const first = parts.findIndex(([count]) => count);
  return first < 0 ? "under 1 s" : parts.slice(first, first + 2).map(([count, unit]) => `${count} ${unit}`).join(" ");
}

export const now = () => Date.now() / 1000;
export const clock = (time) => new Date(time * 1000).toLocaleTimeString([], { hour12: false });

export function ago(time) {
  const seconds = now() - time;
  const [count, unit] = [[86400, "day"], [3600, "hour"], [60, "minute"]]
    .map(([size, name]) => [Math.floor(seconds / size), name]).find(([number]) => number > 0) ?? [0, ""];
  const words = count ? `${count} ${unit}${count > 1 ? "s" : ""} ago` : "just now";
  const date = new Date(time * 1000);
  return el("time", { datetime: date.toISOString(), title: date.toLocaleString() }, words);
}

export function tone(job) {
  const ends = { Completed: "good", Failed: "bad", Stopped: "quiet" };
  if (ends[job.TrainingJobStatus]) return ends[job.TrainingJobStatus];
  return ["Downloading", "Training", "Uploading"].includes(job.SecondaryStatus) ? "running" : "waiting";
}
export const ended = (job) => ["Completed", "Failed", "Stopped"].includes(job.TrainingJobStatus);

export function status(job) {
  const mood = tone(job);
  const symbol = el("span", { "aria-hidden": "true" }, SYMBOLS[mood]);
  return el("span", { class: `status ${mood}` }, symbol, job.SecondaryStatus);
}

export function duration(job) {
  if (!job.TrainingStartTime) return ended(job) ? "did not start" : "waiting";
  return lasting((job.TrainingEndTime ?? now()) - job.TrainingStartTime);
}

/** An estimate, in steps that are coarse enough not to jump about. */
export function leftWords(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const size = seconds < 55 ? 5 : 60;
  const words = lasting(Math.max(1, Math.ceil(seconds / size)) * size);
  return `about ${words.replace(/ 0 \w+$/, "")} left`;
}

/** `left`: words about the time that is left, or none. */
export function epochBar({ CurrentEpoch: epoch, MaxEpoch: epochs } = {}, left = "") {
  if (!epoch) return [];
  const words = epochs ? `epoch ${epoch} of ${epochs}` : `epoch ${epoch}`;
  const bar = epochs ? el("progress", { value: epoch, max: epochs, "aria-label": words }) : null;
  return [bar, el("span", { class: "quiet" }, left ? `${words} · ${left}` : words)].filter(Boolean);
}

export function instances({ InstanceGroups: groups, ...one }) {
  return (groups ?? [one]).map((group) => `${group.InstanceCount}\u00a0×\u00a0${group.InstanceType}`).join(" + ");
}

// -- asking the service -----------------------------------------------------------------------

export class Refusal extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

export let asking = new AbortController();

/** Takes back what was asked and not answered; the next questions can be taken back by the controller that this returns. */
export function askAnew() {
  asking.abort();
  return (asking = new AbortController());
}

/** `alone`: the next look at the job does not take the question back. */
export async function ask(path, { alone = false, ...options } = {}) {
  const patience = AbortSignal.timeout(PATIENCE);
  const signal = alone ? patience : AbortSignal.any([asking.signal, patience]);
  const response = await fetch(path, { signal, ...options });
  const text = await response.text();
  if (response.ok) return JSON.parse(text);
  const told = response.headers.get("content-type")?.includes("json") ? JSON.parse(text).error : "";
  throw new Refusal(response.status, told);
}
export const searchAddress = (name) => `/ui/tuning/${encodeURIComponent(name)}`;
export const address = (name) => `/ui/jobs/${encodeURIComponent(name)}`;

export function trouble(error) {
  const again = "this page keeps trying.";
  if (!(error instanceof Refusal)) return `The service does not answer. Perhaps it was stopped; ${again}`;
  if (error.code === 403) return "This browser's key is not valid. Open the address that `syrtos serve` has printed.";
  return error.message || `The service could not answer (${error.code}); ${again}`;
}

export function tell(node, text) {
  node.hidden = !text;
  if (node.textContent !== text) node.textContent = text;
}

// -- telling of changes -----------------------------------------------------------------------

/** Tells screen readers about changes of status, not about the statuses there are. */
const statuses = new Map();
export function announce(jobs) {
  const news = jobs.filter(({ TrainingJobName: name, SecondaryStatus: is }) => (statuses.get(name) ?? is) !== is);
  for (const job of jobs) statuses.set(job.TrainingJobName, job.SecondaryStatus);
  const words = news.map((job) => `${job.TrainingJobName}: ${job.SecondaryStatus}`);
  if (news.length) at("said").textContent = words.join("; ");
}

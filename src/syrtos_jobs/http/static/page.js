// The page of `syrtos serve`: one job, its report and its log, and the way between the list and jobs.

import { artifacts, facts, lastValues, run, settings, story } from "./about.js";
import {
  Refusal, address, ago, announce, ask, askAnew, asking, at, clock, duration, el, ended, epochBar, leftWords, now, redraw, drawn,
  tell, trouble,
} from "./base.js";
import { openClone } from "./clone.js";
import { listen, showList } from "./list.js";
import { confirmEnd, endSearch, leaveSearch, showSearch } from "./search.js";

const PAUSE = 1200; // milliseconds between looks at what may change
const LONG_PAUSE = 8000; // at what has ended
const KEPT = 200_000; // lines of a log in memory
const SHOWN = 2000; // lines of a log in the document
const PAGES = 20; // of a log in one go, so that a long one does not hold the rest up

// -- the report -------------------------------------------------------------------------------

const ABOVE = ["curves"]; // of its parts, above the log; the others are below it
const REPORT_PAUSE = 2500;

/** Of one job; its parts are drawn by the code that `syrtos report` writes into its file. */
class Report {
  constructor() {
    for (const id of ["report", "report-more"]) at(id).replaceChildren();
    Object.assign(this, { due: 0, views: null, facts: null });
  }

  async read(name, over) {
    if (Date.now() < this.due) return;
    const { facts } = await ask(`${address(name)}/report`);
    this.due = Date.now() + (over ? 1e12 : REPORT_PAUSE);
    if (facts) this.draw(facts);
    at("report-section").hidden = over && !facts;
    at("report-none").hidden = Boolean(facts);
    at("report-file").hidden = at("more-section").hidden = !facts;
    at("report-file").setAttribute("href", `${address(name)}/report.html`);
  }

  draw(facts) {
    this.facts = facts;
    this.views ??= [
      new SyrtosReport.View(at("report"), { parts: ABOVE, head: true }),
      new SyrtosReport.View(at("report-more"), { without: ABOVE }),
    ];
    for (const view of this.views) view.update(facts);
  }
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

let shown = { name: "", report: null, log: null, clone: null };

function begin(name) {
  shown = { name, report: new Report(), log: new Log(0), clone: null };
  at("stream").replaceChildren();
  drawn.delete(at("stream"));
  at("filter").value = "";
  aim();
  at("job-title").textContent = name;
  tell(at("stop-note"), "");
  confirmStop(false);
}

function drawJob({ job, streams, left, run: how, artifacts: there }) {
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
  await shown.report.read(name, ended(answer.job));
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
const wantedSearch = () => decodeURIComponent(/^#\/tuning\/([A-Za-z0-9-]+)$/.exec(location.hash)?.[1] ?? "");
let left = ""; // the job that we come back from: its link gets the focus
let timer = 0;

function reveal(id) {
  for (const view of ["list", "job", "search-page"]) at(view).hidden = view !== id;
}

/** Looks at what is shown, again and again; nothing is asked while the tab is hidden. */
async function refresh() {
  clearTimeout(timer);
  const mine = askAnew();
  let pause = LONG_PAUSE / 2;
  try {
    if (wanted()) pause = await showJob(wanted());
    else if (wantedSearch()) pause = await showSearch(wantedSearch(), reveal);
    else {
      pause = await showList(reveal, left);
      left = "";
    }
    tell(at("trouble"), "");
  } catch (error) {
    if (mine.signal.aborted) return;
    if (error instanceof Refusal && error.code === 404) reveal("");
    tell(at("trouble"), trouble(error));
  }
  if (mine === asking && !document.hidden) timer = setTimeout(refresh, pause);
}

function move({ oldURL }) {
  if (!wanted()) shown.name = "";
  if (!wantedSearch()) leaveSearch();
  if (!wanted() && !wantedSearch()) {
    left = /#\/(?:jobs|tuning)\/([A-Za-z0-9-]+)$/.exec(oldURL)?.[1] ?? "";
    document.title = "Syrtos";
  }
  window.scrollTo(0, 0);
  refresh();
}

function step(count) {
  const links = [...document.querySelectorAll(".jobs a")];
  const k = links.indexOf(document.activeElement);
  links[k < 0 ? (count > 0 ? 0 : links.length - 1) : Math.max(0, Math.min(links.length - 1, k + count))]?.focus();
}

function back() {
  if (!at("stop-ask").hidden) {
    confirmStop(false);
    at("stop").focus();
  } else if (!at("search-stop-ask").hidden) {
    confirmEnd(false);
    at("search-stop").focus();
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
  "/": () => at("search-page").hidden && (at(at("job").hidden ? "search" : "filter").focus() ?? true),
  "?": () => at("help").showModal() ?? true,
  Escape: () => (wanted() || wantedSearch()) && (back() ?? true),
};

document.addEventListener("keydown", (event) => {
  const other = event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea");
  if (!other && !document.querySelector("dialog[open]") && KEYS[event.key]?.()) event.preventDefault();
});
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : refresh()));
window.addEventListener("hashchange", move);
at("stop").addEventListener("click", () => (confirmStop(true), at("stop-yes").focus()));
at("stop-no").addEventListener("click", back);
at("stop-yes").addEventListener("click", stop);
at("search-stop").addEventListener("click", () => (confirmEnd(true), at("search-stop-yes").focus()));
at("search-stop-no").addEventListener("click", back);
at("search-stop-yes").addEventListener("click", () => endSearch(refresh));
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

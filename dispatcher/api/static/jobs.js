// The jobs: open ones first, each with its progress, its pace, and what went wrong.

import { cancelJob, pauseJob, rankJob, resumeJob, retryJob } from "./actions.js";
import { byId, make, mark, Rows, say, show } from "./dom.js";
import { count, duration, percent, rate } from "./figures.js";

const CODES_SHOWN = 4;

export class Jobs {
  #rows = new Rows(byId("jobs-rows"), jobRow);

  update(jobs) {
    this.#rows.update(jobs.shown, (job) => job.id);
    show(byId("jobs-empty"), jobs.shown.length === 0);
    const more = jobs.total - jobs.shown.length;
    say(byId("jobs-note"), more > 0 ? `and ${count(more)} more that are not shown` : "");
  }
}

function jobRow(id) {
  const cell = (name, ...children) => make("td", { role: "cell", "data-cell": name }, ...children);
  const name = make("span", { class: "name" });
  const about = make("span", { class: "note" });
  const state = make("span", { class: "state" });
  const since = make("span", { class: "note" });
  const done = make("i", { class: "done" });
  const failed = make("i", { class: "failed" });
  const bar = make("span", { class: "progress", role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100" }, done, failed);
  const share = make("span", { class: "figure" });
  const rows = make("span", { class: "note" });
  const errors = make("span", { class: "codes" });
  const [rowsRate, tokensRate] = [cell("rows/s"), cell("tokens/s")];
  const eta = make("span", { class: "figure" });
  const slack = make("span", { class: "note" });
  const priority = cell("priority");
  const buttons = actionButtons();
  const codes = new Rows(errors, codeChip);
  const element = make(
    "tr",
    { role: "row" },
    make("th", { role: "rowheader", scope: "row" }, name, about),
    cell("status", state, since),
    cell("progress", bar, make("span", { class: "line" }, share, rows), errors),
    rowsRate,
    tokensRate,
    cell("left", eta, slack),
    priority,
    cell("actions", buttons.element),
  );

  function update(job) {
    say(name, job.name || id);
    say(about, [job.name ? id : "", job.owner, job.endpoint.replace("/v1/", "")].filter(Boolean).join(" · "));
    say(state, job.status.replaceAll("_", " "));
    mark(state, "state", job.status);
    say(since, job.ended_ago_s === null ? `for ${duration(job.age_s)}` : `${duration(job.ended_ago_s)} ago`);
    progress(job);
    const running = job.ended_ago_s === null;
    say(rowsRate, running ? rate(job.rows_per_s) : "–");
    say(tokensRate, running ? rate(job.tokens_per_s) : "–");
    say(eta, job.eta_s === null ? "–" : duration(job.eta_s));
    say(slack, running && job.slack_s !== null ? slackOf(job) : "");
    mark(slack, "late", String(job.slack_s !== null && job.slack_s < 0));
    say(priority, count(job.priority));
    buttons.update(job);
  }

  function progress(job) {
    const whole = Math.max(1, job.rows);
    done.style.setProperty("width", `${(job.succeeded / whole) * 100}%`);
    failed.style.setProperty("width", `${(job.failed / whole) * 100}%`);
    bar.setAttribute("aria-valuenow", Math.floor(((job.succeeded + job.failed) / whole) * 100));
    bar.setAttribute("aria-label", `Progress of ${job.name || id}`);
    say(share, job.rows ? percent(job.succeeded + job.failed, job.rows) : "–");
    say(rows, rowsOf(job));
    const found = Object.entries(job.errors).sort((one, other) => other[1] - one[1]);
    const more = found.slice(CODES_SHOWN).reduce((sum, [, number]) => sum + number, 0);
    const shown = found.slice(0, CODES_SHOWN);
    if (more) shown.push(["others", more]);
    codes.update(shown, ([code]) => code);
  }
  return { element, update };
}

function rowsOf(job) {
  if (!job.rows) return job.message || "its input is being read";
  const text = `${count(job.succeeded + job.failed)} of ${count(job.rows)} rows`;
  const parts = [text];
  if (job.failed) parts.push(`${count(job.failed)} failed`);
  if (job.message) parts.push(job.message);
  return parts.join(" · ");
}

function slackOf(job) {
  return job.slack_s < 0 ? `late by ${duration(-job.slack_s)}` : `${duration(job.slack_s)} to spare`;
}

function codeChip(code) {
  const number = make("b");
  const element = make("span", { class: "code" }, number, ` ${code.replaceAll("_", " ")}`);
  return { element, update: ([, errors]) => say(number, count(errors)) };
}

function actionButtons() {
  let job = null;
  const button = (text, act) => {
    const made = make("button", { type: "button" }, text);
    made.addEventListener("click", () => act(job));
    return made;
  };
  const pause = button("Pause", (each) => (each.status === "paused" ? resumeJob(each) : pauseJob(each)));
  const rank = button("Priority", rankJob);
  const cancel = button("Cancel", cancelJob);
  cancel.classList.add("danger");
  const retry = button("Send failed again", retryJob);
  const element = make("div", { class: "actions" }, pause, rank, cancel, retry);

  function update(record) {
    job = record;
    const open = job.ended_ago_s === null && job.status !== "cancelling";
    const pausable = job.status === "in_progress" || job.status === "paused";
    show(pause, pausable);
    show(rank, open && pausable);
    show(cancel, open && job.status !== "finalizing");
    show(retry, job.ended_ago_s !== null && job.failed > 0);
    say(pause, job.status === "paused" ? "Resume" : "Pause");
    const name = job.name || job.id;
    pause.setAttribute("aria-label", `${pause.textContent} ${name}`);
    retry.setAttribute("aria-label", `Send failed again: ${name}`);
    rank.setAttribute("aria-label", `Change the priority of ${name}`);
    cancel.setAttribute("aria-label", `Cancel ${name}`);
  }
  return { element, update };
}

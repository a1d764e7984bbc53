// What an admin can do: ask first, then tell the service, then say how it went.

import { byId, say, show } from "./dom.js";

const KEY = "dispatcher-key";
const TOAST_MS = 6_000;
const ANSWER_MS = 20_000;

export const storedKey = () => sessionStorage.getItem(KEY) ?? "";

/** Ask for the key until one is given; it is kept for this tab only. */
export function askForKey(message) {
  const dialog = byId("key");
  const field = byId("key-value");
  say(byId("key-text"), message || "It stays in this tab, until the tab is closed.");
  field.value = "";
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve) => {
    byId("key-form").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, field.value.trim());
      field.value = "";
      dialog.close();
      resolve(storedKey());
    };
  });
}

/** Ask in a dialog. Resolves to true, or the number where one is asked for, or null. */
function ask({ title, text, verb, label, number }) {
  const dialog = byId("ask");
  const field = byId("ask-number");
  say(byId("ask-title"), title);
  say(byId("ask-text"), text);
  say(byId("ask-yes"), verb);
  say(byId("ask-label"), label ?? "");
  show(byId("ask-field"), number !== undefined);
  field.required = number !== undefined;
  field.value = number ?? "";
  return new Promise((resolve) => {
    let answer = null;
    byId("ask-form").onsubmit = (event) => {
      event.preventDefault();
      answer = number === undefined ? true : field.valueAsNumber;
      dialog.close();
    };
    byId("ask-no").onclick = () => dialog.close();
    dialog.onclose = () => resolve(answer);
    dialog.showModal();
    (number === undefined ? byId("ask-yes") : field).focus();
  });
}

let hiding = null;

/** Say something below, and to a screen reader. */
export function toast(text, failed = false) {
  const element = byId("toast");
  say(element, text);
  element.dataset.failed = failed;
  element.dataset.shown = true;
  clearTimeout(hiding);
  hiding = setTimeout(() => {
    delete element.dataset.shown;
    say(element, "");
  }, TOAST_MS);
}

async function tell(method, path, body, done) {
  const key = storedKey();
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  try {
    const answer = await fetch(path, {
      method,
      headers,
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(ANSWER_MS),
    });
    if (answer.ok) toast(done);
    else toast(`It was refused: ${await refusal(answer)}`, true);
  } catch (error) {
    toast(`The service could not be reached: ${error.message}`, true);
  }
}

async function refusal(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `status ${answer.status}`;
  }
}

const jobPath = (job, verb) => `jobs/${encodeURIComponent(job.id)}${verb ? `/${verb}` : ""}`;

export async function pauseJob(job) {
  const text = `${job.id}: what is in flight ends; nothing more is sent until it is resumed.`;
  if (await ask({ title: "Pause this job?", text, verb: "Pause" }))
    await tell("POST", jobPath(job, "pause"), {}, `${job.id} is paused.`);
}

export async function resumeJob(job) {
  const text = `${job.id}: its requests are sent again, in turn with the other jobs.`;
  if (await ask({ title: "Resume this job?", text, verb: "Resume" }))
    await tell("POST", jobPath(job, "resume"), {}, `${job.id} is resumed.`);
}

export async function cancelJob(job) {
  const text = `${job.id}: rows that are done are kept. The others are given up for good.`;
  if (await ask({ title: "Cancel this job?", text, verb: "Cancel the job" }))
    await tell("POST", jobPath(job, "cancel"), {}, `${job.id} is being cancelled.`);
}

export async function rankJob(job) {
  const text = `${job.id}: jobs of a higher priority go first, those of one share.`;
  const label = "Priority (a whole number)";
  const priority = await ask({ title: "Change the priority?", text, verb: "Change", label, number: job.priority });
  if (priority !== null && priority !== job.priority)
    await tell("PATCH", jobPath(job), { priority }, `${job.id} has priority ${priority}.`);
}

export async function drainServer(url) {
  const text = `${url}: what is in flight there ends; it gets nothing more until it is undrained.`;
  if (await ask({ title: "Drain this server?", text, verb: "Drain" }))
    await tell("POST", "servers/drain", { url }, `${url} drains.`);
}

export async function undrainServer(url) {
  const text = `${url}: it is checked, and gets requests again.`;
  if (await ask({ title: "Undrain this server?", text, verb: "Undrain" }))
    await tell("POST", "servers/undrain", { url }, `${url} is taken back.`);
}

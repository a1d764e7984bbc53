// What an admin can do: ask first, then tell the service, then say how it went.

import { byId, refusal, say, show } from "./dom.js";

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
function ask({ title, text, verb, label, number, final = false }) {
  const dialog = byId("ask");
  const field = byId("ask-number");
  say(byId("ask-title"), title);
  say(byId("ask-text"), text);
  say(byId("ask-yes"), verb);
  byId("ask-yes").classList.toggle("final", final);
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
    if (number !== undefined) field.select();
    else byId(final ? "ask-no" : "ask-yes").focus(); // what cannot be undone takes more than two Enters
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

const called = (job) => (job.name ? `${job.name} (${job.id})` : job.id);
const jobPath = (job, verb) => `jobs/${encodeURIComponent(job.id)}${verb ? `/${verb}` : ""}`;

export async function pauseJob(job) {
  const text = `${called(job)}: what is in flight ends; nothing more is sent until it is resumed.`;
  if (await ask({ title: "Pause this job?", text, verb: "Pause" }))
    await tell("POST", jobPath(job, "pause"), {}, `${called(job)} is paused.`);
}

export async function resumeJob(job) {
  const text = `${called(job)}: its requests are sent again, in turn with the other jobs.`;
  if (await ask({ title: "Resume this job?", text, verb: "Resume" }))
    await tell("POST", jobPath(job, "resume"), {}, `${called(job)} is resumed.`);
}

export async function cancelJob(job) {
  const text = `${called(job)}: rows that are done are kept. The others are given up for good.`;
  if (await ask({ title: "Cancel this job?", text, verb: "Cancel the job", final: true }))
    await tell("POST", jobPath(job, "cancel"), {}, `${called(job)} is being cancelled.`);
}

export async function retryJob(job) {
  const text = `${called(job)}: its failed rows are sent again, and it is open until they have ended.`;
  if (await ask({ title: "Send the failed rows again?", text, verb: "Send again" }))
    await tell("POST", jobPath(job, "retry"), {}, `${called(job)} goes on.`);
}

export async function rankJob(job) {
  const text = `${called(job)}: jobs of a higher priority go first, those of one share.`;
  const label = "Priority (a whole number)";
  const priority = await ask({ title: "Change the priority?", text, verb: "Change", label, number: job.priority });
  if (priority !== null && priority !== job.priority)
    await tell("PATCH", jobPath(job), { priority }, `${called(job)} has priority ${priority}.`);
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

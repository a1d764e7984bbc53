// The dashboard: one stream of snapshots in, the page kept up with it.

import { askForKey, storedKey } from "./actions.js";
import { byId, make, mark, Rows, say, show } from "./dom.js";
import { count, plural, rate } from "./figures.js";
import { Fleet } from "./fleet.js";
import { Jobs } from "./jobs.js";
import { Nodes } from "./nodes.js";
import { Plot } from "./plot.js";
import { Stream } from "./stream.js";

const HISTORY_S = 3600;
const OBSTACLES = {
  starting: "The service is starting.",
  draining: "The service is stopping: what is in flight ends, and nothing more is sent.",
};

const asked = { find: "", state: "" };
const service = { admin: false, step_s: 10, history: [] };
const stream = new Stream(told, linked);
const fleet = new Fleet(ask);
const jobs = new Jobs();
const nodes = new Nodes();
const notices = new Rows(byId("notices"), notice);
const plots = [
  new Plot(byId("plot-tokens"), "Tokens per second", "tokens_per_s"),
  new Plot(byId("plot-rows"), "Rows per second", "rows_per_s"),
];

function ask(chosen) {
  Object.assign(asked, chosen);
  open();
}

function open() {
  const query = new URLSearchParams(Object.entries(asked).filter(([, value]) => value));
  stream.open(`events?${query}`, storedKey());
}

function told(event, data) {
  if (event === "hello") hello(data);
  if (event === "snapshot") snapshot(data);
}

function hello(data) {
  Object.assign(service, { admin: data.admin, step_s: data.step_s, history: data.history });
  say(byId("who"), storedKey() ? `${data.name} (${data.admin ? "admin" : "user"})` : "");
  show(byId("change-key"), storedKey() !== "");
  plots.forEach((plot) => plot.update(service.history, service.step_s));
}

function snapshot(data) {
  tiles(data);
  jobs.update(data.jobs);
  fleet.update(data.fleet, service.admin);
  nodes.update(data.nodes, data.at);
  notices.update(noticesOf(data), (text) => text);
  remember(data.latest);
}

function remember(point) {
  const { history } = service;
  if (!point || (history.length && point.at <= history.at(-1).at)) return;
  history.push(point);
  while (history[0].at < point.at - HISTORY_S) history.shift();
  plots.forEach((plot) => plot.update(history, service.step_s));
}

function tiles(data) {
  const { totals, fleet: { states } } = data;
  const servers = states.reduce((sum, each) => sum + each.servers, 0);
  const active = states.find((each) => each.state === "active")?.servers ?? 0;
  say(byId("tile-tokens"), rate(totals.tokens_per_s));
  say(byId("tile-rows"), rate(totals.rows_per_s));
  say(byId("tile-flight"), count(totals.in_flight));
  const here = data.nodes.length > 1 ? " here" : "";
  say(byId("tile-tokens-note"), `generated${here}, over 30 s`);
  say(byId("tile-rows-note"), `answered${here}, over 30 s`);
  say(byId("tile-flight-note"), `${here && "here, "}of ${plural(totals.limit, "permit")}`);
  say(byId("tile-servers"), count(active));
  say(byId("tile-servers-note"), `of ${count(servers)} known`);
  mark(byId("tile-servers"), "bad", String(servers > 0 && active === 0));
  say(byId("tile-jobs"), count(data.jobs.running));
  say(byId("tile-jobs-note"), `${plural(data.jobs.rows_left, "row")} left`);
  document.title = `${rate(totals.tokens_per_s)} tokens/s · dispatcher`;
}

function noticesOf(data) {
  const waiting = data.waiting_for.map((model) =>
    model === null ? "Rows wait: no server is in rotation." : `Rows wait: no server in rotation serves ${model}.`,
  );
  return [...data.obstacles.map((obstacle) => OBSTACLES[obstacle] ?? `Held up: ${obstacle}.`), ...waiting];
}

function notice(text) {
  return { element: make("p", { class: "notice", role: "status" }, text), update() {} };
}

const LINKS = { live: "live", lost: "no connection", locked: "locked" };

function linked(state, message) {
  say(byId("link"), LINKS[state]);
  mark(byId("link"), "link", state);
  if (state === "lost") notices.update([`No connection to the service: ${message}. Trying again.`], (text) => text);
  mark(byId("main"), "stale", String(state !== "live"));
  if (state === "locked") unlock(message);
}

function unlock(message) {
  show(byId("change-key"), true); // the way back for whoever closes the dialog
  askForKey(message).then(open);
}

byId("change-key").addEventListener("click", () => unlock(""));
open();

// The fleet: a strip of states, filters, and a row for each server that is shown.

import { drainServer, undrainServer } from "./actions.js";
import { byId, make, mark, Rows, say, show } from "./dom.js";
import { count, duration, plural, rate } from "./figures.js";

const STATES = ["active", "suspect", "evicted", "mismatched", "paused", "verifying", "joining", "draining", "drained"];

export class Fleet {
  #admin = false;
  #state = "";
  #chips = new Rows(byId("fleet-chips"), (state) => this.#chip(state));
  #strip = new Rows(byId("fleet-strip"), stripPart);
  #rows = new Rows(byId("servers-rows"), (id) => serverRow(id, () => this.#admin));

  /** `chosen({find, state})` when the viewer asks for other servers. */
  constructor(chosen) {
    let waiting = null;
    const tell = () => chosen({ find: byId("find").value.trim(), state: this.#state });
    this.chosen = tell;
    byId("find").addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(tell, 300);
    });
    byId("filters").addEventListener("submit", (event) => {
      event.preventDefault();
      clearTimeout(waiting);
      tell();
    });
  }

  update(fleet, admin) {
    this.#admin = admin;
    const states = STATES.map((state) => fleet.states.find((each) => each.state === state)).filter(Boolean);
    const all = states.reduce((sum, each) => sum + each.servers, 0);
    this.#strip.update(states, (each) => each.state);
    const chips = [{ state: "", servers: all }, ...states];
    if (this.#state && !states.some((each) => each.state === this.#state))
      chips.push({ state: this.#state, servers: 0 });
    this.#chips.update(chips, (each) => each.state);
    this.#rows.update(fleet.servers, (server) => server.id);
    this.#note(fleet, all);
  }

  #note(fleet, all) {
    const hidden = fleet.found - fleet.servers.length;
    let text = "";
    if (!all) text = "No servers are known. The configuration lists them, or they register themselves.";
    else if (!fleet.found) text = "No server fits.";
    else if (hidden > 0) text = `and ${plural(hidden, "more server")}, not shown: find them by address, or by state`;
    say(byId("servers-note"), text);
    show(byId("servers-note"), text !== "");
  }

  #chip(state) {
    const number = make("b");
    const button = make("button", { type: "button", class: "chip" }, number, ` ${state || "all"}`);
    if (state) button.dataset.state = state;
    button.addEventListener("click", () => {
      this.#state = state;
      this.chosen();
    });
    const update = (each) => {
      say(number, count(each.servers));
      button.setAttribute("aria-pressed", String(this.#state === state));
    };
    return { element: button, update };
  }
}

function stripPart(state) {
  const element = make("span");
  element.dataset.state = state;
  return { element, update: (each) => element.style.setProperty("flex-grow", each.servers) };
}

function serverRow(id, isAdmin) {
  const cell = (name, ...children) => make("td", { role: "cell", "data-cell": name }, ...children);
  const name = make("span", { class: "name" }, id);
  const models = make("span", { class: "note" });
  const state = make("span", { class: "state" });
  const since = make("span", { class: "note" });
  const flight = make("span", { class: "figure" });
  const load = make("span", { class: "load", "aria-hidden": "true" }, make("i"));
  const figures = ["rows/s", "tokens/s", "rows", "faults"].map((title) => cell(title));
  const why = make("span", { class: "why" });
  const fault = make("span", { class: "note why" });
  const button = make("button", { type: "button" });
  const actions = cell("actions", button);
  let drained = false;
  button.addEventListener("click", () => (drained ? undrainServer(id) : drainServer(id)));
  const element = make(
    "tr",
    { role: "row" },
    make("th", { role: "rowheader", scope: "row" }, name, models),
    cell("state", state, since),
    cell("in flight", flight, load),
    ...figures,
    cell("why", why, fault),
    actions,
  );

  function update(server) {
    drained = server.held_out;
    say(models, modelsOf(server));
    say(state, server.state);
    mark(state, "state", server.state);
    say(since, server.in_state_s === null ? "" : `for ${duration(server.in_state_s)}`);
    say(flight, server.limit || server.in_flight ? `${count(server.in_flight)} / ${count(server.limit)}` : "–");
    show(load, server.limit > 0);
    const share = server.limit ? Math.min(1, server.in_flight / server.limit) : 0;
    load.firstElementChild.style.setProperty("width", `${(share * 100).toFixed(0)}%`);
    say(figures[0], rate(server.rows_per_s));
    say(figures[1], rate(server.tokens_per_s));
    say(figures[2], count(server.succeeded));
    say(figures[3], server.failed ? count(server.failed) : "0");
    say(why, whyOf(server));
    say(fault, faultOf(server));
    show(fault, fault.textContent !== "");
    show(button, isAdmin());
    say(button, drained ? "Undrain" : "Drain");
    button.setAttribute("aria-label", `${drained ? "Undrain" : "Drain"} ${id}`);
  }
  return { element, update };
}

function modelsOf(server) {
  const models = server.models === null ? "any model" : server.models.join(", ");
  return server.version ? `${models} · vLLM ${server.version}` : models;
}

/** One at work needs no reason. */
function whyOf(server) {
  return server.state === "active" ? "" : server.why;
}

function faultOf(server) {
  const parts = [];
  if (server.evictions) parts.push(evictionsOf(server));
  if (server.last_fault_ago_s !== null) {
    const said = [server.why, server.evicted_for].includes(server.last_fault);
    parts.push(`last fault ${duration(server.last_fault_ago_s)} ago${said ? "" : words(server.last_fault)}`);
  }
  return parts.join(" · ");
}

function evictionsOf(server) {
  const times = `evicted ${server.evictions === 1 ? "once" : plural(server.evictions, "time")}`;
  if (server.state === "evicted" || server.evicted_ago_s === null) return times;
  const last = server.evictions === 1 ? "" : "last ";
  return `${times}, ${last}${duration(server.evicted_ago_s)} ago${words(server.evicted_for)}`;
}

const words = (text) => (text ? `: ${text}` : "");

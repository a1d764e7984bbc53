// Throughput over the last hour: one quantity to a plot, so that each has its own honest axis from zero.

import { make, makeSvg, say } from "./dom.js";
import { clock, level, rate } from "./figures.js";

const HEIGHT = 132;
const LEFT = 46;
const BOTTOM = 20;
const TOP = 8;
const SPANS_S = [300, 600, 900, 1800, 3600];
const TICKS_S = { 300: 60, 600: 120, 900: 300, 1800: 600, 3600: 900 };

export class Plot {
  #title;
  #field;
  #svg = makeSvg("svg", { role: "img", tabindex: "0" });
  #reading = make("p", { class: "note" });
  #points = [];
  #step_s = 10;
  #cursor = null;
  #width = 600;

  constructor(parent, title, field) {
    this.#title = title;
    this.#field = field;
    parent.append(make("div", { class: "head" }, make("h2", {}, title), this.#reading), this.#svg);
    new ResizeObserver(([entry]) => this.#resize(entry.contentRect.width)).observe(parent);
    this.#svg.addEventListener("pointermove", (event) => this.#point(event));
    this.#svg.addEventListener("pointerleave", () => this.#choose(null));
    this.#svg.addEventListener("blur", () => this.#choose(null));
    this.#svg.addEventListener("keydown", (event) => this.#key(event));
  }

  update(points, step_s) {
    this.#points = points;
    this.#step_s = step_s;
    this.#draw();
  }

  #resize(width) {
    this.#width = Math.max(220, Math.floor(width));
    this.#draw();
  }

  // The cursor is the time of a point: it stays where it is while points come and go.

  #choose(at) {
    this.#cursor = at;
    this.#draw();
  }

  #point(event) {
    if (!this.#points.length) return;
    const box = this.#svg.getBoundingClientRect();
    const [from, to] = this.#range();
    const at = from + ((event.clientX - box.left - LEFT) / (box.width - LEFT)) * (to - from);
    const near = (one, other) => (Math.abs(other.at - at) < Math.abs(one.at - at) ? other : one);
    this.#choose(this.#points.reduce(near).at);
  }

  #key(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move || !this.#points.length) return;
    event.preventDefault();
    const last = this.#points.length - 1;
    const index = this.#points.findIndex((point) => point.at === this.#cursor);
    const next = index < 0 ? last : Math.min(last, Math.max(0, index + move));
    this.#choose(this.#points[next].at);
  }

  #range() {
    const to = this.#points.length ? this.#points.at(-1).at + this.#step_s : Date.now() / 1000;
    const age_s = this.#points.length ? to - this.#points[0].at : 0;
    return [to - (SPANS_S.find((span_s) => span_s >= age_s) ?? SPANS_S.at(-1)), to];
  }

  #draw() {
    const [from, to] = this.#range();
    const points = this.#points.filter((point) => point.at >= from);
    const top = ceiling(Math.max(0, ...points.map((point) => point[this.#field])));
    const scale = {
      x: (at) => LEFT + ((at - from) / (to - from)) * (this.#width - LEFT),
      y: (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM),
    };
    this.#svg.setAttribute("viewBox", `0 0 ${this.#width} ${HEIGHT}`);
    this.#svg.setAttribute("height", HEIGHT);
    this.#svg.replaceChildren(
      ...levels(scale, top, this.#width),
      ...times(scale, from, to),
      ...runs(points, this.#step_s).flatMap((run) => this.#run(run, scale)),
      ...this.#crosshair(points, scale),
    );
    this.#read(points);
  }

  #run(run, scale) {
    const middle = this.#step_s / 2;
    const line = run.map((point) => `${scale.x(point.at + middle).toFixed(1)},${scale.y(point[this.#field]).toFixed(1)}`);
    const [first, last] = [run[0], run.at(-1)].map((point) => scale.x(point.at + middle).toFixed(1));
    const ground = scale.y(0);
    if (run.length === 1) return [makeSvg("circle", { class: "dot", cx: first, cy: scale.y(run[0][this.#field]), r: 3 })];
    return [
      makeSvg("polygon", { class: "area", points: `${first},${ground} ${line.join(" ")} ${last},${ground}` }),
      makeSvg("polyline", { class: "line", points: line.join(" ") }),
    ];
  }

  #crosshair(points, scale) {
    const chosen = points.find((point) => point.at === this.#cursor);
    if (!chosen) return [];
    const x = scale.x(chosen.at + this.#step_s / 2);
    return [
      makeSvg("line", { class: "cursor", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }),
      makeSvg("circle", { class: "dot", cx: x, cy: scale.y(chosen[this.#field]), r: 3.5 }),
    ];
  }

  #read(points) {
    const values = points.map((point) => point[this.#field]);
    const chosen = points.find((point) => point.at === this.#cursor);
    const highest = values.length ? `highest ${rate(Math.max(...values))}` : "nothing counted yet";
    say(this.#reading, chosen ? `${rate(chosen[this.#field])} at ${clock(chosen.at)}` : highest);
    const now = values.length ? `, now ${rate(values.at(-1))}` : "";
    this.#svg.setAttribute("aria-label", `${this.#title} in the last hour: ${highest}${now}. Arrow keys read it.`);
  }
}

/** The next of 1, 2, 5 times a power of ten. */
function ceiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((factor) => factor * power >= value) * power;
}

function levels(scale, top, width) {
  return [0, top / 2, top].flatMap((value) => [
    makeSvg("line", { class: "level", x1: LEFT, x2: width, y1: scale.y(value), y2: scale.y(value) }),
    makeSvg("text", { class: "label", x: LEFT - 8, y: scale.y(value) + 4, "text-anchor": "end" }, level(value)),
  ]);
}

function times(scale, from, to) {
  const every_s = TICKS_S[Math.round(to - from)] ?? 900;
  const labels = [];
  for (let at = Math.ceil(from / every_s) * every_s; at < to; at += every_s) {
    const x = scale.x(at);
    if (x > LEFT + 12 && x < scale.x(to) - 18)
      labels.push(makeSvg("text", { class: "label", x, y: HEIGHT - 4, "text-anchor": "middle" }, clock(at)));
  }
  return labels;
}

/** Unbroken runs: where steps are missing, nothing was measured, and no line is drawn. */
function runs(points, step_s) {
  const found = [];
  for (const point of points) {
    const run = found.at(-1);
    if (run && point.at - run.at(-1).at < step_s * 1.6) run.push(point);
    else found.push([point]);
  }
  return found;
}

// The nodes: the processes that share the queue, a row each.

import { byId, make, mark, Rows, say, show } from "./dom.js";
import { count, duration, plural, rate } from "./figures.js";

export class Nodes {
  #rows = new Rows(byId("nodes-rows"), nodeRow);

  update(nodes, at) {
    const silent = nodes.filter((each) => each.state === "silent").length;
    say(byId("nodes-note"), plural(nodes.length, "node") + (silent ? `, ${count(silent)} silent` : ""));
    // Whoever reads the figures above must know whose they are.
    say(byId("nodes-scope"), "Jobs are counted over all nodes; throughput, permits and servers above are as this node has them.");
    show(byId("nodes-scope"), nodes.length > 1);
    this.#rows.update(nodes.map((each) => ({ ...each, age_s: at - each.started_at })), (each) => each.id);
  }
}

function nodeRow() {
  const cell = (name, ...children) => make("td", { role: "cell", "data-cell": name }, ...children);
  const name = make("span", { class: "name" });
  const process = make("span", { class: "note" });
  const state = make("span", { class: "state" });
  const since = make("span", { class: "note" });
  const figures = ["in flight", "rows/s", "tokens/s", "shards", "jobs"].map((title) => cell(title));
  const element = make(
    "tr",
    { role: "row" },
    make("th", { role: "rowheader", scope: "row" }, name, process),
    cell("state", state, since),
    ...figures,
  );

  function update(node) {
    say(name, node.host);
    say(process, `process ${node.pid} · dispatcher ${node.version}${node.here ? " · shows this page" : ""}`);
    say(state, node.state);
    mark(state, "state", node.state);
    say(since, node.state === "silent" ? `for ${duration(node.silent_s)}` : `up ${duration(node.age_s)}`);
    const texts = [
      count(node.in_flight),
      rate(node.rows_per_s),
      rate(node.tokens_per_s),
      count(node.shards),
      count(node.jobs),
    ];
    // What a silent one does is not known, and what it held goes to others.
    figures.forEach((each, index) => say(each, node.state === "silent" ? "–" : texts[index]));
  }
  return { element, update };
}

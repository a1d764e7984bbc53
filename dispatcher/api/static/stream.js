// The service's events, read with fetch: an EventSource cannot send a key.

import { refusal } from "./dom.js";

const SILENCE_MS = 15_000; // a snapshot comes every second
const RETRY_MIN_MS = 1_000;
const RETRY_MAX_MS = 15_000;
const FRAME_CHARACTERS_MAX = 8_000_000;

export class Stream {
  #told;
  #link;
  #abort = null;
  #retry = null;
  #failures = 0;
  #watch = null;

  /** `told(event, data)` for each event; `link(state, message)`: live, lost or locked. */
  constructor(told, link) {
    this.#told = told;
    this.#link = link;
  }

  /** Read from this address from now on, whatever was read before. */
  open(url, key) {
    this.close();
    this.#abort = new AbortController();
    this.#read(url, key, this.#abort);
  }

  close() {
    clearTimeout(this.#retry);
    clearTimeout(this.#watch);
    this.#abort?.abort();
    this.#abort = null;
  }

  async #read(url, key, abort) {
    try {
      const answer = await fetch(url, {
        headers: key ? { Authorization: `Bearer ${key}` } : {},
        cache: "no-store",
        signal: abort.signal,
      });
      if (answer.status === 401) {
        this.#link("locked", key ? "This key was not accepted." : "");
        return;
      }
      if (!answer.ok) throw new Error(await refusal(answer));
      await this.#frames(answer.body, abort);
      throw new Error("the service ended the connection");
    } catch (error) {
      if (this.#abort === abort) this.#again(url, key, error);
    }
  }

  #again(url, key, error) {
    clearTimeout(this.#watch);
    this.#abort.abort();
    this.#link("lost", String(error.message ?? error));
    const wait_ms = Math.min(RETRY_MAX_MS, RETRY_MIN_MS * 2 ** this.#failures) * (0.5 + Math.random() / 2);
    this.#failures += 1;
    this.#retry = setTimeout(() => this.open(url, key), wait_ms);
  }

  async #frames(body, abort) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      this.#expect(abort);
      const { done, value } = await reader.read();
      if (done) return;
      const frames = (text + value).split("\n\n");
      text = frames.pop();
      if (text.length > FRAME_CHARACTERS_MAX) throw new Error("an event without an end");
      frames.forEach((frame) => this.#frame(frame, abort));
    }
  }

  #frame(frame, abort) {
    if (this.#abort !== abort) return; // another stream has been opened meanwhile
    const fields = new Map(frame.split("\n").map((line) => line.split(/: (.*)/s, 2)));
    if (!fields.has("data")) return;
    this.#failures = 0;
    this.#link("live", "");
    this.#told(fields.get("event"), JSON.parse(fields.get("data")));
  }

  #expect(abort) {
    clearTimeout(this.#watch);
    this.#watch = setTimeout(() => abort.abort(new Error("the service is silent")), SILENCE_MS);
  }
}

// Requests to this node, and how often they are made.

import { query, v1 } from "./format.js";

const TOKEN = "jetstream.token";
const PAGE = 1024; // rows, as many as a node gives at once

/**
 * The pause after an answer, for each byte of it. Lists and metrics take a node 80 ms of its processor a megabyte;
 * so each of a page's two large polls takes 0.1 % of a core at most, and 20 pages stay below 5 %.
 */
const PAUSE_MS_PER_BYTE = 0.08;

const received = new WeakMap(); // bytes by the signal of the poll that asked

/** An answer that is an error: `code` is its word in docs/errors.md. */
export class ApiError extends Error {
  constructor(status, document) {
    super(document.detail ?? `the node answers ${status}`);
    this.status = status;
    this.code = document.err_code ?? null;
  }
}

/** The node sends readers on to another one, which this page may not ask. */
export class Elsewhere extends Error {}

/** The node is away, or was cut off in the middle of an answer. */
export class NoAnswer extends Error {
  constructor() {
    super("This node does not answer.");
  }
}

/** Runs what needs the network, whose errors the browser tells as it tells those of programs. */
export async function overNetwork(work) {
  try {
    return await work();
  } catch (error) {
    throw error.name === "AbortError" ? error : new NoAnswer();
  }
}

/** Returns null for what a node may do at any time; throws what is a fault of this page. */
export function expected(error) {
  if (error instanceof ApiError || error instanceof Elsewhere || error instanceof NoAnswer) return null;
  throw error;
}

export function token() {
  return sessionStorage.getItem(TOKEN);
}

/** Keeps the token as long as this tab is open; null forgets it. */
export function setToken(text) {
  if (text) sessionStorage.setItem(TOKEN, text);
  else sessionStorage.removeItem(TOKEN);
}

/** Returns a response of 2xx (or 503 of `/healthz`, which has an answer in it). */
export async function request(path, { accept = "application/json", signal = null } = {}) {
  const headers = { Accept: accept };
  if (token()) headers.Authorization = `Bearer ${token()}`;
  const response = await overNetwork(() => fetch(path, { headers, signal, redirect: "manual", cache: "no-store" }));
  const length = Number(response.headers.get("content-length"));
  if (signal !== null) received.set(signal, (received.get(signal) ?? 0) + length);
  if (response.type === "opaqueredirect") throw new Elsewhere("another node leads the stream");
  if (response.ok || (path === "healthz" && response.status === 503)) return response;
  const text = await overNetwork(() => response.text());
  let problem = { detail: text.trim() };
  if (response.headers.get("content-type")?.includes("json")) problem = JSON.parse(text);
  const error = new ApiError(response.status, problem);
  if (response.status === 401) document.dispatchEvent(new CustomEvent("token-wanted", { detail: error.message }));
  throw error;
}

export async function json(path, signal = null) {
  const response = await request(path, { signal });
  return JSON.parse(await overNetwork(() => response.text()));
}

/** Returns all rows of a list that comes in pages. */
export async function allRows(path, name, values = {}, signal = null) {
  const rows = [];
  for (;;) {
    const page = await json(path + query({ ...values, offset: rows.length, limit: PAGE }), signal);
    rows.push(...page[name]);
    if (page[name].length === 0 || rows.length >= page.total) return rows;
  }
}

let known = { at: -Infinity, cluster: null };

/** Returns what the node knows of its cluster, not older than 30 seconds. */
export async function cluster() {
  if (performance.now() - known.at > 30_000) {
    known = { at: performance.now(), cluster: await json(v1("cluster")) };
  }
  return known.cluster;
}

/** Returns the address of a node's console, which ends in a slash; null: it has none, or is not known. */
export function consoleOf(id, nodes) {
  const node = nodes.find((row) => row.id === id);
  if (!node || !node.http_port) return null;
  const host = node.host.includes(":") ? `[${node.host}]` : node.host;
  return `${location.protocol}//${host}:${node.http_port}/`;
}

/** Reads again and again while the tab can be seen, each time after a pause, which is longer where much was read. */
export class Poll {
  constructor(read, pauseMs, failed) {
    this.read = read;
    this.pauseMs = pauseMs;
    this.failed = failed;
    this.timer = null;
    this.abort = null;
    this.look = () => this.#look();
  }

  start() {
    document.addEventListener("visibilitychange", this.look);
    this.#look();
    return this;
  }

  stop() {
    document.removeEventListener("visibilitychange", this.look);
    this.#pause();
  }

  again() {
    this.#pause();
    this.#look();
  }

  #pause() {
    clearTimeout(this.timer);
    this.abort?.abort();
    this.timer = this.abort = null;
  }

  async #look() {
    if (document.hidden) {
      this.#pause();
      return;
    }
    if (this.timer !== null || this.abort !== null) return;
    const abort = new AbortController();
    this.abort = abort;
    try {
      await this.read(abort.signal);
    } catch (error) {
      if (abort.signal.aborted) return;
      this.failed(error);
      expected(error);
      if (error.status === 401) {
        this.abort = null; // until there is a token, and `again`: nobody is asked for it every few seconds
        return;
      }
    }
    if (this.abort !== abort) return;
    this.abort = null;
    const pause = Math.max(this.pauseMs, PAUSE_MS_PER_BYTE * (received.get(abort.signal) ?? 0));
    this.timer = setTimeout(() => { this.timer = null; this.#look(); }, pause);
  }
}

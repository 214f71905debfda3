// The studio's API: requests, and the events of a run as they happen.
import { useEffect, useState } from "react";

export type Json = any; // events are as their writers made them
export type Status = "running" | "complete" | "failed" | "interrupted";
export interface Run {
  run_id: string;
  team: string;
  status: Status;
  settings: Json;
  summary: Json | null;
  started_s: number;
  finished_s: number | null;
}
export interface Event {
  seq: number;
  time_s: number;
  kind: string;
  data: Json;
}
export interface Info {
  version: string;
  sources: string[];
  choices: Record<string, Record<string, string[]>>;
  defaults: Record<string, Record<string, Json>>;
}

const meta = document.querySelector<HTMLMetaElement>('meta[name="studio"]');
export const isStatic = meta?.content === "static"; // files in place of a server

export class ApiError extends Error {
  constructor(message: string, readonly status: number) {
    super(message);
  }
}

async function read(response: Response): Promise<Json> {
  if (response.ok) return response.json();
  const body = await response.json().catch(() => null);
  const detail = typeof body?.detail === "string" ? body.detail : `the server answered ${response.status}`;
  throw new ApiError(detail, response.status);
}

export const get = async (path: string): Promise<Json> => read(await fetch(`api/${path}${isStatic ? ".json" : ""}`));

export const post = async (path: string, body: Json = {}): Promise<Json> =>
  read(await fetch(`api/${path}`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) }));

// A report comes at once; with episodes it takes the time to play them again.
export const reportPath = (name: string, episodes: number) =>
  `api/boards/${encodeURIComponent(name)}/report${isStatic ? ".html" : `?episodes=${episodes}`}`;

export interface Loaded<T> {
  value?: T;
  error?: ApiError;
}

// What a path holds, read again every so many seconds.
export function useGet<T>(path: string, everySeconds = 0): Loaded<T> {
  const [found, set] = useState<Loaded<T>>({});
  useEffect(() => {
    let over = false;
    const load = () =>
      get(path).then(
        (value) => over || set({ value }),
        (error) => over || set((before) => ({ ...before, error })),
      );
    set({});
    load();
    const timer = everySeconds && !isStatic ? setInterval(load, everySeconds * 1000) : 0;
    return () => {
      over = true;
      clearInterval(timer);
    };
  }, [path, everySeconds]);
  return found;
}

export interface Followed {
  run?: Run;
  events: Event[];
  isLost: boolean; // the connection is down, and tried again
  error?: ApiError;
}

const FIRST_WAIT_MS = 500, LONGEST_WAIT_MS = 4000;
const UNKNOWN_RUN = 4404, REFUSED = 4403;

// A run and its events. After a loss the socket opens again behind the last event that came.
export function useRun(id: string): Followed {
  const [state, set] = useState<Followed>({ events: [], isLost: false });
  useEffect(() => {
    let over = false, known = 0, wait = FIRST_WAIT_MS, socket: WebSocket | undefined, timer = 0;
    const fail = (error: ApiError) => over || set((before) => ({ ...before, error }));
    const take = (events: Event[]) => {
      const fresh = events.filter((event) => event.seq > known);
      if (!fresh.length || over) return;
      known = fresh[fresh.length - 1].seq;
      set((before) => ({ ...before, isLost: false, events: [...before.events, ...fresh] }));
    };
    const open = () => {
      const url = new URL(`api/runs/${id}/events?after=${known}`, location.href);
      url.hash = "";
      url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
      let ended = false;
      socket = new WebSocket(url);
      socket.onopen = () => {
        wait = FIRST_WAIT_MS;
        set((before) => ({ ...before, isLost: false }));
      };
      socket.onmessage = ({ data }) => {
        const message = JSON.parse(data);
        if (message.events) take(message.events);
        if (message.run) {
          ended = true;
          set((before) => ({ ...before, run: message.run, isLost: false }));
        }
      };
      socket.onclose = ({ code, reason }) => {
        if (over || ended) return;
        if (code === UNKNOWN_RUN || code === REFUSED) return fail(new ApiError(reason, code));
        set((before) => ({ ...before, isLost: true }));
        timer = window.setTimeout(open, wait);
        wait = Math.min(2 * wait, LONGEST_WAIT_MS);
      };
    };
    set({ events: [], isLost: false });
    get(`runs/${id}`).then((run: Run) => {
      if (over) return;
      set((before) => ({ ...before, run: before.run?.finished_s ? before.run : run }));
      if (isStatic) get(`runs/${id}/events`).then(take, fail);
      else open();
    }, fail);
    return () => {
      over = true;
      clearTimeout(timer);
      socket?.close();
    };
  }, [id]);
  return state;
}

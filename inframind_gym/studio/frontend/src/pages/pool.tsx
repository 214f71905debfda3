// A pool: its servers now, their queues over time, and decisions as they happen.
import { useMemo } from "react";
import { Chart, type Line } from "../chart";
import { colour, Meter, percent, seconds, Stats, Table, whole } from "../ui";
import type { View } from "./run";

const FEED = 25, MOST_POINTS = 600;
interface Sample {
  t: number; running: number[]; waiting: number[]; kv: number[]; up: number[]; left_alone?: number[]; notes?: string[];
  arrived?: number; done?: number; in_time?: number; solved?: number; good?: number; refused?: number; in_flight?: number;
  decisions?: number[]; failed?: number[]; output_tokens?: number[];
}

export function PoolView({ run, events }: View) {
  const data = <T,>(kind: string) => events.filter((event) => event.kind === kind).map((event) => event.data as T);
  const servers = useMemo(() => events.find((event) => event.kind === "servers")?.data, [events]);
  const samples = useMemo(() => data<Sample>("sample"), [events]);
  const decisions = useMemo(() => data<any>("decision"), [events]);
  const requests = useMemo(() => data<any>("request"), [events]);
  const queries = useMemo(() => data<any>("query"), [events]);
  const every = Math.ceil(samples.length / MOST_POINTS) || 1;
  const kept = useMemo(() => samples.filter((_, i) => i % every === 0 || i === samples.length - 1), [samples, every]);
  const x = useMemo(() => kept.map((sample) => sample.t), [kept]);
  const lines = (key: "waiting" | "running" | "kv", factor = 1): Line[] =>
    names.map((label: string, m: number) => ({ label, colour: colour(m), stepped: true, values: kept.map((sample) => factor * sample[key][m]) }));
  const names: string[] = servers?.names ?? [];
  const [waiting, running, cache] = useMemo(() => [lines("waiting"), lines("running"), lines("kv", 100)], [kept, servers]);
  if (!servers || !samples.length) return <p className="hint">Waiting for the first look at the servers…</p>;
  const now = samples[samples.length - 1], before = samples[samples.length - 2];
  const isSimulated = servers.clock === "simulated", deepest = Math.max(8, ...samples.map((sample) => Math.max(...sample.waiting)));
  const peak = names.map((_, m) => Math.max(...samples.map((sample) => sample.waiting[m])));
  const rate = (of: (sample: Sample) => number) => (before ? (of(now) - of(before)) / (now.t - before.t) : 0);
  const share = (count?: number) => (now.done && count !== undefined ? percent(count / now.done) : "–");
  const routed = names.map((_, m) => now.decisions?.[m] ?? decisions.filter((one) => one.server === m).length);
  const xLabel = isSimulated ? "simulated seconds" : "seconds";
  return (
    <>
      <Stats
        items={[
          [isSimulated ? "simulated time" : "watched for", seconds(now.t)],
          ...(isSimulated
            ? ([["arrived", `${now.arrived} of ${servers.queries}`], ["in flight", now.arrived! - now.done!], ["done", now.done!], ["in time", share(now.in_time), "of the queries that are done, within their latency budget"],
                ["solved", share(now.solved), "of the queries that are done"], ["goodput", share(now.good), "solved and in time"]] as [string, string, string?][])
            : []),
          ...(now.in_flight === undefined ? [] : ([["open requests", now.in_flight], ["answers", whole(now.done!)], ["in time", share(now.in_time)], ["refused", whole(now.refused!)]] as [string, string][])),
        ]}
      />
      {servers.about && <p className="hint">pool {servers.about.pool}, policy {servers.about.policy}</p>}
      <h2>Servers</h2>
      <Table
        label="servers" rows={names}
        columns={[
          { head: "server", left: true, cell: (name) => <b>{name}</b> },
          { head: "state", left: true, cell: (_, m) => <ServerState sample={now} m={m} /> },
          { head: "running", left: true, cell: (_, m) => <Meter label="running" share={now.running[m] / (servers.slots?.[m] ?? Math.max(8, now.running[m]))} text={servers.slots ? `${now.running[m]}/${servers.slots[m]}` : String(now.running[m])} /> },
          { head: "waiting", left: true, cell: (_, m) => <Meter label="waiting" tone="--c1" share={now.waiting[m] / deepest} text={`${now.waiting[m]}, most ${peak[m]}`} /> },
          { head: "KV cache", left: true, cell: (_, m) => <Meter label="KV cache" tone="--c2" share={now.kv[m]} text={percent(now.kv[m])} /> },
          ...(routed.some(Boolean) ? [{ head: "decisions", cell: (_: string, m: number) => whole(routed[m]) }] : []),
          ...(now.failed ? [{ head: "failed", cell: (_: string, m: number) => whole(now.failed![m]) }] : []),
          ...(now.output_tokens ? [{ head: "tokens/s", cell: (_: string, m: number) => rate((sample) => sample.output_tokens?.[m] ?? 0).toFixed(1) }] : []),
        ]}
      />
      {now.notes?.map((note, m) => note && <p key={m} className="error">{now.notes!.length === names.length && `${names[m]}: `}{note}</p>)}
      <div className="panels">
        <Chart title="Waiting calls" x={x} xLabel={xLabel} lines={waiting} from={0} to={4} decimals={0} />
        <Chart title="Running calls" x={x} xLabel={xLabel} lines={running} from={0} to={4} decimals={0} />
        <Chart title="KV cache in use, %" x={x} xLabel={xLabel} lines={cache} from={0} to={10} decimals={1} />
      </div>
      {requests.length > 0 && (
        <section>
          <h2>Last requests</h2>
          <Table
            label="requests" rows={requests.slice(-FEED).reverse()}
            columns={[
              { head: "at s", cell: (r) => r.t.toFixed(0) },
              { head: "asked for", left: true, cell: (r) => r.asked ?? "" },
              { head: "goes to", left: true, cell: (r) => [r.model, r.strategy].filter(Boolean).join(", ") || "–" },
              { head: "latency s", cell: (r) => r.latency_s?.toFixed(2) ?? "" },
              { head: "expected s", cell: (r) => r.predicted_s?.toFixed(2) ?? "" },
              { head: "budget s", cell: (r) => r.budget_s ?? "" },
              { head: "tokens", cell: (r) => (r.output_toks === null || r.output_toks === undefined ? "" : `${r.input_toks} + ${r.output_toks}`) },
              { head: "outcome", left: true, wrap: true, cell: (r) => r.error ?? `${r.status ?? ""} ${r.http ?? ""}` },
            ]}
          />
        </section>
      )}
      {isSimulated && (
        <div className="two">
          <section>
            <h2>Last decisions</h2>
            <Table
              label="decisions" rows={decisions.slice(-FEED).reverse()}
              columns={[
                { head: "at s", cell: (d) => d.t.toFixed(1) },
                { head: "query", cell: (d) => d.query + 1 },
                { head: "call", left: true, cell: (d) => (d.plan ? "plan" : `${d.role}, ${d.call}`) },
                { head: "goes to", left: true, cell: (d) => (d.plan ? `${d.plan}, ${d.agents} agents` : <><i className="swatch inline" style={{ background: `var(${colour(d.server)})` }} />{names[d.server]}, {d.strategy}</>) },
                { head: "left s", cell: (d) => <span className={d.left_s < 0 ? "lost" : undefined}>{d.left_s.toFixed(1)}</span> },
              ]}
            />
          </section>
          <section>
            <h2>Last queries</h2>
            <Table
              label="queries" rows={queries.slice(-FEED).reverse()}
              columns={[
                { head: "at s", cell: (q) => q.t.toFixed(1) },
                { head: "query", cell: (q) => q.query + 1 },
                { head: "calls", cell: (q) => q.calls },
                { head: "latency s", cell: (q) => q.latency_s.toFixed(1) },
                { head: "budget s", cell: (q) => q.budget_s.toFixed(0) },
                { head: "outcome", left: true, cell: (q) => (q.solved ? "solved" : "wrong") + (q.latency_s <= q.budget_s ? "" : ", late") },
              ]}
            />
          </section>
        </div>
      )}
      {run.status !== "running" && run.summary?.goodput !== undefined && (
        <p className="hint">Ended: {run.summary.queries} queries, goodput {percent(run.summary.goodput)} (solved {percent(run.summary.solved)}, in time {percent(run.summary.slo)}).</p>
      )}
    </>
  );
}

function ServerState({ sample, m }: { sample: Sample; m: number }) {
  const [status, words] = !sample.up[m] ? ["failed", "down"] : sample.left_alone?.[m] ? ["interrupted", "left alone"] : ["complete", "up"];
  return <span className={`chip ${status}`} title={sample.notes?.[m]}>{words}</span>;
}

// A run of the token-budget team: where its tokens went, and what they bought.
import { useMemo } from "react";
import type { Event } from "../api";
import { Chart } from "../chart";
import { Lanes, Meter, StackedBar, Stats, Table, whole, type Span } from "../ui";
import type { View } from "./run";

const AGENTS = ["planner", "executor", "critic"], COLOURS = ["--c0", "--c1", "--c2"];
const THRESHOLD = 0.005;
interface Trace {
  agent: string; action: string; tokens: number; quality: number; quality_delta: number;
  roi: number; cutoff_reason: string; cumulative_tokens: number; output: string;
}
const agentOf = (trace: Trace) => AGENTS.indexOf(trace.agent);
export const tracesOf = (events: Event[]) => events.filter((event) => event.kind === "trace").map((event) => event.data as Trace);
export const cutoffs = (traces: Trace[]) => traces.filter((trace) => trace.cutoff_reason).map((trace) => ({ x: trace.cumulative_tokens, label: trace.action + (trace.action === trace.cutoff_reason ? "" : ` (${trace.cutoff_reason})`) }));

export function TokenBudgetView({ run, events }: View) {
  const traces = useMemo(() => tracesOf(events), [events]);
  const calls = useMemo(() => traces.filter((trace) => trace.tokens > 0), [traces]);
  const last = <T,>(kind: string) => events.findLast((event) => event.kind === kind)?.data as T | undefined;
  const preflight = last<{ complexity: string; minimum_budget: number; warning?: string; narrowed?: boolean }>("preflight");
  const allocation = last<Record<string, number>>("allocation");
  const { budget } = run.settings, spent = traces.at(-1)?.cumulative_tokens ?? 0;
  const used = AGENTS.map((_, i) => calls.filter((call) => agentOf(call) === i).reduce((sum, call) => sum + call.tokens, 0));
  const overhead = Math.max(spent - used.reduce((a, b) => a + b, 0), 0), quality = traces.at(-1)?.quality ?? 0;
  const x = useMemo(() => [0, ...calls.map((call) => call.cumulative_tokens)], [calls]);
  const curve = useMemo(() => [{ label: "quality", colour: "--c0", values: [0, ...calls.map((call) => call.quality)] }], [calls]);
  const roi = useMemo(
    () => [
      ...AGENTS.map((agent, i) => ({ label: agent, colour: COLOURS[i], values: [null, ...calls.map((call) => (agentOf(call) === i ? 1000 * call.roi : null))] })),
      { label: "threshold", colour: "--c7", dash: [4, 4], values: x.map(() => 1000 * (run.settings.roi_threshold ?? THRESHOLD)) },
    ],
    [calls, x],
  );
  const marks = cutoffs(traces), cost = run.summary?.cost_report;
  const spans = calls.map((call): Span => [agentOf(call), call.cumulative_tokens - call.tokens, call.cumulative_tokens, COLOURS[agentOf(call)], `${call.action}: ${whole(call.tokens)} tokens`]);
  return (
    <>
      {preflight?.warning && <p className="error">{preflight.warning}{preflight.narrowed && " The task was narrowed."}</p>}
      <Stats
        items={[
          ["quality", quality.toFixed(0), "0 to 100, by the team's own proxies"],
          ["tokens", whole(spent)],
          ["left", whole(budget - spent), "what is not spent is returned"],
          ["calls", calls.length],
          ["task", preflight?.complexity ?? "–", "by the pre-flight"],
          ["least budget", preflight ? whole(preflight.minimum_budget) : "–", "for a task of that kind"],
          ["ended by", run.summary?.ended_by || "–"],
          ...(run.summary?.true_quality === undefined ? [] : [["true quality", run.summary.true_quality.toFixed(0), "of the simulation; the team does not see it"] as [string, string, string]]),
        ]}
      />
      <section>
        <h2>Budget</h2>
        <StackedBar
          label="budget" total={budget}
          parts={[...AGENTS.map((agent, i): [string, number, string] => [agent, used[i], COLOURS[i]]), ["pre-flight and ratings", overhead, "--c4"], ["left", Math.max(budget - spent, 0), ""]]}
        />
        {allocation && (
          <div className="meters">
            {AGENTS.map((agent, i) => (
              <div key={agent}>
                <span>{agent}</span>
                <Meter share={used[i] / allocation[agent]} tone={COLOURS[i]} label={`${agent}, of its allocation`} text={`${whole(used[i])} of ${whole(allocation[agent])} allocated`} />
              </div>
            ))}
          </div>
        )}
        <h3>Tokens over the run</h3>
        <Lanes label="tokens by agent" lanes={AGENTS} spans={spans} end={Math.max(spent, 1)} unit="tokens" />
      </section>
      <div className="panels">
        <Chart title="Quality over tokens" x={x} xLabel="tokens spent" lines={curve} decimals={1} from={0} to={100} marks={marks} />
        <Chart title="ROI by agent, points per 1,000 tokens" x={x} xLabel="tokens spent" lines={roi} from={0} />
      </div>
      <section>
        <h2>Trace</h2>
        <Table
          label="trace" rows={traces}
          columns={[
            { head: "step", left: true, cell: (t) => t.action },
            { head: "tokens", cell: (t) => (t.tokens ? whole(t.tokens) : "") },
            { head: "in all", cell: (t) => whole(t.cumulative_tokens) },
            { head: "quality", cell: (t) => t.quality.toFixed(0) },
            { head: "gain", cell: (t) => (t.tokens ? `${t.quality_delta >= 0 ? "+" : "−"}${Math.abs(t.quality_delta).toFixed(0)}` : "") },
            { head: "ROI", cell: (t) => (t.tokens ? t.roi.toFixed(4) : "") },
            { head: "ended", left: true, cell: (t) => t.cutoff_reason },
            { head: "answer", left: true, wrap: true, cell: (t) => (t.tokens ? <details><summary>{t.output.slice(0, 60)}</summary><pre>{t.output}</pre></details> : "") },
          ]}
        />
      </section>
      {run.summary?.output && (
        <section>
          <h2>Output</h2>
          <pre className="card output">{run.summary.output}</pre>
          {cost && <p className="hint">{whole(cost.tokens)} of {whole(cost.budget)} tokens, {whole(cost.unspent)} returned, {(run.summary.cost_usd ?? 0).toFixed(4)} USD.</p>}
        </section>
      )}
    </>
  );
}

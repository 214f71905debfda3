// A training of the assignment team: six panels, load states, and what Q-learning has learned.
import { useMemo } from "react";
import type { Event } from "../api";
import { Chart, type Line } from "../chart";
import { colour, Meter, percent, Stats, Table } from "../ui";
import type { View } from "./run";

const AGENTS = ["analyst", "coder", "researcher", "validator"], TYPES = ["analysis", "coding", "research", "validation"];
const STATES = ["balanced", ...AGENTS.map((agent) => `${agent}_hot`)], PROVIDERS = ["openai", "anthropic"];
const SCORES = ["relevance", "accuracy", "completeness", "agent_match"];
const FAIR = 100 / AGENTS.length;
interface Step {
  iteration: number; agent_id: string; key: string; action_idx: number; task_type: string; scores: Record<string, number>; adjusted_reward: number;
  raw_reward: number; load_penalty: number; utilization: Record<string, number>; imbalance: number; epsilon: number; load_state: string; next_load_state: string;
  q: number | null; row_shift: string | null; cooled_down: boolean; cost_usd: number; latency_s: number;
}
type Table_ = Record<string, (number | undefined)[]>; // "type|state" -> value by action

export const stepsOf = (events: Event[]) => events.filter((event) => event.kind === "iteration").map((event) => event.data as Step);
const mean = (values: number[]) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : 0);

// The table after all steps: each has changed one cell.
function tableOf(steps: Step[]): Table_ {
  const table: Table_ = {};
  for (const step of steps) if (step.q !== null && step.q !== undefined) (table[`${step.task_type}|${step.load_state}`] ??= Array(8).fill(undefined))[step.action_idx] = step.q;
  return table;
}
function best(row: (number | undefined)[] = []): number {
  return row.reduce<number>((found, value, i) => (value !== undefined && (found < 0 || value > row[found]!) ? i : found), -1);
}
const nameOf = (action: number) => `${AGENTS[Math.floor(action / 2)]}, ${PROVIDERS[action % 2]}`;

export function AssignmentView({ run, events }: View) {
  const steps = useMemo(() => stepsOf(events), [events]);
  const x = useMemo(() => steps.map((step) => step.iteration + 1), [steps]);
  const table = useMemo(() => tableOf(steps), [steps]);
  const panels = useMemo(() => {
    const line = (label: string, i: number, of: (step: Step) => number, more: Partial<Line> = {}): Line => ({ label, colour: colour(i), values: steps.map(of), ...more });
    return {
      rewards: [line("raw", 0, (s) => s.raw_reward), line("adjusted", 1, (s) => s.adjusted_reward)],
      scores: SCORES.map((name, i) => line(name.replace("_", " "), i, (s) => s.scores[name])),
      over: [...AGENTS.map((agent, i) => line(agent, i, (s) => 100 * (s.utilization[agent] ?? 0))), line("fair share", 7, () => FAIR, { dash: [4, 4] })],
      load: [line("penalty", 1, (s) => s.load_penalty), line("imbalance (right)", 0, (s) => s.imbalance, { right: true })],
    };
  }, [steps]);
  if (!steps.length) return <p className="hint">The team is being set up…</p>;
  const last = steps[steps.length - 1], count = (of: (step: Step) => boolean) => steps.filter(of).length;
  const states = STATES.filter((state) => state === "balanced" || steps.some((step) => step.load_state === state));
  const learns = Object.keys(table).length > 0;
  return (
    <>
      <Stats
        items={[
          ["tasks", `${steps.length} of ${run.settings.iterations}`],
          ["mean reward", mean(steps.map((s) => s.adjusted_reward)).toFixed(3), "adjusted for load"],
          ["mean penalty", mean(steps.map((s) => s.load_penalty)).toFixed(3)],
          ["exploration", last.epsilon.toFixed(3), "ε, probability of a random choice"],
          ["imbalance", last.imbalance.toFixed(2), "spread of the agents' shares of recent work over their mean"],
          ["load", last.next_load_state.replace("_", " ")],
          ["cost", `${steps.reduce((sum, s) => sum + s.cost_usd, 0).toFixed(4)} USD`, "of the agents' answers, without the judge's"],
          ["row shifts", count((s) => s.row_shift !== null), "tasks that went elsewhere because an agent was hot"],
          ["penalties", count((s) => s.load_penalty > 0), "tasks whose agent had more than its fair share"],
          ["cool-downs", count((s) => s.cooled_down), "times that a hot agent was no longer hot after a task"],
        ]}
      />
      <h2>Training, task by task</h2>
      <div className="panels">
        <Chart title="Rewards" x={x} xLabel="task" lines={panels.rewards} from={0} to={1} />
        <Chart title="Quality scores of the judge" x={x} xLabel="task" lines={panels.scores} from={0} to={1} />
        <Bars title="Share of all tasks by agent, % (fair: 25)" rows={AGENTS.map((agent, i) => [agent, count((s) => s.agent_id === agent) / steps.length, i])} text={percent} />
        <Bars title="Mean reward by task type" rows={TYPES.map((type, i) => [type, mean(steps.filter((s) => s.task_type === type).map((s) => s.adjusted_reward)), i])} text={(value) => value.toFixed(3)} />
        <Chart title="Share of the last 8 tasks by agent, %" x={x} xLabel="task" lines={panels.over} from={0} to={100} decimals={1} />
        <Chart title="Load penalty and imbalance" x={x} xLabel="task" lines={panels.load} from={0} to={0.2} />
      </div>
      <Bars title="Load states when a task was assigned" rows={STATES.map((state, i) => [state.replace("_", " "), count((s) => s.load_state === state) / steps.length, i ? 1 : 0])} text={percent} />
      {learns && (
        <section>
          <h2>Routing policy</h2>
          <p className="hint">The best action that was tried, by task type and load state. A choice that differs from the balanced one is bold.</p>
          <Table
            label="routing policy" rows={TYPES}
            columns={[{ head: "task type", left: true, cell: (type) => type }, ...states.map((state) => ({
              head: state.replace("_", " "), left: true,
              cell: (type: string) => {
                const [own, usual] = [best(table[`${type}|${state}`]), best(table[`${type}|balanced`])];
                return own < 0 ? <span className="grey">not tried</span> : own !== usual && usual >= 0 ? <b>{nameOf(own)}</b> : nameOf(own);
              },
            }))]}
          />
          <h2>Q-tables by load state</h2>
          <p className="hint">Values of the actions; darker is higher, the outlined one is chosen. Empty cells were never tried.</p>
          <div className="two">{states.map((state) => <Heat key={state} state={state} table={table} />)}</div>
        </section>
      )}
    </>
  );
}

function Bars({ title, rows, text }: { title: string; rows: [string, number, number][]; text: (value: number) => string }) {
  return (
    <figure className="chart">
      <h3>{title}</h3>
      {rows.map(([name, value, i]) => (
        <div key={name} className="barrow"><span>{name}</span><Meter label={name} share={value} text={text(value)} tone={colour(i)} /></div>
      ))}
    </figure>
  );
}

function Heat({ state, table }: { state: string; table: Table_ }) {
  const rows = TYPES.map((type) => table[`${type}|${state}`] ?? []);
  const known = rows.flat().filter((value): value is number => value !== undefined), most = Math.max(...known, 1e-9), least = Math.min(...known, 0);
  return (
    <div>
      <h3>{state.replace("_", " ")}</h3>
      <div className="scroll" tabIndex={0} role="region" aria-label={`values while ${state.replace("_", " ")}`}>
        <table>
          <thead>
            <tr><td />{AGENTS.map((agent) => <th key={agent} colSpan={2} scope="colgroup" className="heat">{agent}</th>)}</tr>
            <tr><td />{AGENTS.flatMap((agent) => PROVIDERS.map((provider) => <th key={agent + provider} scope="col" className="heat">{provider}</th>))}</tr>
          </thead>
          <tbody>
            {TYPES.map((type, r) => (
              <tr key={type}>
                <th scope="row" className="left">{type}</th>
                {Array.from({ length: 8 }, (_, a) => {
                  const value = rows[r][a], share = value === undefined ? 0 : (value - least) / (most - least || 1);
                  const style = value === undefined ? undefined : { background: `color-mix(in srgb, var(--c0) ${Math.round(8 + 42 * share)}%, var(--paper))` };
                  return <td key={a} className={`heat ${a === best(rows[r]) ? "best" : ""}`} style={style}>{value?.toFixed(2)}</td>;
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}

// The page of a team or of pools: a form that starts a run, and the runs that there are.
import { useState } from "react";
import { isStatic, post, useGet, type Info, type Run } from "../api";
import { Chip, ErrorNote, moment, OrderForm, percent, Table, TITLES, whole, type Field } from "../ui";

const ABOUT: Record<string, string> = {
  pool: "Queries arrive, a router sends their calls to servers, and queues grow where it sends too many. Watch a simulated stream, live vLLM servers, or a gateway.",
  "token-budget": "Planner, executor and critic work on a task under a hard ceiling of tokens, and stop where further tokens buy too little quality.",
  assignment: "Four agents share tasks. Q-learning learns who takes which, and who gets too much of the recent work is penalised.",
  coordination: "A supervisor calls router, planner, retrieval, synthesis and validation, and answers from sources before a deadline.",
};
export const COMPARED = ["token-budget", "assignment"];
const PACED: Record<string, number> = { "token-budget": 0.5, assignment: 0.1 };
const SEED: Field = { name: "seed", label: "seed", kind: "number", step: 1 };

function fieldsOf(team: string, { choices, sources }: Info, source: string): Field[] {
  const of = (name: string, label: string): Field => ({ name, label, kind: "select", options: choices[team][name] });
  if (team === "token-budget") {
    return [
      { name: "task", label: "task", kind: "area" },
      { name: "budget", label: "budget, tokens", kind: "number", step: 1, hint: "a ceiling, no target" },
      of("strategy", "strategy"),
      { name: "profile", label: "simulated as", kind: "select", options: ["simulated", "seed-example"] },
      SEED,
      { name: "scope_down", label: "narrow a task that is too large", kind: "check" },
    ];
  }
  if (team === "assignment") {
    const numbers: Field[] = [{ name: "iterations", label: "tasks", kind: "number", step: 1 }, { name: "epsilon", label: "exploration at first", kind: "number", hint: "a share, 0 to 1" }];
    return [of("router", "router"), of("arrivals", "arrivals"), of("ties", "equal values"), ...numbers, SEED];
  }
  if (team === "coordination") {
    return [
      { name: "question", label: "question", kind: "area" },
      of("policy", "supervisor"),
      { name: "deadline_s", label: "deadline, s", kind: "number", optional: true, hint: "empty: the team's" },
      { name: "fault", label: "fault", kind: "text", optional: true, hint: "AGENT:KIND, e.g. planner:timeout" },
    ];
  }
  const source_: Field = { name: "source", label: "source", kind: "select", options: sources };
  if (source !== "simulation") {
    return [source_, { name: "watch_s", label: "watch for, s", kind: "number" }, { name: "poll_s", label: "look every, s", kind: "number" }];
  }
  return [
    ...(sources.length > 1 ? [source_] : []),
    of("pool", "pool"), of("workload", "workload"), of("policy", "router"),
    { name: "arrival_rate_per_min", label: "queries a minute", kind: "number" },
    { name: "num_queries", label: "queries", kind: "number", step: 1 },
    { name: "budget_s", label: "latency budget, s", kind: "number", optional: true, hint: "empty: the workload's tiers" },
    { name: "speed", label: "speed", kind: "number", optional: true, hint: "simulated seconds a second; empty: at once" },
    SEED,
  ];
}

const EXAMPLES: Record<string, Record<string, string>> = {
  "token-budget": { task: "Write a migration plan from a monolith to three services." },
  coordination: { question: "Compare chunked prefill and a separate pool of servers for long prompts." },
};

export function describe({ team, settings }: Run): string {
  if (team === "token-budget") return `${settings.strategy}, ${whole(settings.budget)} tokens: ${settings.task}`;
  if (team === "assignment") return `${settings.router ?? ""}, ${settings.arrivals ?? ""}, ${settings.iterations ?? "?"} tasks, seed ${settings.seed}`;
  if (team === "coordination") return settings.question ?? `scenario ${settings.scenario ?? ""}`;
  if (settings.source !== "simulation") return `watching the ${settings.source}`;
  return `${settings.policy} on ${settings.pool}, ${settings.workload} at ${settings.arrival_rate_per_min}/min`;
}

function outcome({ team, summary }: Run): string {
  if (!summary) return "";
  if (summary.error) return summary.error;
  if (team === "token-budget") return `quality ${Math.round(summary.quality)}, ${whole(summary.cost_report.tokens)} tokens`;
  if (team === "assignment") return `reward ${summary.mean_adjusted_reward.toFixed(3)}`;
  if (team === "coordination") return summary.ended_by ?? "";
  return summary.goodput === undefined ? `${summary.samples} samples` : `goodput ${percent(summary.goodput)}`;
}

export function TeamPage({ team, info }: { team: string; info: Info }) {
  const found = useGet<{ runs: Run[]; owned: string[] }>("runs", 2);
  const [picked, pick] = useState<string[]>([]), [source, setSource] = useState(info.sources[0]);
  const runs = (found.value?.runs ?? []).filter((run) => run.team === team);
  const toggle = (id: string) => pick((before) => (before.includes(id) ? before.filter((one) => one !== id) : [...before.slice(-1), id]));
  const defaults = { ...info.defaults[team], ...EXAMPLES[team], ...(team === "pool" ? { source } : {}) };
  const compares = COMPARED.includes(team) && runs.length > 1;
  return (
    <>
      <h1>{TITLES[team]}</h1>
      <p>{ABOUT[team]}</p>
      {!isStatic && team === "pool" && info.sources.length > 1 && (
        <div className="controls" role="group" aria-label="what is watched">
          {info.sources.map((one) => <button key={one} type="button" aria-pressed={one === source} onClick={() => setSource(one)}>{one}</button>)}
        </div>
      )}
      <OrderForm key={source} team={team} fields={fieldsOf(team, info, source).filter((field) => field.name !== "source")} defaults={defaults} paced={PACED[team]} />
      <div className="heading">
        <h2>Runs</h2>
        {compares && (
          <a className={`button ${picked.length === 2 ? "primary" : "off"}`} aria-disabled={picked.length !== 2} href={picked.length === 2 ? `#/compare/${picked.join("/")}` : undefined}>
            {picked.length === 2 ? "Compare A and B" : "Choose two to compare"}
          </a>
        )}
      </div>
      <ErrorNote error={found.error} />
      <Table
        label="runs" rows={runs} keyOf={(run) => run.run_id}
        empty={isStatic ? "The record has no runs of this kind." : "No run yet. The form above starts one."}
        columns={[
          ...(compares ? [{
            head: "A/B", left: true,
            cell: (run: Run) => (
              <label className="pick"><input type="checkbox" checked={picked.includes(run.run_id)} onChange={() => toggle(run.run_id)} aria-label={`compare run ${run.run_id}`} />{"AB"[picked.indexOf(run.run_id)] ?? ""}</label>
            ),
          }] : []),
          { head: "run", left: true, cell: (run) => <a href={`#/run/${run.run_id}`}>{run.run_id}</a> },
          { head: "", left: true, cell: (run) => <Chip run={run} /> },
          { head: "what", left: true, wrap: true, cell: (run) => <span className="clamp">{describe(run)}</span> },
          { head: "result", left: true, wrap: true, cell: (run) => <span className="clamp">{outcome(run)}</span> },
          { head: "started", cell: (run) => moment(run.started_s) },
          { head: "", cell: (run) => (found.value?.owned.includes(run.run_id) ? <button onClick={() => post(`runs/${run.run_id}/stop`)} aria-label={`stop run ${run.run_id}`}>Stop</button> : null) },
        ]}
      />
    </>
  );
}

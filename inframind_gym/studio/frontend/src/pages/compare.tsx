// Two runs of a team side by side: curves, cut-offs, traces, numbers.
import { useMemo } from "react";
import { useGet, useRun, type Event, type Run } from "../api";
import { Chart } from "../chart";
import { Chip, ErrorNote, shownNumber, Table, TITLES, whole } from "../ui";
import { stepsOf } from "./assignment";
import { describe } from "./team";
import { cutoffs, tracesOf } from "./tokenBudget";

interface Compared {
  numbers: Record<string, { a: number; b: number; change_percent: number | null }>;
  traces: [any, any][];
}
const COLOURS = ["--c0", "--c1"];

// Two curves over one axis: both get all of its points, and nothing where they have none.
function joined(curves: [number, number][][]): { x: number[]; values: (number | null)[][] } {
  const x = [...new Set(curves.flat().map(([at]) => at))].sort((a, b) => a - b);
  return { x, values: curves.map((curve) => { const known = new Map(curve); return x.map((at) => known.get(at) ?? null); }) };
}
const curveOf = (team: string, events: Event[]): [number, number][] =>
  team === "token-budget" ? [[0, 0], ...tracesOf(events).map((t): [number, number] => [t.cumulative_tokens, t.quality])]
    : stepsOf(events).map((s): [number, number] => [s.iteration + 1, s.adjusted_reward]);
// The mean so far: single rewards hide which run is ahead.
const soFar = (curve: [number, number][]) => { let sum = 0; return curve.map(([at, value], i): [number, number] => [at, (sum += value) / (i + 1)]); };

export function Compare({ first, second }: { first: string; second: string }) {
  const a = useRun(first), b = useRun(second), found = useGet<Compared>(`compare/${first}/${second}`, 0), team = a.run?.team ?? "";
  const isBudget = team === "token-budget";
  const { x, lines } = useMemo(() => {
    const curves = [a.events, b.events].map((events) => { const curve = curveOf(team, events); return isBudget ? curve : soFar(curve); });
    const { x, values } = joined(curves);
    return { x, lines: values.map((own, i) => ({ label: "AB"[i], colour: COLOURS[i], values: own })) };
  }, [a.events, b.events, team]);
  const ends = isBudget ? [a, b].flatMap((side, i) => cutoffs(tracesOf(side.events)).map((mark) => ({ ...mark, label: `${"AB"[i]}: ${mark.label}` }))) : [];
  if (!a.run || !b.run) return <><ErrorNote error={a.error ?? b.error} /><p className="hint" role="status">Reading the runs…</p></>;
  return (
    <>
      <p className="crumbs"><a href={`#/${team}`}>{TITLES[team]}</a> / comparison</p>
      <h1>A and B</h1>
      <div className="two">{[a.run, b.run].map((run, i) => <Side key={i} letter={"AB"[i]} run={run} />)}</div>
      <ErrorNote error={found.error} />
      <h2>Curves</h2>
      <Chart title={isBudget ? "Quality over tokens" : "Mean adjusted reward so far"} x={x} xLabel={isBudget ? "tokens spent" : "task"} lines={lines} height={260} from={0} to={isBudget ? 100 : 1} marks={ends} decimals={isBudget ? 1 : 3} />
      {ends.length > 0 && (
        <section>
          <h2>Cut-offs</h2>
          <Table label="cut-offs" rows={ends} columns={[{ head: "run and reason", left: true, cell: (mark) => mark.label }, { head: "after tokens", cell: (mark) => whole(mark.x) }]} />
        </section>
      )}
      {found.value && (
        <>
          <h2>Traces side by side</h2>
          <Traces pairs={found.value.traces} isBudget={isBudget} />
          <h2>Numbers</h2>
          <Table
            label="numbers" rows={Object.entries(found.value.numbers)} keyOf={([key]) => key}
            columns={[
              { head: "", left: true, cell: ([key]) => key.replaceAll("_", " ").replaceAll(".", ": ") },
              { head: "A", cell: ([, row]) => shownNumber(row.a) },
              { head: "B", cell: ([, row]) => shownNumber(row.b) },
              { head: "change", cell: ([, row]) => (row.change_percent === null ? "" : `${row.change_percent >= 0 ? "+" : "−"}${Math.abs(row.change_percent).toFixed(1)} %`) },
            ]}
          />
        </>
      )}
    </>
  );
}

const Side = ({ letter, run }: { letter: string; run: Run }) => (
  <div className="card">
    <b>{letter}</b> <a href={`#/run/${run.run_id}`}>{run.run_id}</a> <Chip run={run} />
    <div className="clamp">{describe(run)}</div>
  </div>
);

function Traces({ pairs, isBudget }: { pairs: [any, any][]; isBudget: boolean }) {
  const columns: [string, (step: any) => string, boolean][] = isBudget
    ? [["step", (s) => s.action, true], ["tokens", (s) => whole(s.cumulative_tokens), false], ["quality", (s) => s.quality.toFixed(0), false], ["ended", (s) => s.cutoff_reason, true]]
    : [["task", (s) => s.task_type, true], ["goes to", (s) => s.key.replace(":", ", "), true], ["reward", (s) => s.adjusted_reward.toFixed(3), false]];
  return (
    <Table
      label="traces" rows={pairs}
      columns={["A", "B"].flatMap((letter, side) => columns.map(([head, of, left]) => ({ head: `${letter}: ${head}`, left, cell: (pair: [any, any]) => (pair[side] ? of(pair[side]) : "") })))}
    />
  );
}

// One run, live or from its record.
import { isStatic, post, useRun, type Event, type Run } from "../api";
import { Chip, ErrorNote, moment, TITLES } from "../ui";
import { AssignmentView } from "./assignment";
import { CoordinationView } from "./coordination";
import { PoolView } from "./pool";
import { describe } from "./team";
import { TokenBudgetView } from "./tokenBudget";

export interface View {
  run: Run;
  events: Event[];
}
const VIEWS: Record<string, (view: View) => React.ReactNode> = {
  pool: PoolView, "token-budget": TokenBudgetView, assignment: AssignmentView, coordination: CoordinationView,
};

export function RunPage({ id }: { id: string }) {
  const { run, events, isLost, error } = useRun(id);
  if (!run) return error ? <ErrorNote error={error} /> : <p className="hint" role="status">Reading the run…</p>;
  const Shown = VIEWS[run.team], running = run.status === "running";
  const simulated = run.settings.provider === "simulated" || run.settings.source === "simulation";
  return (
    <>
      <p className="crumbs"><a href={`#/${run.team}`}>{TITLES[run.team] ?? run.team}</a> / run {run.run_id}</p>
      <div className="heading">
        <h1 className="clamp">{describe(run)}</h1>
        {running && !isStatic && <button onClick={() => post(`runs/${id}/stop`).catch(() => undefined)}>Stop</button>}
      </div>
      <p className="hint" role="status">
        <Chip run={run} /> {simulated && <span className="chip">simulated</span>} started {moment(run.started_s)},{" "}
        <span data-events={events.length} data-last={events.at(-1)?.seq ?? 0}>{events.length.toLocaleString("en-US")} events</span>
        {isLost && <b className="lost"> The connection is lost; trying again.</b>}
      </p>
      <ErrorNote error={error} />
      {run.summary?.error && <p className="error" role="alert">{run.summary.error}</p>}
      {Shown ? <Shown run={run} events={events} /> : <p>The studio has no view of this team.</p>}
    </>
  );
}

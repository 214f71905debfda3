// A question to the coordination team: its answer with sources, and how it came about.
import { useMemo } from "react";
import { Lanes, Meter, seconds, Stats, Table, whole, type Span } from "../ui";
import type { View } from "./run";

const LANES = ["supervisor", "router", "planner", "retrieval", "synthesis", "validation"];
const ENDINGS: Record<string, string> = {
  answer: "answered", fallback: "basic retrieval answered", deadline: "late: basic retrieval answered", iterations: "too many decisions: basic retrieval answered",
  context: "the context was too long", failed: "failed without an answer", stopped: "stopped", refused: "refused: it looks like a prompt injection",
};
interface Decision { iteration: number; action: string; elapsed_ms: number; context_tokens: number; docs: number; pending: number; forced?: string; refused?: boolean; open: string[] }
interface Call { agent: string; outcome: string; latency_s: number; input_tokens: number; output_tokens: number; content?: string; attempt: number }
interface Handoff { kind?: string; sender?: string; receiver?: string; content?: string; name?: string; iteration?: number }

// Whose work an action is.
function laneOf(action: string): number {
  if (action.startsWith("retrieve") || action === "rewrite" || action.startsWith("fallback")) return 3;
  const found = { route: 1, plan: 2, synthesize: 4, regenerate: 4, validate: 5 }[action.split(" ")[0]];
  return found ?? 0;
}

export function CoordinationView({ run, events }: View) {
  const of = <T,>(kind: string) => events.filter((event) => event.kind === kind).map((event) => event.data as T);
  const decisions = useMemo(() => of<Decision>("decision"), [events]);
  const calls = useMemo(() => of<Call>("llm_attempt"), [events]);
  const answer = useMemo(() => of<any>("answer")[0], [events]);
  const failures = of<any>("agent_failed"), withheld = of<any>("passage_withheld"), refused = of<any>("query_refused")[0];
  const end = answer?.processing_time ?? (decisions.at(-1)?.elapsed_ms ?? 0) / 1000;
  const spans = decisions.map((decision, i): Span => {
    const from = decision.elapsed_ms / 1000, to = i + 1 < decisions.length ? decisions[i + 1].elapsed_ms / 1000 : Math.max(end, from), lane = laneOf(decision.action);
    return [lane, from, to, `--c${lane}`, `${decision.action}: ${seconds(to - from)}`];
  });
  const context = answer?.context_tokens ?? decisions.at(-1)?.context_tokens ?? 0, limit = answer?.context_limit ?? 131072;
  const verdict = answer?.validation, documents: any[] = answer?.documents ?? [];
  return (
    <>
      <Stats
        items={[
          ["ended", refused ? ENDINGS.refused : answer ? (ENDINGS[answer.ended_by] ?? answer.ended_by) : "–"],
          ["after", seconds(end), "virtual seconds where answers are simulated"],
          ["validated", verdict ? answer.validation_score.toFixed(2) : "not", "confidence that the answer is valid"],
          ["decisions", decisions.length],
          ["calls", calls.length],
          ["tokens", `${whole(calls.reduce((sum, call) => sum + (call.input_tokens ?? 0), 0))} + ${whole(calls.reduce((sum, call) => sum + (call.output_tokens ?? 0), 0))}`, "of prompts and answers"],
        ]}
      />
      {refused && <p className="error">{refused.reason}</p>}
      {answer && (
        <section>
          <h2>Answer</h2>
          <p className="card answer">{answer.content}</p>
        </section>
      )}
      <div className="two">
        <section>
          <h2>Sources{answer?.attribution === "given" && " (not cited)"}</h2>
          {documents.length ? (
            <ol className="sources">{documents.map((doc) => <li key={doc.doc_id}><details><summary>{doc.source}</summary><p>{doc.text}</p></details></li>)}</ol>
          ) : <p className="hint">{answer ? "None." : "Nothing yet."}</p>}
          {withheld.length > 0 && <p className="hint">Withheld: {withheld.map((one) => `${one.doc_id} (${one.reason})`).join(", ")}</p>}
        </section>
        <section>
          <h2>Validation</h2>
          {verdict ? (
            <>
              <p><span className={`chip ${verdict.valid ? "complete" : "failed"}`}>{verdict.valid ? "valid" : "not valid"}</span> confidence {verdict.confidence.toFixed(2)}, suggests to {verdict.suggested_action}</p>
              {verdict.issues.map((issue: any, i: number) => <p key={i} className="error">{issue.type.replace("_", " ")} ({issue.severity}): {issue.description}</p>)}
            </>
          ) : <p className="hint">{answer ? "The answer was not validated." : "Nothing yet."}</p>}
          <h2>Context</h2>
          <Meter label="context" share={context / limit} text={`${whole(context)} of ${whole(limit)} tokens${answer?.context_trimmed ? ", trimmed" : ""}`} />
        </section>
      </div>
      <section>
        <h2>Trace</h2>
        <Lanes label="decisions by agent" lanes={LANES} spans={spans} end={end} unit="s" />
        {failures.map((failure, i) => <p key={i} className="error">{failure.agent} failed ({failure.failure}): {failure.message}</p>)}
        <Table
          label="decisions" rows={decisions}
          columns={[
            { head: "#", cell: (d) => d.iteration },
            { head: "decision", left: true, cell: (d) => d.action + (d.forced ? ` (${d.forced})` : "") + (d.refused ? " (not open)" : "") },
            { head: "at s", cell: (d) => (d.elapsed_ms / 1000).toFixed(2) },
            { head: "passages", cell: (d) => d.docs },
            { head: "pending", cell: (d) => d.pending },
            { head: "context", cell: (d) => whole(d.context_tokens) },
            { head: "open then", left: true, wrap: true, cell: (d) => <span className="clamp" title={d.open.join(", ")}>{d.open.join(", ")}</span> },
          ]}
        />
      </section>
      <div className="two">
        <section>
          <h2>Calls of the model</h2>
          <Table
            label="calls of the model" rows={calls}
            columns={[
              { head: "agent", left: true, cell: (c) => c.agent },
              { head: "outcome", left: true, cell: (c) => c.outcome },
              { head: "s", cell: (c) => c.latency_s?.toFixed(2) ?? "" },
              { head: "tokens", cell: (c) => (c.input_tokens === undefined ? "" : `${c.input_tokens} + ${c.output_tokens}`) },
              { head: "answer", left: true, wrap: true, cell: (c) => (c.content ? <details><summary>{c.content.slice(0, 40)}</summary><pre>{c.content}</pre></details> : "") },
            ]}
          />
        </section>
        <section>
          <h2>Handoffs</h2>
          <Table
            label="handoffs" rows={(answer?.handoffs ?? []) as Handoff[]}
            columns={[
              { head: "#", cell: (h) => h.iteration ?? "" },
              { head: "from", left: true, cell: (h) => h.sender ?? h.name ?? "" },
              { head: "to", left: true, cell: (h) => h.receiver ?? "" },
              { head: "message", left: true, wrap: true, cell: (h) => <span className="clamp">{h.content ?? ""}</span> },
            ]}
          />
        </section>
      </div>
      {run.status === "running" && !decisions.length && <p className="hint">The passages are being read; the first question takes longer.</p>}
    </>
  );
}

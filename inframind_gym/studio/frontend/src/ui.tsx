// Parts that all pages share.
import { useEffect, useId, useState, type ReactNode } from "react";
import { isStatic, post, type ApiError, type Json, type Run } from "./api";

export const colour = (i: number) => `--c${i % 8}`;
export const percent = (share: number) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
export const whole = (value: number) => Math.round(value).toLocaleString("en-US");
export const seconds = (value: number) => `${value.toFixed(value < 10 ? 2 : 1)} s`;
export const moment = (time_s: number) => new Date(time_s * 1000).toLocaleString("sv-SE").slice(0, 16);
export const TITLES: Record<string, string> = {
  pool: "Pool", "token-budget": "Token budget", assignment: "Assignment", coordination: "Coordination",
};

export function useHash(): string[] {
  const [hash, set] = useState(location.hash);
  useEffect(() => {
    const changed = () => {
      set(location.hash);
      scrollTo(0, 0);
      document.getElementById("main")?.focus({ preventScroll: true });
    };
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
}

export function ErrorNote({ error }: { error?: ApiError }) {
  if (!error) return null;
  return error.status === 401 ? <SignIn /> : <p className="error" role="alert">{error.message}</p>;
}

function SignIn() {
  const [token, setToken] = useState(""), [said, setSaid] = useState(""), id = useId();
  const send = (event: { preventDefault(): void }) => {
    event.preventDefault();
    post("session", { token }).then(() => location.reload(), (error) => setSaid(error.message));
  };
  return (
    <form className="card signin" onSubmit={send}>
      <h2>Sign in</h2>
      <label htmlFor={id}>Token of this studio (its variable INFRAMIND_STUDIO_TOKEN)</label>
      <input id={id} type="password" autoComplete="current-password" value={token} onChange={(e) => setToken(e.target.value)} />
      <button className="primary">Sign in</button>
      {said && <p className="error" role="alert">{said}</p>}
    </form>
  );
}

export const Chip = ({ run }: { run: Pick<Run, "status"> }) => <span className={`chip ${run.status}`}>{run.status}</span>;

export function Stats({ items }: { items: [string, ReactNode, string?][] }) {
  return (
    <dl className="stats">
      {items.map(([name, value, hint]) => (
        <div key={name} title={hint}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

export interface Column<T> {
  head: string;
  cell: (row: T, i: number) => ReactNode;
  left?: boolean;
  wrap?: boolean;
}
export function Table<T>({ label, columns, rows, keyOf, empty = "Nothing yet." }: {
  label: string; columns: Column<T>[]; rows: T[]; keyOf?: (row: T, i: number) => string | number; empty?: ReactNode;
}) {
  if (!rows.length) return <p className="hint">{empty}</p>;
  const className = ({ left, wrap }: Column<T>) => `${left ? "left" : ""} ${wrap ? "wrap" : ""}`.trim() || undefined;
  return (
    <div className="scroll" tabIndex={0} role="region" aria-label={label}>
      <table>
        <thead><tr>{columns.map((c, i) => (c.head ? <th key={i} scope="col" className={className(c)}>{c.head}</th> : <td key={i} />))}</tr></thead>
        <tbody>
          {rows.map((row, i) => (
            <tr key={keyOf ? keyOf(row, i) : i}>{columns.map((c, k) => <td key={k} className={className(c)}>{c.cell(row, i)}</td>)}</tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

// Parts of a whole: [name, size, colour variable or "" for what is left].
export function StackedBar({ label, parts, total }: { label: string; parts: [string, number, string][]; total: number }) {
  const says = parts.map(([name, size]) => `${name} ${whole(size)}`).join(", ");
  return (
    <div>
      <svg className="stacked" role="img" aria-label={`${label}: ${says} of ${whole(total)}`} width="100%" height="26">
        {parts.map(([name, size, own], i) => {
          const before = parts.slice(0, i).reduce((sum, part) => sum + part[1], 0);
          return (
            <rect key={name} x={`${(100 * before) / total}%`} width={`${(100 * Math.max(size, 0)) / total}%`} height="26" fill={own ? `var(${own})` : "var(--line)"}>
              <title>{`${name} ${whole(size)} (${percent(size / total)})`}</title>
            </rect>
          );
        })}
      </svg>
      <div className="legend">
        {parts.map(([name, size, own]) => (
          <span key={name}><i className="swatch" style={{ background: `var(${own || "--line"})` }} />{name} <b>{whole(size)}</b></span>
        ))}
      </div>
    </div>
  );
}

// A bar in a cell, with its number.
export function Meter({ share, text, tone = "--c0", label }: { share: number; text: string; tone?: string; label: string }) {
  return (
    <span className="meter">
      <svg width="100%" height="12" role="img" aria-label={`${label} ${text}`}>
        <rect width="100%" height="12" rx="3" fill="var(--line)" />
        <rect width={`${100 * Math.min(Math.max(share, 0), 1)}%`} height="12" rx="3" fill={`var(${tone})`} />
      </svg>
      <span>{text}</span>
    </span>
  );
}

// Spans on lanes over an axis: [lane, start, end, colour, says].
export type Span = [number, number, number, string, string];
export function Lanes({ label, lanes, spans, end, unit }: { label: string; lanes: string[]; spans: Span[]; end: number; unit: string }) {
  const tall = 30, at = (x: number) => `${(100 * x) / (end || 1)}%`;
  return (
    <div className="lanes" role="img" aria-label={`${label}. ${spans.map((span) => span[4]).join("; ") || "Nothing yet."}`}>
      <div>{lanes.map((lane) => <span key={lane}>{lane}</span>)}</div>
      <svg width="100%" height={lanes.length * tall + 22}>
        {lanes.map((lane, i) => <line key={lane} x1="0" x2="100%" y1={(i + 1) * tall} y2={(i + 1) * tall} className="grid" />)}
        {spans.map(([lane, from, to, own, says], i) => (
          <rect key={i} x={at(from)} width={at(Math.max(to - from, 0.003 * end))} y={lane * tall + 5} height={tall - 10} rx="3" fill={`var(${own})`}><title>{says}</title></rect>
        ))}
        <text x="0" y={lanes.length * tall + 17} className="grey">0</text>
        <text x="100%" y={lanes.length * tall + 17} textAnchor="end" className="grey">{unit === "s" ? seconds(end) : `${whole(end)} ${unit}`}</text>
      </svg>
    </div>
  );
}

export interface Field {
  name: string;
  label: string;
  kind: "text" | "area" | "number" | "select" | "check";
  options?: string[];
  hint?: string;
  step?: number | "any";
  optional?: boolean; // empty is null
}

// A form whose answer is the order of a run; what is typed stays when the server refuses it.
export function OrderForm({ team, fields, defaults, paced }: { team: string; fields: Field[]; defaults: Record<string, Json>; paced?: number }) {
  const [values, setValues] = useState<Record<string, Json>>(() => ({ ...defaults }));
  const [delay, setDelay] = useState(paced ?? 0), [error, setError] = useState<ApiError>(), [busy, setBusy] = useState(false);
  const prefix = useId();
  if (isStatic) return null;
  const set = (name: string, value: Json) => setValues((before) => ({ ...before, [name]: value }));
  const send = (event: { preventDefault(): void }) => {
    event.preventDefault();
    setBusy(true);
    const settings = Object.fromEntries(fields.map((field) => [field.name, values[field.name] === "" && field.optional ? null : values[field.name]]));
    post("runs", { team, settings, delay_s: delay }).then(
      ({ run_id }) => { location.hash = `#/run/${run_id}`; },
      (wrong) => { setError(wrong); setBusy(false); },
    );
  };
  const input = (field: Field) => {
    const id = `${prefix}${field.name}`, value = values[field.name] ?? "";
    const shared = { id, "aria-describedby": field.hint ? `${id}-hint` : undefined };
    if (field.kind === "check") return <input {...shared} type="checkbox" checked={Boolean(value)} onChange={(e) => set(field.name, e.target.checked)} />;
    if (field.kind === "area") return <textarea {...shared} rows={3} required={!field.optional} value={value} onChange={(e) => set(field.name, e.target.value)} />;
    if (field.kind === "select") {
      const options = field.optional ? ["", ...(field.options ?? [])] : (field.options ?? []);
      return <select {...shared} value={value} onChange={(e) => set(field.name, e.target.value)}>{options.map((one) => <option key={one} value={one}>{one || "none"}</option>)}</select>;
    }
    const change = (text: string) => set(field.name, field.kind === "number" && text !== "" ? Number(text) : text);
    return <input {...shared} type={field.kind} step={field.step ?? "any"} required={!field.optional} value={value} onChange={(e) => change(e.target.value)} />;
  };
  return (
    <form className="card order" onSubmit={send} aria-label={`start: ${TITLES[team]}`}>
      {fields.map((field) => (
        <div key={field.name} className={`field ${field.kind}`}>
          <label htmlFor={`${prefix}${field.name}`}>{field.label}</label>
          {input(field)}
          {field.hint && <small id={`${prefix}${field.name}-hint`}>{field.hint}</small>}
        </div>
      ))}
      {paced !== undefined && (
        <div className="field number">
          <label htmlFor={`${prefix}delay`}>rest after a step, s</label>
          <input id={`${prefix}delay`} type="number" min={0} max={5} step="any" value={delay} onChange={(e) => setDelay(Number(e.target.value))} />
          <small>simulated steps take milliseconds; 0 does not rest</small>
        </div>
      )}
      <div className="field go"><button className="primary" disabled={busy}>{busy ? "Starting…" : "Start"}</button></div>
      <ErrorNote error={error} />
    </form>
  );
}

export const shownNumber = (value: number) => value.toLocaleString("en-US", { maximumSignificantDigits: 6 });

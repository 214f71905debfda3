// A line chart (uPlot) with colours of the page, a summary for screen readers and a table on request.
import { useEffect, useRef, useState } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

export interface Line {
  label: string;
  values: (number | null)[];
  colour: string; // a variable of the style sheet, e.g. "--c0"
  dash?: number[];
  pointsOnly?: boolean;
  stepped?: boolean;
  right?: boolean; // on the right axis
}
interface Props {
  title: string;
  x: number[];
  xLabel: string;
  lines: Line[];
  height?: number;
  decimals?: number;
  from?: number; // the axis shows at least from here
  to?: number; // to here
  marks?: { x: number; label: string }[];
}

const MOST_ROWS = 200;
const css = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const shown = (value: number | null | undefined, decimals = 2) =>
  value === null || value === undefined ? "–" : value.toLocaleString("en-US", { maximumFractionDigits: decimals });

function options({ lines, xLabel, height = 200, decimals = 2, from, to, marks = [] }: Props, width: number): uPlot.Options {
  const grey = css("--grey"), grid = { stroke: css("--line"), width: 1 }, font = "12px system-ui, sans-serif";
  const axis = { stroke: grey, grid, ticks: grid, font, size: 46, values: (_: uPlot, ticks: number[]) => ticks.map((t) => shown(t, 4)) };
  const range = (_: uPlot, low: number | null, high: number | null): [number, number] => {
    const [least, most] = [Math.min(low ?? 0, from ?? Infinity), Math.max(high ?? 1, to ?? -Infinity)];
    const room = 0.06 * (most - least) || 0.5;
    return [least === 0 || least === from ? least : least - room, most + room];
  };
  const drawMarks = (plot: uPlot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = css("--c1");
    ctx.fillStyle = css("--ink");
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.setLineDash([5, 4]);
    marks.forEach((mark, i) => {
      const at = plot.valToPos(mark.x, "x", true), right = at > bbox.left + 0.6 * bbox.width;
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
      ctx.textAlign = right ? "right" : "left";
      ctx.fillText(mark.label, at + (right ? -5 : 5), bbox.top + (14 + 14 * (i % 4)) * devicePixelRatio);
    });
    ctx.restore();
  };
  return {
    width,
    height,
    legend: { show: false },
    cursor: { y: false, points: { size: 7 } },
    scales: { x: { time: false }, y: { range }, right: { range } },
    hooks: { draw: [drawMarks] },
    axes: [
      { ...axis, size: 30, label: xLabel, labelSize: 16, labelFont: font, labelGap: 0 },
      axis,
      ...(lines.some((line) => line.right) ? [{ ...axis, scale: "right", side: 1 as const, grid: { show: false } }] : []),
    ],
    series: [
      {},
      ...lines.map((line) => ({
        label: line.label,
        scale: line.right ? "right" : "y",
        stroke: css(line.colour),
        fill: undefined,
        width: line.pointsOnly ? 0 : 2,
        dash: line.dash,
        spanGaps: true,
        paths: line.stepped ? uPlot.paths.stepped!({ align: 1 }) : undefined,
        points: { show: line.pointsOnly || line.values.length < 40, size: line.pointsOnly ? 8 : 5, fill: css(line.colour) },
        value: (_: uPlot, value: number | null) => shown(value, decimals),
      })),
    ],
  };
}

export function Chart(props: Props) {
  const box = useRef<HTMLDivElement>(null), plot = useRef<uPlot>(undefined);
  const [width, setWidth] = useState(0), [theme, setTheme] = useState(0), [at, setAt] = useState<number | null>(null);
  const { title, x, lines, xLabel, decimals = 2 } = props;
  const last = x.length - 1, place = at !== null && at <= last ? at : null;
  const valueOf = (line: Line) => (place === null ? line.values.findLast((value) => value !== null) : line.values[place]);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    watch.observe(box.current!);
    const dark = matchMedia("(prefers-color-scheme: dark)"), changed = () => setTheme((n) => n + 1);
    dark.addEventListener("change", changed);
    return () => {
      watch.disconnect();
      dark.removeEventListener("change", changed);
    };
  }, []);
  const shape = lines.map((line) => [line.label, line.colour, line.right]).join() + JSON.stringify(props.marks ?? []) + (x.length < 40);
  useEffect(() => {
    if (!width) return;
    const made = options(props, width);
    made.hooks!.setCursor = [(own) => setAt(own.cursor.idx ?? null)];
    plot.current = new uPlot(made, [x, ...lines.map((line) => line.values)], box.current!);
    return () => plot.current?.destroy();
  }, [width, theme, shape]);
  useEffect(() => plot.current?.setData([x, ...lines.map((line) => line.values)]), [x, lines]);
  const summary = x.length
    ? `${title}: ${x.length} points over ${xLabel}. Last: ${lines.map((line) => `${line.label} ${shown(valueOf(line), decimals)}`).join(", ")}.`
    : `${title}: nothing yet.`;
  return (
    <figure className="chart">
      <h3>{title}</h3>
      <div className="legend">
        {lines.map((line) => (
          <span key={line.label}>
            <i className={`swatch ${line.dash ? "dashed" : ""}`} style={{ background: `var(${line.colour})` }} />
            {line.label} <b>{shown(valueOf(line), decimals)}</b>
          </span>
        ))}
        {place !== null && <span className="grey">at {shown(x[place])}</span>}
      </div>
      <div ref={box} role="img" aria-label={summary} />
      {x.length > 0 && (
        <details>
          <summary>as a table</summary>
          <div className="scroll box" tabIndex={0} role="region" aria-label={`${title}, values`}>
            <table>
              <thead>
                <tr>{[xLabel, ...lines.map((line) => line.label)].map((head) => <th key={head} scope="col">{head}</th>)}</tr>
              </thead>
              <tbody>
                {x.slice(-MOST_ROWS).map((value, i) => {
                  const row = Math.max(0, x.length - MOST_ROWS) + i;
                  return <tr key={row}>{[value, ...lines.map((line) => line.values[row])].map((cell, c) => <td key={c}>{shown(cell, decimals)}</td>)}</tr>;
                })}
              </tbody>
            </table>
          </div>
        </details>
      )}
    </figure>
  );
}

// The page: sections of a report, put together from charts and timelines.
(() => {
  const { el, text, heading, scaleOf, style, responsive, select, table, plain } = Charts;
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.getElementById("report");
  let run = data.runs[0], number = 0, chosen = null;
  const looks = new Map(), redraw = new Set();
  const lookOf = (policy) => { if (!looks.has(policy)) looks.set(policy, style(looks.size)); return looks.get(policy); };
  data.runs.forEach((one) => one.policies.forEach((policy) => lookOf(policy.name)));
  const capital = (words) => words[0].toUpperCase() + words.slice(1);
  const short = (name) => (name.length <= 28 ? name : `…${name.slice(-27)}`);
  const metric = (name) => run.metrics[name];
  const isBound = (name) => run.policies.some((policy) => policy.name === name && policy.bound);
  const interval = (row, name) => row[`${name}_ci95`] || [row[name], row[name]];
  const valued = (row, name) => { const m = metric(name), [low, high] = interval(row, name); return `${text(m, row[name])}±${text(m, (high - low) / 2, row[name])}`; };
  const signed = (m, value) => (m.better === "higher" ? value : -value);
  const says = (row, ...names) => `${row.policy}${isBound(row.policy) ? " (bound)" : ""}: ${names.map((name) => `${heading(metric(name))} ${valued(row, name)}`).join(", ")}`;
  const metricOptions = () => Object.keys(run.metrics).map((name) => [name, heading(metric(name))]);
  const nameOf = (axis, value) => (axis.values.find(([one]) => one === value) || [0, String(value)])[1];
  const placeOf = (row) => run.axes.map((axis) => nameOf(axis, row[axis.name])).join(" · ");
  const keyOf = (row) => run.axes.map((axis) => row[axis.name]).join("/");

  // A part of the page with settings of its own, drawn again when one changes.
  function live(state, draw) {
    const box = el("div");
    const paint = () => box.replaceChildren(...draw(state, (change) => { Object.assign(state, change); paint(); }).filter(Boolean));
    redraw.add(paint);
    paint();
    return box;
  }
  function policyLegend() {
    return el("div", { class: "legend", role: "group", "aria-label": "highlight a policy" }, run.policies.map(({ name, bound }) => {
      const look = lookOf(name), mark = Charts.svg("svg", { width: 26, height: 12 }, Charts.svg("line", { x1: 0, x2: 26, y1: 6, y2: 6, stroke: look.colour, "stroke-width": 2, "stroke-dasharray": look.dash }), Charts.marker(13, 6, look.shape, look.colour));
      return el("button", { "aria-pressed": String(chosen === name), title: name, onclick: () => { chosen = chosen === name ? null : name; redraw.forEach((paint) => paint()); } }, mark, short(name) + (bound ? " (bound)" : ""));
    }));
  }
  function section(id, title, ...content) {
    return content.length ? el("section", { id, "aria-label": title }, el("h2", {}, title), ...content) : null;
  }

  function sheet(one, index) {
    const rows = one.rows.map((row, r) => row.map((cell, c) => (one.best.some(([a, b]) => a === r && b === c) ? { text: cell, class: "best" } : cell)));
    return el("div", {}, index ? el("h3", {}, one.title) : null, table(one.headings, rows, { left: [...Array(one.left).keys()], caption: one.caption, terms: run.terms, label: one.title }));
  }
  function board() {
    const [first, ...more] = run.tables;
    if (!first) return [el("p", {}, "No cell has been finished by every policy yet.")];
    return [el("p", { class: "hint" }, `${first.title}. A heading sorts the table; its meaning is at the foot of the page.`), sheet(first, 0),
      more.length && el("details", {}, el("summary", {}, `${more.length} more ${more.length > 1 ? "tables" : "table"}`), more.map((one, i) => sheet(one, i + 1)))];
  }
  function notes(list) { return list.length ? el("ul", { class: "notes" }, list.map((note) => el("li", {}, note))) : null; }

  function seriesOf(rows, axis, name) {
    return run.policies.map((policy) => ({ name: policy.name, look: lookOf(policy.name),
      points: rows.filter((row) => row.policy === policy.name && axis.values.some(([value]) => value === row[axis.name]))
        .sort((a, b) => axis.values.findIndex(([v]) => v === a[axis.name]) - axis.values.findIndex(([v]) => v === b[axis.name]))
        .map((row) => ({ x: row[axis.name], y: row[name], low: interval(row, name)[0], high: interval(row, name)[1], says: `${says(row, name)} at ${axis.label} ${nameOf(axis, row[axis.name])}` })) }))
      .filter((one) => one.points.length);
  }
  function overLoad() {
    const usable = run.axes.filter((axis) => axis.values.length > 1);
    if (!usable.length || !run.board.ranking.length) return [];
    const start = usable.find((axis) => axis.numeric) || usable[usable.length - 1];
    return [live({ axis: start.name, name: run.score }, (state, set) => {
      const axis = run.axes.find((one) => one.name === state.axis), m = metric(state.name), others = usable.filter((one) => one !== axis);
      const panel = (rows, height) => responsive((width) => Charts.lines(width, { series: seriesOf(rows, axis, state.name), values: axis.values, numeric: axis.numeric, xLabel: axis.label, yLabel: heading(m), scale: scaleOf(m), chosen, height }));
      const groups = new Map();
      for (const row of run.board.rows) { const key = others.map((one) => nameOf(one, row[one.name])).join(" · "); groups.set(key, [...(groups.get(key) || []), row]); }
      return [el("div", { class: "controls" }, usable.length > 1 ? select("over", usable.map((one) => [one.name, one.label]), state.axis, (value) => set({ axis: value })) : null, select("shown", metricOptions(), state.name, (value) => set({ name: value }))),
        policyLegend(), el("p", { class: "hint" }, `Means over cells with their 95 % intervals.${m.better ? ` ${m.better === "higher" ? "Higher" : "Lower"} is better.` : ""}`), panel(run.board[axis.table], 300),
        others.length && groups.size <= 24 ? el("details", {}, el("summary", {}, `by ${others.map((one) => one.label).join(" and ")}: ${groups.size} panels`), el("div", { class: "panels" }, [...groups].map(([key, rows]) => el("figure", {}, el("figcaption", {}, key), panel(rows, 220))))) : null];
    })];
  }
  function frontier() {
    if (run.board.ranking.length < 2) return [];
    const first = ["latency_mean_s", "latency_s", "job_latency_mean_s", "tokens"].find((name) => run.metrics[name]);
    const places = [...new Map(run.board.rows.map((row) => [keyOf(row), placeOf(row)]))].slice(0, 120);
    return [live({ x: first, y: run.score, place: "" }, (state, set) => {
      const rows = state.place ? run.board.rows.filter((row) => keyOf(row) === state.place) : run.board.ranking;
      const points = rows.map((row) => ({ name: short(row.policy), bound: isBound(row.policy), look: lookOf(row.policy), x: row[state.x], y: row[state.y], xs: interval(row, state.x), ys: interval(row, state.y), says: says(row, state.x, state.y) }));
      return [el("div", { class: "controls" }, select("against", metricOptions(), state.x, (value) => set({ x: value })), select("shown", metricOptions(), state.y, (value) => set({ y: value })),
        places.length > 1 ? select("in", [["", "all cells"], ...places], state.place, (value) => set({ place: value })) : null),
      el("p", { class: "hint" }, "The dashed line joins the policies that no other beats on both axes (bounds are no policies). Bars are 95 % intervals."),
      responsive((width) => Charts.scatter(width, { points, xMetric: metric(state.x), yMetric: metric(state.y), chosen: chosen && short(chosen) }))];
    })];
  }
  function comparison() {
    const found = data.comparisons.find((one) => one.kind === run.kind);
    if (!found) return [];
    const many = new Set(found.sides.map((side) => side.run)).size > 1;
    const label = (side) => short(side.policy) + (many ? ` (run ${side.run + 1})` : "");
    return [live({ name: Object.keys(found.metrics)[0] }, (state, set) => {
      const rows = found.sides.map((side, i) => [label(side), ...found.metrics[state.name][i].map(([difference, between, verdict], j) => i === j ? { text: "", sort: 0 } :
        { node: el("span", {}, `${verdict === "better" ? "▲ " : verdict === "worse" ? "▼ " : ""}${difference}`, el("small", {}, between)), class: verdict, sort: parseFloat(difference.replace(/,/g, "")), title: `${label(side)} less ${label(found.sides[j])}` })]);
      return [el("div", { class: "controls" }, select("shown", Object.keys(found.metrics).map((name) => [name, heading(metric(name))]), state.name, (value) => set({ name: value }))),
        el("p", { class: "hint" }, `Row less column, paired over ${found.episodes} episodes that all have, with the 95 % interval of each pair alone. ▲ the row is better, ▼ worse, where the interval leaves 0 out.`),
        table(["", ...found.sides.map(label)], rows, { label: "paired differences" }), notes(found.notes)];
    })];
  }
  function usedShares() {
    const kinds = Object.keys(run.board.ranking[0] || {}).filter((key) => key.endsWith("_share") && typeof run.board.ranking[0][key] === "object" && !Array.isArray(run.board.ranking[0][key]));
    if (!kinds.length) return [];
    const axis = run.axes.find((one) => one.numeric && one.values.length > 1) || run.axes.find((one) => one.values.length > 1) || run.axes[0];
    return [live({ kind: kinds[0] }, (state, set) => {
      const all = Object.keys(run.board.ranking[0][state.kind]), rows = run.board[axis.table];
      const names = all.filter((name) => rows.some((row) => (row[state.kind] || {})[name] > 0.002)), colour = (i) => `var(--c${i % 8})`;
      return [el("div", { class: "controls" }, select("shares of", kinds.map((kind) => [kind, { model_share: "models", strategy_share: "strategies", topology_share: "topologies" }[kind] || kind]), state.kind, (value) => set({ kind: value }))),
        el("p", { class: "hint" }, `Of decisions (topologies: of queries), by ${axis.label}.`), Charts.legend(names, colour),
        el("div", { class: "panels" }, run.policies.map(({ name }) => el("div", {}, el("h3", { title: name }, short(name)),
          Charts.shares(names, axis.values.map(([value, words]) => [words, (rows.find((row) => row.policy === name && row[axis.name] === value) || {})[state.kind] || {}]), colour))))];
    })];
  }
  function worstCells() {
    const places = [...new Map(run.board.rows.map((row) => [keyOf(row), row])).values()];
    if (places.length < 2) return [];
    return [live({ policy: (run.policies.find((one) => !one.bound) || run.policies[0]).name, all: false, name: run.score }, (state, set) => {
      const m = metric(state.name), found = new Map(run.board.rows.map((row) => [`${keyOf(row)}|${row.policy}`, row]));
      const gap = (place) => {
        const own = found.get(`${keyOf(place)}|${state.policy}`), rivals = run.policies.filter((one) => !one.bound).map((one) => found.get(`${keyOf(place)}|${one.name}`)).filter(Boolean).map((row) => signed(m, row[state.name]));
        return own && rivals.length ? Math.max(...rivals) - signed(m, own[state.name]) : -Infinity;
      };
      const sorted = [...places].sort((a, b) => gap(b) - gap(a)), shown = state.all ? sorted : sorted.slice(0, 12);
      const rows = shown.map((place) => {
        const best = Math.max(...run.policies.filter((one) => !one.bound).map((one) => found.get(`${keyOf(place)}|${one.name}`)).filter(Boolean).map((row) => signed(m, row[state.name])));
        return [placeOf(place), Number.isFinite(gap(place)) ? text(m, gap(place)) : "–", ...run.policies.map((one) => { const row = found.get(`${keyOf(place)}|${one.name}`); return row ? { text: valued(row, state.name), class: !one.bound && signed(m, row[state.name]) === best ? "best" : "" } : "–"; })];
      });
      return [el("div", { class: "controls" }, select("gap of", run.policies.map((one) => [one.name, short(one.name)]), state.policy, (value) => set({ policy: value })), select("in", metricOptions().filter(([name]) => metric(name).better), state.name, (value) => set({ name: value }))),
        el("p", { class: "hint" }, `Cells in which ${short(state.policy)} falls furthest behind the best policy there (bounds do not count).`),
        table([run.axes.map((axis) => axis.label).join(" · "), "gap", ...run.policies.map((one) => short(one.name) + (one.bound ? " (bound)" : ""))], rows, { label: "cells" }),
        places.length > 12 && !state.all ? el("button", { onclick: () => set({ all: true }) }, `all ${places.length} cells`) : null];
    })];
  }

  function episodes() {
    const gaps = notes(run.episode_notes);
    if (!run.episodes.length) return gaps ? [gaps] : [];
    const holder = el("div");
    const open = (key) => holder.replaceChildren(episode(run.episodes.find((one) => one.key === key)));
    open(run.episodes[0].key);
    const m = metric(run.score);
    return [el("p", { class: "hint" }, "Played again bit by bit: the worst and the median episode of each policy, and those that were asked for. Any other is shown by ", el("code", {}, `inframind bench report ${run.folder} --episode CELL:POLICY:SEED`), ", for example ", el("code", {}, run.episodes[0].key), "."),
      el("div", { class: "controls" }, select("episode", run.episodes.map((one) => [one.key, `${short(one.policy)}, ${one.where} (${one.chosen}, ${m.label} ${text(m, one.score)})`]), run.episodes[0].key, open)), holder, gaps];
  }
  function episode(one) {
    const timeline = Gantt.read(one.timeline), { items } = timeline, rows = items.start.length;
    const detail = el("div", { "aria-live": "polite" }), names = Gantt.colours(timeline);
    const used = timeline.kinds.map((kind, i) => [kind, names[i]]);
    let body = null;
    const cellText = (name, unit, value) => typeof value === "string" ? value : unit === "s" ? Charts.number(value, 1) : Number.isInteger(value) ? Charts.number(value, 0) : Charts.number(value, 2);
    const pick = (id) => {
      gantt.show(id);
      const own = Gantt.ownSpans(timeline, id);
      detail.replaceChildren(el("p", { class: "why" }, Gantt.why(timeline, id)), ...(own.length && timeline.item !== "decision" ? [responsive((width) => Gantt.workflow(timeline, id, width)), timeline.spans.critical ? el("p", { class: "hint" }, "Bold calls are on the latency path: each waited for the one before. The dashed line is the latency budget.") : null].filter(Boolean) : []));
      body.querySelectorAll("tr").forEach((tr) => tr.classList.toggle("chosen", tr.querySelector("[data-id]")?.dataset.id === String(id)));
    };
    const gantt = Gantt.chart(timeline, pick);
    const left = [...timeline.columns.keys()].filter((c) => c === 0 || typeof items[timeline.columns[c][0]][0] === "string");
    const listed = [...items.start.keys()].map((i) => timeline.columns.map(([name, , unit]) => name === "id"
      ? { node: el("button", { "data-id": items.id[i], onclick: () => pick(items.id[i]) }, String(items.id[i])), sort: items.id[i] }
      : { text: cellText(name, unit, items[name][i]), sort: items[name][i], class: name === "outcome" ? (items.good[i] ? "better" : "worse") : "" }));
    const list = table(timeline.columns.map(([, label, unit]) => `${label} ${unit}`.trim()), listed, { left, label: `every ${timeline.item}` });
    body = list.querySelector("tbody");
    list.classList.add("box");
    const over = (i) => (items.limit ? (items.end[i] - items.start[i]) / items.limit[i] : items.end[i] - items.start[i]);
    const worst = rows ? [...items.start.keys()].reduce((a, b) => (over(b) > over(a) ? b : a)) : -1;
    const jump = el("input", { type: "number", min: 0, style: "width:6em", onchange: () => items.id.includes(Number(jump.value)) && pick(Number(jump.value)) });
    if (rows) requestAnimationFrame(() => pick(items.id[worst]));
    return el("div", {}, el("p", { class: "hint" }, `${one.policy} on ${one.where}. Click a bar, or a number in the table. Keys on the chart: ← → + − 0.`),
      Charts.legend(used.map(([kind]) => kind), (i) => `var(${used[i][1]})`), gantt.node, el("div", { class: "controls" }, el("label", {}, `${timeline.item} number`, jump)), detail, list);
  }
  function made() {
    const { commands, versions, machine } = run.made;
    return [el("dl", {}, commands.flatMap((one) => [el("dt", {}, one.started || "command"), el("dd", {}, el("code", {}, `inframind ${one.command}`))]),
      Object.entries({ ...versions, ...machine }).filter(([, value]) => value !== null && typeof value !== "object" && value !== "").flatMap(([key, value]) => [el("dt", {}, key.replace(/_/g, " ")), el("dd", {}, String(value))]))];
  }
  const glossary = () => [el("dl", {}, Object.entries(run.terms).flatMap(([word, meaning]) => [el("dt", {}, word), el("dd", {}, meaning)]))];

  function show() {
    redraw.clear();
    const m = metric(run.score), axis = run.axes.find((one) => one.numeric && one.values.length > 1);
    const parts = [["board", "Board", board()], ["load", `${m.label} ${axis ? "over load" : `by ${run.axes[run.axes.length - 1].label}`}`, overLoad()], ["frontier", "Frontier", frontier()], ["paired", "Paired comparison", comparison()],
      ["shares", "Models and strategies in use", usedShares()], ["cells", "Worst cells", worstCells()], ["episodes", "Episodes", episodes()], ["made", "How it was made", made()], ["words", "Words", glossary()]]
      .map(([id, title, content]) => [id, title, content.flat().filter(Boolean)]).filter(([, , content]) => content.length);
    root.replaceChildren(el("h1", {}, `${run.name}: ${run.kind.replace("_", " ")} benchmark`), el("p", { class: "hint" }, `${run.folder} · inframind-gym ${data.version}`),
      data.runs.length > 1 ? el("div", { class: "controls" }, select("run", data.runs.map((one, i) => [i, `${i + 1}. ${one.name} (${one.folder})`]), number, (value) => { number = Number(value); run = data.runs[number]; chosen = null; show(); })) : "",
      el("nav", { "aria-label": "sections" }, parts.map(([id, title]) => el("a", { href: `#${id}` }, capital(title)))), notes(run.board.notes) || "", ...parts.map(([id, title, content]) => section(id, capital(title), ...content)));
  }
  show();
})();

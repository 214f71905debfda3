// The page: sections of a report, put together from charts.
(() => {
  const { el, text, heading, scaleOf, style, responsive, select, table } = Charts;
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.getElementById("report");
  const MOST_PANELS = 24, MOST_PLACES = 120, FIRST_CELLS = 12;
  let run = data.runs[0], number = 0, chosen = null; // run and its place; the highlighted policy
  const redraw = new Set(), looks = new Map();
  data.runs.forEach((one) => one.policies.forEach(({ name }) => looks.has(name) || looks.set(name, style(looks.size))));

  const capital = (words) => words[0].toUpperCase() + words.slice(1);
  const short = (name) => (name.length <= 28 ? name : `…${name.slice(-27)}`);
  const hint = (...words) => el("p", { class: "hint" }, ...words);
  const controls = (...inner) => el("div", { class: "controls" }, ...inner);
  const notes = (list) => (list.length ? el("ul", { class: "notes" }, list.map((note) => el("li", {}, note))) : null);

  // What the run says of policies, metrics and places.
  const metric = (name) => run.metrics[name];
  const signed = (m, value) => (m.better === "higher" ? value : -value);
  const isBound = (name) => run.policies.some((policy) => policy.name === name && policy.bound);
  const ranked = () => run.policies.filter((policy) => !policy.bound);
  const titled = ({ name, bound }) => short(name) + (bound ? " (bound)" : "");
  const interval = (row, name) => row[`${name}_ci95`] || [row[name], row[name]];
  function valued(row, name) {
    const m = metric(name), [low, high] = interval(row, name);
    return `${text(m, row[name])}±${text(m, (high - low) / 2, row[name])}`;
  }
  const says = (row, ...names) => `${titled({ name: row.policy, bound: isBound(row.policy) })}: ` +
    names.map((name) => `${heading(metric(name))} ${valued(row, name)}`).join(", ");
  const nameOf = (axis, value) => (axis.values.find(([one]) => one === value) || [0, String(value)])[1];
  const placeOf = (row, axes = run.axes) => axes.map((axis) => nameOf(axis, row[axis.name])).join(" · ");
  const keyOf = (row) => run.axes.map((axis) => row[axis.name]).join("/");
  const pickMetric = (label, names, value, change) => select(label, names.map((name) => [name, heading(metric(name))]), value, change);

  // A part of the page with settings of its own, drawn again when one changes.
  function live(state, draw) {
    const box = el("div");
    const set = (change) => { Object.assign(state, change); paint(); };
    const paint = () => box.replaceChildren(...draw(state, set).filter(Boolean));
    redraw.add(paint);
    paint();
    return box;
  }

  function policyLegend() {
    const button = (policy) => {
      const look = looks.get(policy.name), stroke = { stroke: look.colour, "stroke-width": 2, "stroke-dasharray": look.dash };
      const sample = Charts.svg("svg", { width: 26, height: 12 },
        Charts.svg("line", { x1: 0, x2: 26, y1: 6, y2: 6, ...stroke }), Charts.marker(13, 6, look.shape, look.colour));
      const toggle = () => { chosen = chosen === policy.name ? null : policy.name; redraw.forEach((paint) => paint()); };
      return el("button", { "aria-pressed": String(chosen === policy.name), title: policy.name, onclick: toggle }, sample, titled(policy));
    };
    return el("div", { class: "legend", role: "group", "aria-label": "highlight a policy" }, run.policies.map(button));
  }

  function sheet(one, index) {
    const rows = one.rows.map((row, r) => row.map((cell, c) =>
      (one.best.some(([a, b]) => a === r && b === c) ? { text: cell, class: "best" } : cell)));
    const left = [...Array(one.left).keys()];
    return el("div", {}, index ? el("h3", {}, one.title) : null,
      table(one.headings, rows, { left, caption: one.caption, terms: run.terms, label: one.title }));
  }
  function board() {
    const [first, ...more] = run.tables;
    if (!first) return [el("p", {}, "No cell has been finished by every policy yet.")];
    const title = `${more.length} more ${more.length > 1 ? "tables" : "table"}`;
    return [
      hint(`${first.title}. A heading sorts the table; its meaning is at the foot of the page.`),
      sheet(first, 0),
      more.length && el("details", {}, el("summary", {}, title), more.map((one, i) => sheet(one, i + 1))),
    ];
  }

  function seriesOf(rows, axis, name) {
    const place = (row) => axis.values.findIndex(([value]) => value === row[axis.name]);
    return run.policies.map((policy) => {
      const own = rows.filter((row) => row.policy === policy.name && place(row) >= 0).sort((a, b) => place(a) - place(b));
      const points = own.map((row) => {
        const [low, high] = interval(row, name);
        return { x: row[axis.name], y: row[name], low, high, says: `${says(row, name)} at ${axis.label} ${nameOf(axis, row[axis.name])}` };
      });
      return { name: policy.name, look: looks.get(policy.name), points };
    }).filter((one) => one.points.length);
  }
  function overLoad() {
    const usable = run.axes.filter((axis) => axis.values.length > 1);
    if (!usable.length || !run.board.ranking.length) return [];
    const start = usable.find((axis) => axis.numeric) || usable[usable.length - 1];
    return [live({ axis: start.name, name: run.score }, (state, set) => {
      const axis = run.axes.find((one) => one.name === state.axis), m = metric(state.name);
      const others = usable.filter((one) => one !== axis), groups = new Map();
      for (const row of run.board.rows) {
        const key = placeOf(row, others);
        groups.set(key, [...(groups.get(key) || []), row]);
      }
      const panel = (rows, height) => responsive((width) => Charts.lines(width, {
        series: seriesOf(rows, axis, state.name), values: axis.values, numeric: axis.numeric,
        xLabel: axis.label, yLabel: heading(m), scale: scaleOf(m), chosen, height,
      }));
      const direction = m.better ? ` ${m.better === "higher" ? "Higher" : "Lower"} is better.` : "";
      const small = ([key, rows]) => el("figure", {}, el("figcaption", {}, key), panel(rows, 220));
      return [
        controls(
          usable.length > 1 && select("over", usable.map((one) => [one.name, one.label]), state.axis, (value) => set({ axis: value })),
          pickMetric("shown", Object.keys(run.metrics), state.name, (value) => set({ name: value }))),
        policyLegend(),
        hint(`Means over cells with their 95 % intervals.${direction}`),
        panel(run.board[axis.table], 300),
        others.length && groups.size <= MOST_PANELS && el("details", {},
          el("summary", {}, `by ${others.map((one) => one.label).join(" and ")}: ${groups.size} panels`),
          el("div", { class: "panels" }, [...groups].map(small))),
      ];
    })];
  }

  function frontier() {
    if (run.board.ranking.length < 2) return [];
    const first = ["latency_mean_s", "latency_s", "job_latency_mean_s", "tokens"].find((name) => run.metrics[name]);
    const places = [...new Map(run.board.rows.map((row) => [keyOf(row), placeOf(row)]))].slice(0, MOST_PLACES);
    const names = Object.keys(run.metrics);
    return [live({ x: first, y: run.score, place: "" }, (state, set) => {
      const rows = state.place ? run.board.rows.filter((row) => keyOf(row) === state.place) : run.board.ranking;
      const points = rows.map((row) => ({
        name: short(row.policy), bound: isBound(row.policy), look: looks.get(row.policy), says: says(row, state.x, state.y),
        x: row[state.x], y: row[state.y], xs: interval(row, state.x), ys: interval(row, state.y),
      }));
      return [
        controls(
          pickMetric("against", names, state.x, (value) => set({ x: value })),
          pickMetric("shown", names, state.y, (value) => set({ y: value })),
          places.length > 1 && select("in", [["", "all cells"], ...places], state.place, (value) => set({ place: value }))),
        hint("The dashed line joins the policies that no other beats on both axes (bounds are no policies). Bars are 95 % intervals."),
        responsive((width) => Charts.scatter(width, {
          points, xMetric: metric(state.x), yMetric: metric(state.y), chosen: chosen && short(chosen),
        })),
      ];
    })];
  }

  function comparison() {
    const found = data.comparisons.find((one) => one.kind === run.kind);
    if (!found) return [];
    const many = new Set(found.sides.map((side) => side.run)).size > 1;
    const label = (side) => short(side.policy) + (many ? ` (run ${side.run + 1})` : "");
    const sign = { better: "▲ ", worse: "▼ " };
    const cell = (side, other, [difference, between, verdict]) => (side === other ? { text: "", sort: 0 } : {
      node: el("span", {}, (sign[verdict] || "") + difference, el("small", {}, between)),
      class: verdict, sort: parseFloat(difference.replace(/,/g, "")), title: `${label(side)} less ${label(other)}`,
    });
    return [live({ name: Object.keys(found.metrics)[0] }, (state, set) => {
      const rows = found.sides.map((side, i) =>
        [label(side), ...found.sides.map((other, j) => cell(side, other, found.metrics[state.name][i][j]))]);
      return [
        controls(pickMetric("shown", Object.keys(found.metrics), state.name, (value) => set({ name: value }))),
        hint(`Row less column, paired over ${found.episodes} episodes that all have, with the 95 % interval of each pair alone. ` +
          "▲ the row is better, ▼ worse, where the interval leaves 0 out."),
        table(["row less column", ...found.sides.map(label)], rows, { label: "paired differences" }),
        notes(found.notes),
      ];
    })];
  }

  function usedShares() {
    const first = run.board.ranking[0] || {};
    const kinds = Object.keys(first).filter((key) => key.endsWith("_share") && first[key] && first[key].constructor === Object);
    if (!kinds.length) return [];
    const words = { model_share: "models", strategy_share: "strategies", topology_share: "topologies" };
    const axis = run.axes.find((one) => one.numeric && one.values.length > 1) || run.axes.find((one) => one.values.length > 1) || run.axes[0];
    return [live({ kind: kinds[0] }, (state, set) => {
      const rows = run.board[axis.table], colour = (i) => `var(--c${i % 8})`;
      const used = Object.keys(first[state.kind]).filter((name) => rows.some((row) => (row[state.kind] || {})[name] > 0.002));
      const bars = (policy) => Charts.shares(used, axis.values.map(([value, label]) =>
        [label, (rows.find((row) => row.policy === policy && row[axis.name] === value) || {})[state.kind] || {}]), colour);
      return [
        controls(select("shares of", kinds.map((kind) => [kind, words[kind] || kind]), state.kind, (value) => set({ kind: value }))),
        hint(`Of decisions (topologies: of queries), by ${axis.label}.`),
        Charts.legend(used, colour),
        el("div", { class: "panels" }, run.policies.map(({ name }) => el("div", {}, el("h3", { title: name }, short(name)), bars(name)))),
      ];
    })];
  }

  function worstCells() {
    const places = [...new Map(run.board.rows.map((row) => [keyOf(row), row])).values()];
    if (places.length < 2) return [];
    const found = new Map(run.board.rows.map((row) => [`${keyOf(row)}|${row.policy}`, row]));
    const at = (place, policy) => found.get(`${keyOf(place)}|${policy}`);
    const judged = Object.keys(run.metrics).filter((name) => metric(name).better);
    return [live({ policy: (ranked()[0] || run.policies[0]).name, all: false, name: run.score }, (state, set) => {
      const m = metric(state.name);
      const score = (place, policy) => { const row = at(place, policy); return row ? signed(m, row[state.name]) : -Infinity; };
      const best = (place) => Math.max(...ranked().map(({ name }) => score(place, name)));
      const gap = (place) => (at(place, state.policy) ? best(place) - score(place, state.policy) : -Infinity);
      const sorted = [...places].sort((a, b) => gap(b) - gap(a));
      const cell = (place, { name, bound }) => {
        const row = at(place, name);
        return row ? { text: valued(row, state.name), class: !bound && score(place, name) === best(place) ? "best" : "" } : "–";
      };
      const rows = (state.all ? sorted : sorted.slice(0, FIRST_CELLS)).map((place) =>
        [placeOf(place), Number.isFinite(gap(place)) ? text(m, gap(place)) : "–", ...run.policies.map((policy) => cell(place, policy))]);
      return [
        controls(
          select("gap of", run.policies.map(({ name }) => [name, short(name)]), state.policy, (value) => set({ policy: value })),
          pickMetric("in", judged, state.name, (value) => set({ name: value }))),
        hint(`Cells in which ${short(state.policy)} falls furthest behind the best policy there (bounds do not count).`),
        table([run.axes.map((axis) => axis.label).join(" · "), "gap", ...run.policies.map(titled)], rows, { label: "cells" }),
        places.length > FIRST_CELLS && !state.all && el("button", { onclick: () => set({ all: true }) }, `all ${places.length} cells`),
      ];
    })];
  }

  const terms = (pairs) => el("dl", {}, pairs.flatMap(([word, meaning]) => [el("dt", {}, word), el("dd", {}, meaning)]));
  function made() {
    const { commands, versions, machine } = run.made;
    const facts = Object.entries({ ...versions, ...machine }).filter(([, value]) => value !== null && value !== "" && typeof value !== "object");
    return [terms([
      ...commands.map((one) => [one.started || "command", el("code", {}, `inframind ${one.command}`)]),
      ...facts.map(([key, value]) => [key.replace(/_/g, " "), String(value)]),
    ])];
  }

  function show() {
    redraw.clear();
    const loaded = run.axes.some((one) => one.numeric && one.values.length > 1);
    const by = loaded ? "over load" : `by ${run.axes[run.axes.length - 1].label}`;
    const parts = [
      ["board", "Board", board()],
      ["load", `${capital(metric(run.score).label)} ${by}`, overLoad()],
      ["frontier", "Frontier", frontier()],
      ["paired", "Paired comparison", comparison()],
      ["shares", "Models and strategies in use", usedShares()],
      ["cells", "Worst cells", worstCells()],
      ["made", "How it was made", made()],
      ["words", "Words", [terms(Object.entries(run.terms))]],
    ].map(([id, title, content]) => [id, title, content.filter(Boolean)]).filter(([, , content]) => content.length);
    const turn = (value) => { number = Number(value); run = data.runs[number]; chosen = null; show(); };
    const jump = (event) => { // in a notebook's frame, which has no address, a link would lead out of the page
      if (location.protocol !== "about:") return;
      event.preventDefault();
      document.querySelector(event.target.hash).scrollIntoView();
    };
    root.replaceChildren(...[
      el("h1", {}, `${run.name}: ${run.kind.replace("_", " ")} benchmark`),
      hint(`${run.folder} · inframind-gym ${data.version}`),
      data.runs.length > 1 && controls(select("run", data.runs.map((one, i) => [i, `${i + 1}. ${one.name} (${one.folder})`]), number, turn)),
      el("nav", { "aria-label": "sections" }, parts.map(([id, title]) => el("a", { href: `#${id}`, onclick: jump }, title))),
      notes(run.board.notes),
      ...parts.map(([id, title, content]) => el("section", { id, "aria-label": title }, el("h2", {}, title), ...content)),
    ].filter(Boolean));
  }
  show();
})();

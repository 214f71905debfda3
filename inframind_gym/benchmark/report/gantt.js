// Timelines: a Gantt chart of lanes, the spans of one item, and why it took so long.
const Gantt = (() => {
  const { el, svg, number, linear, ticks, plain } = Charts;
  const [LABEL, GAP, TOP, TALL] = [18, 8, 6, 170];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const unit = (timeline) => ({ s: " s", tokens: " tokens" })[timeline.clock] || "";
  const clock = (timeline, value) => number(value, timeline.clock === "s" ? (value < 10 ? 2 : 1) : 0) + unit(timeline);
  const axisLabel = (timeline) => ({ s: "seconds", tokens: "tokens spent", task: "tasks in the order of arrival" })[timeline.clock];
  // Waiting is the warm colour, work the cold ones; models and sizes take the palette in turn.
  function colours(timeline) {
    const fixed = { waiting: "--c4", prefill: "--c7", decode: "--c0", served: "--c0", "none awake": "--line", changing: "--c4",
      "agents balanced": "--c0", "an agent is hot": "--c1", "supervisor decides": "--c4", "agent or tool works": "--c0" };
    const taken = Object.values(fixed), free = [0, 2, 3, 5, 6, 1].map((i) => `--c${i}`);
    let next = 0;
    return timeline.kinds.map((kind) => fixed[kind] || free[next++ % free.length] || taken[0]);
  }
  const kindOf = (spans, i) => spans.kind[i];
  const ends = (spans, i) => [spans.at[i][0], spans.at[i][spans.at[i].length - 1]];

  // Read a timeline as it is stored: ends of segments, and words in place of their numbers.
  function read(timeline) {
    const { spans } = timeline;
    if (spans.at) return timeline;
    spans.at = spans.start.map((start, i) => spans.parts.reduce((at, part) => [...at, at[at.length - 1] + part[i]], [start]));
    spans.label = spans.label.map((label) => spans.labels[label]);
    return timeline;
  }

  // Give every span a row of its lane, the first that is free.
  function pack(timeline) {
    const { spans, lanes } = timeline, rows = lanes.map(() => []), row = new Array(spans.lane.length);
    const order = [...spans.lane.keys()].sort((a, b) => spans.at[a][0] - spans.at[b][0]);
    for (const i of order) {
      const own = rows[spans.lane[i]], [start, end] = ends(spans, i);
      let k = own.findIndex((until) => until <= start + 1e-9);
      if (k < 0) k = own.push(0) - 1;
      own[k] = end;
      row[i] = k;
    }
    return { row, depth: rows.map((own) => own.length) };
  }

  function chart(timeline, pick) {
    const { spans, lanes, items } = timeline, { row, depth } = pack(timeline), names = colours(timeline);
    const many = Math.max(...depth, 1) > 3;
    const rowHeight = depth.map((n) => (many ? Math.min(9, TALL / Math.max(n, 1)) : 18));
    const laneTop = [];
    let bottom = TOP;
    depth.forEach((n, lane) => { laneTop.push(bottom + LABEL); bottom += LABEL + Math.max(n, 1) * rowHeight[lane] + GAP; });
    const seriesTop = bottom, height = bottom + timeline.series.length * 70 + 34;
    const xs = [...spans.at.flat(), ...timeline.marks.map((m) => m.x), ...timeline.series.flatMap((s) => s.x)];
    const all = [xs.reduce((a, b) => Math.min(a, b), timeline.clock === "s" && items.start[0] > 60 ? Infinity : 0),
      xs.reduce((a, b) => Math.max(a, b), 1)];
    let [low, high] = all, chosen = null, x = null, width = 0;
    const canvas = el("canvas", { tabindex: 0, role: "img",
      "aria-label": `Timeline of ${lanes.length} lanes; the table below has every ${timeline.item}. Arrow keys move, plus and minus zoom.` });

    function draw() {
      width = canvas.clientWidth;
      if (!width) return;
      const ratio = window.devicePixelRatio || 1;
      canvas.width = width * ratio; canvas.height = height * ratio; canvas.style.height = `${height}px`;
      const pen = canvas.getContext("2d");
      pen.scale(ratio, ratio);
      const fills = names.map(css), ink = css("--ink"), grey = css("--grey"), line = css("--line");
      pen.fillStyle = css("--paper"); pen.fillRect(0, 0, width, height);
      pen.font = "12px system-ui, sans-serif";
      x = linear(low, high, 8, width - 8);
      for (const t of ticks(low, high, width / 90)) {
        pen.fillStyle = line; pen.fillRect(x(t), TOP, 1, height - 34 - TOP);
        pen.fillStyle = grey; pen.textAlign = "center"; pen.fillText(plain(t), Math.min(Math.max(x(t), 14), width - 18), height - 20);
      }
      pen.fillText(axisLabel(timeline), width / 2, height - 5);
      pen.textAlign = "left";
      const item = chosen === null ? -1 : items.id.indexOf(chosen);
      if (item >= 0) { pen.fillStyle = css("--card"); pen.fillRect(x(items.start[item]), TOP, Math.max(x(items.end[item]) - x(items.start[item]), 1),
        height - 40); }
      const paint = (i) => {
        const at = spans.at[i], top = laneTop[spans.lane[i]] + row[i] * rowHeight[spans.lane[i]];
        const tall = Math.max(rowHeight[spans.lane[i]] - (rowHeight[spans.lane[i]] > 3 ? 1 : 0), 0.6);
        for (let k = 0; k + 1 < at.length; k++) if (at[k + 1] > at[k]) {
          pen.fillStyle = fills[kindOf(spans, i) + k];
          pen.fillRect(x(at[k]), top, Math.max(x(at[k + 1]) - x(at[k]), 0.5), tall);
        }
        if (rowHeight[spans.lane[i]] >= 16 && x(at[at.length - 1]) - x(at[0]) > 60) {
          pen.save(); pen.beginPath(); pen.rect(x(at[0]), top, x(at[at.length - 1]) - x(at[0]) - 4, tall); pen.clip();
          pen.fillStyle = fills[kindOf(spans, i)] === line ? ink : css("--paper"); pen.fillText(spans.label[i], Math.max(x(at[0]), 8) + 4, top + 13);
            pen.restore();
        }
      };
      const linked = chosen !== null && spans.item.includes(chosen);
      pen.globalAlpha = linked && spans.lane.length > 60 ? 0.4 : 1;
      const own = [];
      for (let i = 0; i < spans.lane.length; i++) {
        const [start, end] = ends(spans, i);
        if (end < low || start > high) continue;
        if (linked && spans.item[i] === chosen) own.push(i); else paint(i);
      }
      pen.globalAlpha = 1;
      for (const i of own) {
        paint(i);
        const [start, end] = ends(spans, i), top = laneTop[spans.lane[i]] + row[i] * rowHeight[spans.lane[i]];
        pen.strokeStyle = ink; pen.lineWidth = 1.5;
        pen.strokeRect(x(start) - 1, top - 1.5, Math.max(x(end) - x(start), 3) + 2, Math.max(rowHeight[spans.lane[i]], 3) + 2);
      }
      pen.fillStyle = ink;
      lanes.forEach((name, lane) => { pen.fillStyle = ink; pen.fillText(name + (!many ? "" : depth[lane] ? `, at most ${depth[lane]} at once`
        : ", nothing"), 8, laneTop[lane] - 5); });
      timeline.series.forEach((one, k) => {
        const top = seriesTop + k * 70 + 16, most = Math.max(...one.y, 1e-9), y = linear(0, most, top + 46, top);
        pen.fillStyle = ink; pen.fillText(`${one.label} (up to ${plain(most)})`, 8, top - 4);
        pen.strokeStyle = css("--c1"); pen.lineWidth = 1.5; pen.beginPath();
        one.x.forEach((at, i) => (i ? pen.lineTo(x(at), y(one.y[i])) : pen.moveTo(x(at), y(one.y[i]))));
        pen.stroke();
      });
      timeline.marks.forEach((mark, k) => {
        if (mark.x < low || mark.x > high) return;
        const own = mark.lane !== undefined, top = own ? laneTop[mark.lane] - LABEL : TOP;
        pen.fillStyle = css("--c1"); pen.fillRect(x(mark.x) - 1, top, 2, own ? LABEL + Math.max(depth[mark.lane], 1) * rowHeight[mark.lane]
          : height - 40);
        pen.textAlign = x(mark.x) > width - 90 ? "right" : "left";
        pen.fillText(mark.label, x(mark.x) + (pen.textAlign === "right" ? -4 : 4), own ? top + 13 : TOP + 10 + 13 * (k % 3)); pen.textAlign = "left";
      });
    }
    const zoom = (factor, middle = (low + high) / 2) => {
      const span = Math.min((high - low) * factor, all[1] - all[0]);
      low = Math.max(all[0], Math.min(middle - (middle - low) * (span / (high - low)), all[1] - span));
      high = low + span;
      draw();
    };
    const move = (share) => { const by = (high - low) * share, span = high - low; low = Math.max(all[0], Math.min(low + by, all[1] - span));
      high = low + span; draw(); };
    const find = (event) => {
      const area = canvas.getBoundingClientRect(), [px, py] = [event.clientX - area.left, event.clientY - area.top];
      let found = -1, nearest = 6;
      for (let i = 0; i < spans.lane.length; i++) {
        const lane = spans.lane[i], top = laneTop[lane] + row[i] * rowHeight[lane], [start, end] = ends(spans, i);
        const off = Math.max(x(start) - px, px - x(end), 0) + 2 * Math.max(top - py, py - top - rowHeight[lane], 0);
        if (off < nearest) [found, nearest] = [i, off];
      }
      return found;
    };
    let from = null;
    canvas.addEventListener("pointerdown", (event) => { from = [event.clientX, low, high, false]; });
    canvas.addEventListener("pointermove", (event) => {
      if (from && event.buttons) {
        const by = ((from[0] - event.clientX) / width) * (high - low);
        if (Math.abs(event.clientX - from[0]) > 4) from[3] = true;
        if (from[3]) { [low, high] = [from[1], from[2]]; move(by / (high - low)); }
        return;
      }
      const i = find(event);
      canvas.title = i < 0 ? "" : describe(timeline, i);
    });
    canvas.addEventListener("pointerup", (event) => { if (from && !from[3]) { const i = find(event);
      if (i >= 0 && spans.item[i] >= 0) pick(spans.item[i]); } from = null; });
    canvas.addEventListener("wheel", (event) => { if (!event.ctrlKey) return; event.preventDefault(); const area = canvas.getBoundingClientRect();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, low + ((event.clientX - area.left - 8) / (width - 16)) * (high - low)); }, { passive: false });
    const keys = { ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), "+": () => zoom(0.5), "-": () => zoom(2), 0: () => zoom(1e9) };
    canvas.addEventListener("keydown", (event) => { if (keys[event.key]) { event.preventDefault(); keys[event.key](); } });
    new ResizeObserver(() => { if (canvas.clientWidth !== width) draw(); }).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    const show = (id) => {
      chosen = id;
      const i = items.id.indexOf(id);
      if (i >= 0 && (items.start[i] < low || items.end[i] > high)) { const span = Math.max(high - low, (items.end[i] - items.start[i]) * 1.2);
        low = Math.max(all[0], Math.min(items.start[i] - span * 0.1, all[1] - span)); high = Math.min(all[1], low + span); }
      draw();
    };
    const buttons = [["−", "zoom out", () => zoom(2)], ["+", "zoom in", () => zoom(0.5)], ["←", "earlier", () => move(-0.4)],
      ["→", "later", () => move(0.4)], ["all", "whole episode", () => zoom(1e9)]]
      .map(([name, says, act]) => el("button", { title: says, "aria-label": says, onclick: act }, name));
    return { node: el("figure", {}, el("div", { class: "controls" }, buttons), canvas), show };
  }

  function describe(timeline, i) {
    const { spans, kinds, lanes } = timeline, at = spans.at[i];
    const parts = at.slice(1).map((end, k) => [kinds[kindOf(spans, i) + k], end - at[k]]).filter(([, took]) => took > 0);
    const who = spans.item[i] >= 0 ? `${timeline.item} ${spans.item[i]}, ` : "";
    const wrote = spans.output_tokens ? `, answer of ${spans.output_tokens[i]} tokens` : "";
    return `${who}${lanes[spans.lane[i]]}: ${spans.label[i]}${wrote}\n` + parts.map(([kind, took]) => `${kind} ${clock(timeline, took)}`).join(", ");
  }

  const ownSpans = (timeline, id) => [...timeline.spans.item.keys()].filter((i) => timeline.spans.item[i] === id).sort((a, b) =>
    timeline.spans.at[a][0] - timeline.spans.at[b][0]);

  // One sentence or three: what an item has come to, and what its time went into.
  function why(timeline, id) {
    const { items, spans, kinds, lanes } = timeline, i = items.id.indexOf(id);
    const name = timeline.item[0].toUpperCase() + timeline.item.slice(1);
    if (i < 0) return `${name} ${id} is not scored: it arrived before or after the scored ones, and its calls share the servers.`;
    const took = items.latency ? items.latency[i] : items.end[i] - items.start[i];
    const of = items.limit ? ` of its ${timeline.item === "job" ? "SLO" : "budget"} of ${clock(timeline, items.limit[i])}` : "";
    let says = `${name} ${id}: ${items.outcome ? items.outcome[i] : items.what[i]}. It took ${timeline.clock === "task" ? `${number(took, 1)} s` : clock(timeline, took)}${of}`;
    if (items.plan) says += `, with the plan ${items.plan[i]} and ${items.calls[i]} calls`;
    says += ".";
    if (!spans.critical) return says;
    const path = ownSpans(timeline, id).filter((k) => spans.critical[k]);
    if (!path.length) return says;
    const sums = kinds.map((_, k) => path.reduce((sum, one) => sum + spans.at[one][k + 1] - spans.at[one][k], 0));
    const total = items.end[i] - items.start[i], rest = total - sums.reduce((a, b) => a + b, 0);
    says += ` On the latency path of ${path.length} calls: ` + kinds.map((kind, k) =>
      `${kind} ${clock(timeline, sums[k])} (${Math.round((100 * sums[k]) / total)} %)`).join(", ") + (rest > 0.05
        ? `, between calls ${clock(timeline, rest)}.` : ".");
    const worst = path.reduce((a, b) => (spans.at[b][1] - spans.at[b][0] > spans.at[a][1] - spans.at[a][0] ? b : a));
    const wait = spans.at[worst][1] - spans.at[worst][0];
    if (wait > 0.2 * took) says += ` The longest wait was ${clock(timeline, wait)} at ${lanes[spans.lane[worst]]}.`;
    if (Math.abs(total - took) > 0.01) says += ` The protocol counts ${clock(timeline, took)} of ${clock(timeline, total)} between arrival and the last answer.`;
    return says;
  }

  // The calls of one item, each on its own line; those on its latency path are solid.
  function workflow(timeline, id, width) {
    const { spans, items, lanes } = timeline, own = ownSpans(timeline, id), i = items.id.indexOf(id), names = colours(timeline);
    if (!own.length) return el("span");
    const start = i >= 0 ? items.start[i] : spans.at[own[0]][0], limit = i >= 0 && items.limit ? start + items.limit[i] : null;
    const last = Math.max(...own.map((k) => ends(spans, k)[1]), limit ?? -Infinity), each = 32, height = own.length * each + 44;
    const x = linear(start, last, 4, width - 8), root = svg("svg", { width, height, role: "img", "aria-label": why(timeline, id) });
    for (const t of ticks(0, last - start, width / 90)) root.append(svg("line",
      { x1: x(start + t), x2: x(start + t), y1: 0, y2: height - 40, class: "grid" }),
        svg("text", { x: Math.min(Math.max(x(start + t), 8), width - 16), y: height - 26, "text-anchor": "middle", class: "grey" }, plain(t)));
    root.append(svg("text", { x: width / 2, y: height - 8, "text-anchor": "middle" },
      `${axisLabel(timeline)} since ${timeline.clock === "s" ? "arrival" : "the start"}`));
    own.forEach((k, line) => {
      const at = spans.at[k], y = line * each, solid = !spans.critical || spans.critical[k];
      root.append(svg("text", { x: 4, y: y + 13, "font-weight": solid ? 600 : 400, class: solid ? null : "grey" },
        `${line + 1}. ${lanes[spans.lane[k]]}: ${spans.label[k]}`));
      const bar = svg("g", { opacity: solid ? null : 0.55 }, svg("title", {}, describe(timeline, k)));
      for (let p = 0; p + 1 < at.length; p++) if (at[p + 1] > at[p]) bar.append(svg("rect",
        { x: x(at[p]), y: y + 17, width: Math.max(x(at[p + 1]) - x(at[p]), 1), height: 10, fill: `var(${names[kindOf(spans, k) + p]})` }));
      root.append(bar);
    });
    if (limit !== null && limit <= last) root.append(svg("line", { x1: x(limit), x2: x(limit), y1: 0, y2: height - 40, stroke: "var(--c1)",
      "stroke-width": 2, "stroke-dasharray": "4 3" }), svg("text", { x: x(limit) - 4, y: height - 44, "text-anchor": "end" }, "limit"));
    return root;
  }
  return { read, chart, why, workflow, colours, ownSpans };
})();

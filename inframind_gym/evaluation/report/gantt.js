// Timelines: a Gantt chart of lanes, the spans of one item, and why it took so long.
const Gantt = (() => {
  const { el, svg, number, linear, ticks, plain } = Charts;
  const [LABEL, GAP, TOP, FOOT, TALL, SERIES] = [18, 8, 6, 34, 170, 70]; // pixels
  const MANY = 60; // spans, of which the others fade when an item is chosen
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const clock = (value) => `${number(value, value < 10 ? 2 : 1)} s`;
  // Waiting is the warm colour, work a cold one; models and sizes take the palette in turn.
  const FIXED = {
    waiting: "--c4", prefill: "--c7", decode: "--c0", changing: "--c4", "none awake": "--line",
  };
  function colours(timeline) {
    const free = [0, 2, 3, 5, 6, 1].map((i) => `--c${i}`);
    let next = 0;
    return timeline.kinds.map((kind) => FIXED[kind] || free[next++ % free.length]);
  }
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

  // Place lanes and series below one another; a lane of many calls has thin rows.
  function layout(timeline) {
    const { row, depth } = pack(timeline), many = Math.max(...depth, 1) > 3, tops = [];
    const thick = depth.map((n) => (many ? Math.min(9, TALL / Math.max(n, 1)) : 18));
    let bottom = TOP;
    depth.forEach((n, lane) => {
      tops.push(bottom + LABEL);
      bottom += LABEL + Math.max(n, 1) * thick[lane] + GAP;
    });
    const box = (i) => { const lane = timeline.spans.lane[i]; return [tops[lane] + row[i] * thick[lane], thick[lane]]; };
    return { depth, many, tops, thick, box, bottom, height: bottom + timeline.series.length * SERIES + FOOT };
  }

  // Draw a timeline between two times; `chosen` is an item that stands out.
  function paint(canvas, timeline, place, [low, high], chosen) {
    const { spans, lanes, items } = timeline, { depth, many, tops, thick, box, height } = place;
    const width = canvas.clientWidth, ratio = window.devicePixelRatio || 1, floor = height - FOOT;
    [canvas.width, canvas.height, canvas.style.height] = [width * ratio, height * ratio, `${height}px`];
    const pen = canvas.getContext("2d"), fills = colours(timeline).map(css), x = linear(low, high, 8, width - 8);
    const [paper, ink, grey, line, card, accent] = ["--paper", "--ink", "--grey", "--line", "--card", "--c1"].map(css);
    const block = (colour, left, top, wide, tall) => { pen.fillStyle = colour; pen.fillRect(left, top, wide, tall); };
    const words = (colour, text, left, top, align = "left") => { pen.fillStyle = colour; pen.textAlign = align; pen.fillText(text, left, top); };
    pen.scale(ratio, ratio);
    pen.font = "12px system-ui, sans-serif";
    block(paper, 0, 0, width, height);
    for (const t of ticks(low, high, width / 90)) {
      block(line, x(t), TOP, 1, floor - TOP);
      words(grey, plain(t), Math.min(Math.max(x(t), 14), width - 24), height - 20, "center");
    }
    words(grey, "seconds", width / 2, height - 5, "center");
    const item = chosen === null ? -1 : items.id.indexOf(chosen);
    if (item >= 0) block(card, x(items.start[item]), TOP, Math.max(x(items.end[item]) - x(items.start[item]), 1), floor - TOP);

    const bar = (i) => {
      const at = spans.at[i], [top, tall] = box(i), wide = x(at[at.length - 1]) - x(at[0]);
      for (let k = 0; k + 1 < at.length; k++) {
        if (at[k + 1] > at[k]) block(fills[spans.kind[i] + k], x(at[k]), top, Math.max(x(at[k + 1]) - x(at[k]), 0.5), Math.max(tall - (tall > 3), 0.6));
      }
      if (tall < 16 || wide < 60) return;
      pen.save();
      pen.beginPath();
      pen.rect(x(at[0]), top, wide - 4, tall);
      pen.clip();
      words(fills[spans.kind[i]] === line ? ink : paper, spans.label[i], Math.max(x(at[0]), 8) + 4, top + 13);
      pen.restore();
    };
    const seen = [...spans.lane.keys()].filter((i) => ends(spans, i)[1] >= low && ends(spans, i)[0] <= high);
    const own = seen.filter((i) => chosen !== null && spans.item[i] === chosen);
    pen.globalAlpha = own.length && spans.lane.length > MANY ? 0.4 : 1;
    seen.filter((i) => !own.includes(i)).forEach(bar);
    pen.globalAlpha = 1;
    [pen.strokeStyle, pen.lineWidth] = [ink, 1.5];
    for (const i of own) {
      const [start, end] = ends(spans, i), [top, tall] = box(i);
      bar(i);
      pen.strokeRect(x(start) - 1, top - 1.5, Math.max(x(end) - x(start), 3) + 2, Math.max(tall, 3) + 2);
    }
    lanes.forEach((name, lane) => {
      const most = depth[lane] ? `, at most ${depth[lane]} at once` : ", nothing";
      words(ink, name + (many ? most : ""), 8, tops[lane] - 5);
    });

    timeline.series.forEach((one, k) => {
      const top = place.bottom + k * SERIES + 16, most = Math.max(...one.y, 1e-9), y = linear(0, most, top + 46, top);
      words(ink, `${one.label} (up to ${plain(most)})`, 8, top - 4);
      pen.strokeStyle = accent;
      pen.beginPath();
      one.x.forEach((at, i) => pen.lineTo(x(at), y(one.y[i])));
      pen.stroke();
    });
    timeline.marks.filter((mark) => mark.x >= low && mark.x <= high).forEach(({ x: at, lane, label }, k) => {
      const top = lane === undefined ? TOP : tops[lane] - LABEL, late = x(at) > width - 90;
      block(accent, x(at) - 1, top, 2, lane === undefined ? floor - TOP : LABEL + Math.max(depth[lane], 1) * thick[lane]);
      words(accent, label, x(at) + (late ? -4 : 4), lane === undefined ? top + 10 + 13 * (k % 3) : top + 13, late ? "right" : "left");
    });
  }

  // A timeline that moves and zooms; `pick` is called with the item of a bar that is clicked.
  function chart(timeline, pick) {
    const { spans, items } = timeline, place = layout(timeline);
    const times = [...spans.at.flat(), ...timeline.marks.map((mark) => mark.x), ...timeline.series.flatMap((one) => one.x)];
    const late = items.start[0] > 60; // steady load: the scored queries begin late
    const first = times.reduce((a, b) => Math.min(a, b), late ? Infinity : 0), last = times.reduce((a, b) => Math.max(a, b), 1);
    let [low, high] = [first, last], chosen = null, width = 0, from = null;
    const canvas = el("canvas", { tabindex: 0, role: "img", "aria-label":
      `Timeline of ${timeline.lanes.length} lanes; the table below has every ${timeline.item}. Arrow keys move, plus and minus zoom.` });
    const draw = () => { width = canvas.clientWidth; if (width) paint(canvas, timeline, place, [low, high], chosen); };
    const go = (start, span) => {
      low = Math.max(first, Math.min(start, last - span));
      high = Math.min(last, low + span);
      draw();
    };
    const move = (share) => go(low + (high - low) * share, high - low);
    const zoom = (factor, middle = (low + high) / 2) => go(middle - (middle - low) * factor, Math.min((high - low) * factor, last - first));
    const timeAt = (event) => low + ((event.clientX - canvas.getBoundingClientRect().left - 8) / (width - 16)) * (high - low);
    const find = (event) => {
      const area = canvas.getBoundingClientRect(), [px, py] = [event.clientX - area.left, event.clientY - area.top];
      const x = linear(low, high, 8, width - 8);
      let found = -1, nearest = 6;
      for (let i = 0; i < spans.lane.length; i++) {
        const [start, end] = ends(spans, i), [top, tall] = place.box(i);
        const off = Math.max(x(start) - px, px - x(end), 0) + 2 * Math.max(top - py, py - top - tall, 0);
        if (off < nearest) [found, nearest] = [i, off];
      }
      return found;
    };
    const keys = { ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), "+": () => zoom(0.5), "-": () => zoom(2), 0: () => go(first, last - first) };
    const on = (name, act, options) => canvas.addEventListener(name, act, options);
    on("pointerdown", (event) => { from = { x: event.clientX, low, moved: false }; });
    on("pointermove", (event) => {
      if (!from || !event.buttons) {
        const i = find(event);
        canvas.title = i < 0 ? "" : describe(timeline, i);
      } else if (from.moved || Math.abs(event.clientX - from.x) > 4) {
        from.moved = true;
        go(from.low + ((from.x - event.clientX) / width) * (high - low), high - low);
      }
    });
    on("pointerup", (event) => {
      const i = from && !from.moved ? find(event) : -1;
      from = null;
      if (i >= 0 && spans.item[i] >= 0) pick(spans.item[i]);
    });
    on("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event));
    }, { passive: false });
    on("keydown", (event) => {
      if (!keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });
    new ResizeObserver(() => canvas.clientWidth !== width && draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    const show = (id) => {
      const i = items.id.indexOf(id);
      chosen = id;
      if (i < 0 || (items.start[i] >= low && items.end[i] <= high)) return draw();
      const span = Math.max(high - low, (items.end[i] - items.start[i]) * 1.2);
      return go(items.start[i] - span * 0.1, Math.min(span, last - first));
    };
    const acts = [["−", "zoom out", keys["-"]], ["+", "zoom in", keys["+"]], ["←", "earlier", keys.ArrowLeft], ["→", "later", keys.ArrowRight], ["all", "all of the episode", keys[0]]];
    const buttons = acts.map(([name, says, act]) => el("button", { title: says, "aria-label": says, onclick: act }, name));
    return { node: el("figure", {}, el("div", { class: "controls" }, buttons), canvas), show };
  }

  function describe(timeline, i) {
    const { spans, kinds, lanes } = timeline, at = spans.at[i];
    const parts = at.slice(1).map((end, k) => [kinds[spans.kind[i] + k], end - at[k]]).filter(([, took]) => took > 0);
    const who = spans.item[i] >= 0 ? `${timeline.item} ${spans.item[i]}, ` : "";
    const wrote = spans.output_tokens ? `, answer of ${spans.output_tokens[i]} tokens` : "";
    return `${who}${lanes[spans.lane[i]]}: ${spans.label[i]}${wrote}\n` + parts.map(([kind, took]) => `${kind} ${clock(took)}`).join(", ");
  }

  function ownSpans({ spans }, id) {
    return [...spans.item.keys()].filter((i) => spans.item[i] === id).sort((a, b) => spans.at[a][0] - spans.at[b][0]);
  }

  // One sentence or three: what an item has come to, and what its time went into.
  function why(timeline, id) {
    const { items, spans, kinds, lanes } = timeline, i = items.id.indexOf(id);
    const name = timeline.item[0].toUpperCase() + timeline.item.slice(1);
    if (i < 0) return `${name} ${id} is not scored: it arrived before or after the scored ones, and its calls share the servers.`;
    const took = items.latency ? items.latency[i] : items.end[i] - items.start[i];
    const of = items.limit ? ` of its ${timeline.item === "job" ? "SLO" : "budget"} of ${clock(items.limit[i])}` : "";
    let says = `${name} ${id}: ${items.outcome[i]}. It took ${clock(took)}${of}`;
    says += items.plan ? `, with the plan ${items.plan[i]} and ${items.calls[i]} calls.` : ".";
    const path = spans.critical ? ownSpans(timeline, id).filter((k) => spans.critical[k]) : [];
    if (!path.length) return says;
    const sums = kinds.map((_, k) => path.reduce((sum, one) => sum + spans.at[one][k + 1] - spans.at[one][k], 0));
    const total = items.end[i] - items.start[i], rest = total - sums.reduce((a, b) => a + b, 0);
    const parts = kinds.map((kind, k) => `${kind} ${clock(sums[k])} (${Math.round((100 * sums[k]) / total)} %)`);
    if (rest > 0.05) parts.push(`between calls ${clock(rest)}`);
    says += ` On the latency path of ${path.length} calls: ${parts.join(", ")}.`;
    const worst = path.reduce((a, b) => (spans.at[b][1] - spans.at[b][0] > spans.at[a][1] - spans.at[a][0] ? b : a));
    const wait = spans.at[worst][1] - spans.at[worst][0];
    if (wait > 0.2 * took) says += ` The longest wait was ${clock(wait)} at ${lanes[spans.lane[worst]]}.`;
    if (Math.abs(total - took) > 0.01) says += ` The protocol counts ${clock(took)} of ${clock(total)} between arrival and the last answer.`;
    return says;
  }

  // The calls of one item, each on its own line; those on its latency path are solid.
  function workflow(timeline, id, width) {
    const { spans, items, lanes } = timeline, own = ownSpans(timeline, id), i = items.id.indexOf(id), names = colours(timeline);
    if (!own.length) return el("span");
    const start = i >= 0 ? items.start[i] : spans.at[own[0]][0], limit = i >= 0 && items.limit ? start + items.limit[i] : null;
    const last = Math.max(...own.map((k) => ends(spans, k)[1]), limit ?? -Infinity), each = 32, height = own.length * each + 44;
    const x = linear(start, last, 4, width - 8), root = svg("svg", { width, height, role: "img", "aria-label": why(timeline, id) });
    for (const t of ticks(0, last - start, width / 90)) {
      const at = x(start + t);
      root.append(svg("line", { x1: at, x2: at, y1: 0, y2: height - 40, class: "grid" }),
        svg("text", { x: Math.min(Math.max(at, 8), width - 16), y: height - 26, "text-anchor": "middle", class: "grey" }, plain(t)));
    }
    root.append(svg("text", { x: width / 2, y: height - 8, "text-anchor": "middle" },
      "seconds since arrival"));
    own.forEach((k, line) => {
      const at = spans.at[k], y = line * each, solid = !spans.critical || spans.critical[k];
      root.append(svg("text", { x: 4, y: y + 13, "font-weight": solid ? 600 : 400, class: solid ? null : "grey" },
        `${line + 1}. ${lanes[spans.lane[k]]}: ${spans.label[k]}`));
      const bar = svg("g", { opacity: solid ? null : 0.55 }, svg("title", {}, describe(timeline, k)));
      at.slice(1).forEach((end, p) => {
        const fill = `var(${names[spans.kind[k] + p]})`, wide = x(end) - x(at[p]);
        if (wide > 0) bar.append(svg("rect", { x: x(at[p]), y: y + 17, width: Math.max(wide, 1), height: 10, fill }));
      });
      root.append(bar);
    });
    if (limit !== null && limit <= last) {
      const at = x(limit);
      root.append(svg("line", { x1: at, x2: at, y1: 0, y2: height - 40, stroke: "var(--c1)", "stroke-width": 2, "stroke-dasharray": "4 3" }),
        svg("text", { x: at - 4, y: height - 44, "text-anchor": "end" }, "limit"));
    }
    return root;
  }
  return { read, chart, why, workflow, colours, ownSpans };
})();

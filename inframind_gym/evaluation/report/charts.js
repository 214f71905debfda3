"use strict";
// Parts of a report that know nothing of its page: elements, tables, charts.
const Charts = (() => {
  const SPACE = document.getElementById("svg").namespaceURI;
  const DASHES = ["", "7 3", "2 3", "9 3 2 3", "1 4"];

  function fill(node, props, children) {
    for (const [key, value] of Object.entries(props || {})) {
      if (value === undefined || value === null || value === false) continue;
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else node.setAttribute(key, value === true ? "" : value);
    }
    for (const child of children.flat(2)) if (child || child === "") node.append(child);
    return node;
  }
  const el = (tag, props, ...children) => fill(document.createElement(tag), props, children);
  const svg = (tag, props, ...children) => fill(document.createElementNS(SPACE, tag), props, children);

  const number = (value, decimals) =>
    value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  const scaleOf = (metric) => (metric.unit === "%" ? 100 : 1);
  function text(metric, value, like = value) {
    const large = metric.unit !== "%" && Math.abs(like) >= 100;
    return number(value * scaleOf(metric), large ? 0 : metric.unit ? 1 : metric.decimals);
  }
  const heading = (metric) => `${metric.label} ${metric.unit}`.trim();

  // What a policy looks like, everywhere the same.
  const style = (i) => ({ colour: `var(--c${i % 8})`, dash: DASHES[Math.floor(i / 8) % 5], shape: (i + Math.floor(i / 8)) % 4 });
  function marker(x, y, shape, colour, r = 4.5) {
    if (shape === 0) return svg("circle", { cx: x, cy: y, r, fill: colour });
    const points = [null, [[-1, -1], [1, -1], [1, 1], [-1, 1]], [[0, -1.25], [1.2, 1], [-1.2, 1]], [[0, -1.4], [1.4, 0], [0, 1.4], [-1.4, 0]]][shape];
    return svg("polygon", { points: points.map(([a, b]) => `${x + a * r},${y + b * r}`).join(" "), fill: colour });
  }

  // Draw again whenever the width changes.
  function responsive(draw, props = {}) {
    const box = el("div", props);
    let last = 0;
    new ResizeObserver(() => {
      const width = Math.floor(box.clientWidth);
      if (width && width !== last) { last = width; box.replaceChildren(draw(width)); }
    }).observe(box);
    return box;
  }

  function select(label, options, value, change) {
    const box = el("select", { onchange: () => change(box.value) },
      options.map(([key, name]) => el("option", { value: key, selected: String(key) === String(value) }, name)));
    return el("label", {}, label, box);
  }

  // Tables. A cell is text, a node, or {node or text, class, sort}.
  const sortKey = (cell) => {
    if (cell && cell.sort !== undefined) return cell.sort;
    const words = typeof cell === "string" ? cell : cell && cell.text ? cell.text : cell instanceof Node ? cell.textContent : "";
    const parsed = parseFloat(words.replace(/,/g, "").replace("−", "-"));
    return Number.isNaN(parsed) ? words : parsed;
  };
  const marginOf = (words) => (typeof words === "string" && words.includes("±") ? words.slice(words.indexOf("±")) : "");
  function withMargin(words, chars) {
    const margin = marginOf(words);
    return margin ? [words.slice(0, words.length - margin.length), el("span", { class: "margin", style: `min-width:${chars}ch` }, margin)] : words;
  }
  function table(headings, rows, { left = [0], caption = "", terms = {}, rowClass = null, label = "" } = {}) {
    const body = el("tbody");
    let sorted = -1, up = false;
    const shown = rows.map((row, i) => ({ row, i }));
    const margins = headings.map((_, c) => Math.max(...rows.map((row) =>
      marginOf(row[c] && row[c].text !== undefined ? row[c].text : row[c]).length), 0));
    const paint = () => body.replaceChildren(...shown.map(({ row, i }) =>
      el("tr", { class: rowClass && rowClass(i) }, row.map((cell, c) => {
        const plain = typeof cell === "string" || cell instanceof Node;
        const content = plain ? cell : cell.node || cell.text;
        const names = [left.includes(c) ? "left" : "", c === 0 ? "first" : "", plain ? "" : cell.class || ""].join(" ").trim();
        return el("td", { class: names || null, title: plain ? null : cell.title }, typeof content === "string" ? withMargin(content, margins[c])
          : content);
      }))));
    const heads = headings.map((words, c) => {
      const explained = terms[words.replace(/ [%s]$/, "")];
      const button = el("button", { title: explained, onclick: () => {
        up = sorted === c ? !up : left.includes(c);
        sorted = c;
        heads.forEach((head, k) => head.setAttribute("aria-sort", k === c ? (up ? "ascending" : "descending") : "none"));
        shown.sort((a, b) => {
          const [x, y] = [sortKey(a.row[c]), sortKey(b.row[c])];
          const order = typeof x === typeof y ? (x < y ? -1 : x > y ? 1 : 0) : typeof x === "number" ? 1 : -1;
          return (up ? order : -order) || a.i - b.i;
        });
        paint();
      } }, words);
      return el("th", { scope: "col", class: [left.includes(c) ? "left" : "", c === 0 ? "first" : ""].join(" ").trim() || null }, button);
    });
    paint();
    const box = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label || caption || "table" },
      el("table", {}, el("thead", {}, el("tr", {}, heads)), body));
    return caption ? el("figure", {}, box, el("figcaption", {}, caption)) : box;
  }

  // Scales and axes.
  function ticks(low, high, count) {
    const raw = (high - low) / Math.max(count, 1), power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= raw * 0.999);
    const found = [];
    for (let t = Math.ceil(low / step - 1e-9); t * step <= high + step * 1e-9; t++) found.push(Number((t * step).toPrecision(12)));
    return found;
  }
  function logTicks(low, high) {
    const found = [];
    for (let p = Math.floor(Math.log10(low)); p <= Math.log10(high); p++) for (const k of [1, 2, 5]) found.push(k * 10 ** p);
    return found.filter((t) => t >= low && t <= high);
  }
  function linear(low, high, from, to) {
    const span = high - low || 1;
    return (value) => from + ((value - low) / span) * (to - from);
  }
  // The range of an axis: from 0, unless all values are far from it.
  function extent(values) {
    const least = Math.min(...values), most = Math.max(...values), room = 0.04 * (most - Math.min(least, 0)) || 0.5;
    if (least >= 0 && least < 0.5 * most) return [0, most + room];
    const pad = 0.08 * (most - least) || room;
    return [least - pad, most + pad];
  }
  function axes(root, { x, y, xTicks, yTicks, box, xText, yText, xLabel, yLabel }) {
    for (const t of yTicks) root.append(
      svg("line", { x1: box.left, x2: box.right, y1: y(t), y2: y(t), class: "grid" }),
      svg("text", { x: box.left - 6, y: y(t) + 4, "text-anchor": "end", class: "grey" }, yText(t)));
    for (const t of xTicks) root.append(
      svg("line", { x1: x(t), x2: x(t), y1: box.bottom, y2: box.bottom + 4, class: "grid" }),
      svg("text", { x: x(t), y: box.bottom + 17, "text-anchor": "middle", class: "grey" }, xText(t)));
    root.append(
      svg("line", { x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom, class: "grid" }),
      svg("text", { x: (box.left + box.right) / 2, y: box.bottom + 35, "text-anchor": "middle" }, xLabel),
      svg("text", { x: 4, y: 13 }, yLabel));
  }
  const plain = (value) => (Math.abs(value) >= 1000 ? number(value, 0) : String(Number(value.toPrecision(4))));

  // Lines with intervals over an axis. series: [{name, look, points: [{x, y, low, high, says}]}].
  function lines(width, { series, values, numeric, xLabel, yLabel, scale, chosen, height = 300 }) {
    const box = { left: 46, right: width - 14, top: 26, bottom: height - 44 };
    const all = series.flatMap((one) => one.points.flatMap((p) => [p.low, p.high, p.y])).map((v) => v * scale);
    const [low, high] = extent(all), y = linear(low, high, box.bottom, box.top);
    const xs = values.map(([value]) => value);
    const place = numeric ? linear(Math.min(...xs), Math.max(...xs), box.left + 12, box.right - 12)
      : linear(-0.5, xs.length - 0.5, box.left, box.right);
    const at = (value) => place(numeric ? value : xs.indexOf(value));
    const root = svg("svg", { width, height, role: "img", "aria-label": `${yLabel} over ${xLabel}` });
    let previous = -1e9;
    const room = 7 * Math.max(...values.map(([, words]) => words.length)) + 8;
    const shownTicks = xs.filter((value) => { const ok = at(value) - previous > (numeric ? room : 0); if (ok) previous = at(value); return ok; });
    const narrow = !numeric && (box.right - box.left) / xs.length < room;
    axes(root, { x: at, y, xTicks: shownTicks, yTicks: ticks(low, high, 5), box, yText: plain, xLabel, yLabel,
      xText: (value) => { const words = values.find(([one]) => one === value)[1]; return narrow
        ? words.slice(0, Math.max(3, Math.floor((box.right - box.left) / xs.length / 7))) : words; } });
    series.forEach((one, k) => {
      const spread = numeric ? 0 : Math.min(14, (box.right - box.left) / xs.length / (series.length + 1));
      const shift = numeric ? 0 : (k - (series.length - 1) / 2) * spread;
      const group = svg("g", { class: chosen && chosen !== one.name ? "dim" : null, stroke: one.look.colour });
      if (numeric) group.append(svg("polyline", { points: one.points.map((p) => `${at(p.x)},${y(p.y * scale)}`).join(" "), fill: "none",
        "stroke-width": 2, "stroke-dasharray": one.look.dash }));
      for (const p of one.points) {
        const dot = svg("g", {}, svg("title", {}, p.says), svg("line",
          { x1: at(p.x) + shift, x2: at(p.x) + shift, y1: y(p.low * scale), y2: y(p.high * scale), "stroke-width": 1.5 }));
        dot.append(marker(at(p.x) + shift, y(p.y * scale), one.look.shape, one.look.colour));
        group.append(dot);
      }
      root.append(group);
    });
    return root;
  }

  // Points with intervals on two axes and the frontier: points [{name, look, x, y, xs, ys, says}].
  function scatter(width, { points, xMetric, yMetric, chosen, height = 380 }) {
    const box = { left: 46, right: width - 14, top: 26, bottom: height - 44 };
    const [sx, sy] = [scaleOf(xMetric), scaleOf(yMetric)];
    const xs = points.flatMap((p) => [p.x, ...p.xs]).map((v) => v * sx), ys = points.flatMap((p) => [p.y, ...p.ys]).map((v) => v * sy);
    let [low, high] = [Math.min(...xs), Math.max(...xs)];
    const log = low > 0 && high / low > 12;
    if (low === high) [low, high] = [low - 1, high + 1];
    const [y0, y1] = extent(ys), y = linear(y0, y1, box.bottom, box.top);
    const flat = linear(log ? Math.log(low) : low, log ? Math.log(high) : high, box.left + 14, box.right - 14);
    const x = (value) => flat(log ? Math.log(value) : value);
    const root = svg("svg", { width, height, role: "img", "aria-label": `${heading(yMetric)} against ${heading(xMetric)}` });
    axes(root, { x, y, xTicks: log ? logTicks(low, high) : ticks(low, high, width < 500 ? 4 : 8), yTicks: ticks(y0, y1, 5), box, xText: plain,
      yText: plain, xLabel: heading(xMetric) + (log ? " (log scale)" : ""), yLabel: heading(yMetric) });
    const best = frontier(points.filter((p) => !p.bound), xMetric, yMetric).sort((a, b) => a.x - b.x);
    root.append(svg("polyline", { points: best.map((p) => `${x(p.x * sx)},${y(p.y * sy)}`).join(" "), fill: "none", stroke: "var(--grey)",
      "stroke-dasharray": "4 4" }));
    const labels = [];
    for (const p of [...points].sort((a, b) => best.includes(b) - best.includes(a))) {
      const [cx, cy] = [x(p.x * sx), y(p.y * sy)];
      const group = svg("g", { class: chosen && chosen !== p.name ? "dim" : null, stroke: p.look.colour }, svg("title", {}, p.says),
        svg("line", { x1: x(p.xs[0] * sx), x2: x(p.xs[1] * sx), y1: cy, y2: cy }),
          svg("line", { x1: cx, x2: cx, y1: y(p.ys[0] * sy), y2: y(p.ys[1] * sy) }));
      group.append(marker(cx, cy, p.look.shape, p.look.colour, 5.5));
      const long = 6.8 * p.name.length, right = cx + 10 + long < box.right;
      const area = [right ? cx + 9 : cx - 9 - long, cy - 18, right ? cx + 9 + long : cx - 9, cy - 4];
      if (!labels.some((o) => area[0] < o[2] && o[0] < area[2] && area[1] < o[3] && o[1] < area[3])) {
        labels.push(area);
        group.append(svg("text", { x: right ? cx + 9 : cx - 9, y: cy - 7, "text-anchor": right ? "start" : "end", "font-weight": best.includes(p)
          ? 600 : 400 }, p.name));
      }
      root.append(group);
    }
    return root;
  }
  function frontier(points, xMetric, yMetric) {
    const sign = (metric, value) => (metric.better === "higher" ? value : -value);
    const beats = (a, b) => sign(xMetric, a.x) >= sign(xMetric, b.x) && sign(yMetric, a.y) >= sign(yMetric, b.y) && (a.x !== b.x || a.y !== b.y);
    return points.filter((p) => !points.some((other) => beats(other, p)));
  }

  function shares(names, rows, colours) {
    return rows.map(([label, parts]) => {
      const says = names.map((name) => `${name} ${Math.round(100 * (parts[name] || 0))} %`).join(", ");
      return el("div", { class: "barline" }, el("span", { title: label }, label),
        el("div", { class: "bar", role: "img", "aria-label": says, title: says },
        names.map((name, i) => { const share = 100 * (parts[name] || 0); return share > 0.2
          && el("span", { style: `width:${share}%;background:${colours(i)}` }, share >= 14 && el("b", {}, String(Math.round(share)))); }).filter(Boolean)));
    });
  }
  const legend = (names, colours) => el("div", { class: "legend" },
    names.map((name, i) => el("span", {}, el("i", { class: "swatch", style: `background:${colours(i)}` }), name)));

  return { el, svg, number, text, heading, scaleOf, style, marker, responsive, select, table, lines, scatter, shares, legend, ticks, linear, plain };
})();

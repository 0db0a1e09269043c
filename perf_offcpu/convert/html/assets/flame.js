// SPDX-License-Identifier: Apache-2.0
// A flame graph on a canvas: draws a tree of weights, answers mouse, touch and keys.
//
// Nodes come in preorder, children by name, so a subtree is a range [node, end[node]) and drawing can skip
// subtrees that are too narrow to see. Only nodes in view are drawn: 100 000 nodes cost a few milliseconds.
// Names may be hostile: they reach the page through textContent and fillText only.

const ROW = 18;              // height of a frame, px
const NARROWEST = 0.4;       // px; narrower frames are not drawn
const FONT = "12px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
const KIND = { user: 0, kernel: 1, root: 2, mark: 3, waker: 4 };
// Hue and saturation by layer and kind of frame: waiting is cold, running is hot.
const COLOURS = {
  off: [[212, 62], [186, 48], [225, 14], [0, 0], [285, 38]],
  on: [[30, 85], [8, 74], [40, 20], [0, 0], [285, 38]],
};
const CHANGE = { grown: 4, shrunk: 215 };  // hues of a comparison with an older profile
const LEGEND = {             // by kind; wakers only where there are any
  off: { [KIND.user]: "waiting, user", [KIND.kernel]: "waiting, kernel", [KIND.waker]: "who woke it" },
  on: { [KIND.user]: "running, user", [KIND.kernel]: "running, kernel" },
};

// ---- the tree ------------------------------------------------------------------------------------------

/** Make the tree's columns from a document's; node 0, "all", is added here. */
function readTree(data) {
  const n = data.nodes.depth.length + 1;
  const depth = prefixed(data.nodes.depth, 0);
  const parent = parents(depth);
  const layers = data.layers.map((layer) => ({
    kind: layer.kind,
    hi: inclusive(layer.hi, parent), lo: inclusive(layer.lo, parent), count: inclusive(layer.count, parent),
  }));
  const value = new Float64Array(n);
  for (const { hi, lo } of layers) {
    for (let i = 0; i < n; i++) value[i] += hi[i] * GIGA + lo[i];
  }
  const name = prefixed(data.nodes.name, -1);
  return { n, depth, parent, name, layers, value, end: ends(depth), start: starts(parent, value) };
}

/** Return a column, an array or typed array, as int32 after a first value. */
function prefixed(column, first) {
  const values = new Int32Array(column.length + 1);
  values[0] = first;
  values.set(column, 1);
  return values;
}

function parents(depth) {
  const parent = new Int32Array(depth.length).fill(-1);
  const last = [0];
  for (let i = 1; i < depth.length; i++) {
    parent[i] = last[depth[i] - 1];
    last[depth[i]] = i;
  }
  return parent;
}

/** Return sums over subtrees from self weights (of nodes 1…). */
function inclusive(self, parent) {
  const sum = new Float64Array(parent.length);
  for (let i = parent.length - 1; i > 0; i--) {
    sum[i] += self[i - 1];
    sum[parent[i]] += sum[i];
  }
  return sum;
}

/** Return the node after each subtree. */
function ends(depth) {
  const end = new Int32Array(depth.length);
  const open = [];
  for (let i = 0; i < depth.length; i++) {
    while (open.length && depth[open[open.length - 1]] >= depth[i]) end[open.pop()] = i;
    open.push(i);
  }
  for (const i of open) end[i] = depth.length;
  return end;
}

/** Return the begin of each node in units of weight: children from the left, self weight at the right. */
function starts(parent, value) {
  const start = new Float64Array(parent.length);
  const next = new Float64Array(parent.length);
  for (let i = 1; i < parent.length; i++) {
    start[i] = next[i] = next[parent[i]];
    next[parent[i]] += value[i];
  }
  return start;
}

/** Return a series of weights with running sums, so that the sum of a range takes two look-ups. */
function readSeries(data) {
  const sums = (column) => {
    const result = new Float64Array(column.length + 1);
    column.forEach((value, i) => { result[i + 1] = result[i] + value; });
    return result;
  };
  return { kind: data.kind, name: data.name, node: data.node, hi: sums(data.hi), lo: sums(data.lo) };
}

/**
 * Make a flame graph.
 *
 * @param place elements: canvas, space (as high as all rows), box (scrolls it), tip, status, legend
 * @param changed called when the zoom changes, with the node
 *
 * `load` takes a document: unit, dsos, names {label, dso, kind}, nodes {depth, name}, layers {kind, hi, lo,
 * count} with the weights that end at each node, parts {kind, name, node, hi, lo} for tooltips and the colours
 * of classes, and before, the weights of an older profile, or null.
 */
function flameGraph(place, changed = () => {}) {
  const { canvas, box, tip } = place;
  const pen = canvas.getContext("2d");
  let profile = null, tree = null, parts = [], before = null;
  const view = {
    zoom: 0, cursor: -1, hover: -1, icicle: false, byClass: false,
    matching: null,          // Uint8Array by name, or null
    rows: [],                // depth → nodes drawn there, left to right
    width: 0, height: 0, deepest: 0, drawMs: 0,
  };

  function load(data, keepZoom = false) {
    const path = keepZoom && tree ? pathTo(view.zoom) : [];
    profile = data;
    tree = readTree(profile);
    parts = profile.parts.map(readSeries);
    before = profile.before && readSeries(profile.before);
    Object.assign(view, { zoom: 0, cursor: -1, hover: -1 });
    if (!hasClasses()) view.byClass = false;
    readTheme();
    layout();
    zoomTo(find(path), false);
    box.scrollTop = view.icicle ? 0 : spaceHeight();
  }

  /** Return the names on the way to a node. */
  function pathTo(node) {
    const path = [];
    for (let at = node; at > 0; at = tree.parent[at]) path.unshift(label(at));
    return path;
  }

  /** Return the node at the end of a path of names, as far as there is one. */
  function find(path) {
    let node = 0;
    for (const name of path) {
      let child = node + 1;
      while (child < tree.end[node] && label(child) !== name) child = tree.end[child];
      if (child >= tree.end[node]) return node;
      node = child;
    }
    return node;
  }

  const label = (node) => (node ? profile.names.label[tree.name[node]] : "all");
  const dso = (node) => (node ? profile.dsos[profile.names.dso[tree.name[node]]] : "");
  const kind = (node) => (node ? profile.names.kind[tree.name[node]] : KIND.root);
  const verb = (layer) => (layer.kind === "off" ? "waiting" : "running");
  const exact = (layer, node) => whole(layer.hi[node], layer.lo[node]);
  const withExact = (layer, node) => exactly(exact(layer, node), profile.unit);
  const counted = (layer, node) => plural(layer.count[node], layer.kind === "off" ? "wait" : "sample");
  const totals = (layer) => `${withExact(layer, 0)} ${verb(layer)} in ${counted(layer, 0)}`;
  const hasClasses = () => parts.some((one) => one.kind === "class");

  /** Return the place of the first entry of a series at or after a node. */
  function placeOf(series, node) {
    let [low, high] = [0, series.node.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (series.node[middle] + 1 < node) low = middle + 1; else high = middle;
    }
    return low;
  }

  /** Return the two parts of the weight of a series in the subtree of a node. */
  function partsWithin(series, node) {
    const [from, to] = [placeOf(series, node), placeOf(series, tree.end[node])];
    return [series.hi[to] - series.hi[from], series.lo[to] - series.lo[from]];
  }

  const within = (series, node) => whole(...partsWithin(series, node));

  /** Return the lines of a node's tooltip. */
  function describe(node) {
    const lines = [label(node)];
    if (dso(node)) lines.push(`in ${dso(node)}${kind(node) === KIND.kernel ? ", kernel" : ""}`);
    for (const layer of tree.layers) {
      if (!layer.count[node]) continue;
      const average = rounded(Number(exact(layer, node)) / layer.count[node], profile.unit);
      lines.push(`${verb(layer)}: ${withExact(layer, node)}, ${counted(layer, node)}` +
        (layer.kind === "off" ? `, average ${average}` : ""));
    }
    for (const [kindOfPart, words] of [["class", "class"], ["state", "state"], ["waker", "woken by"]]) {
      const found = parts.filter((one) => one.kind === kindOfPart && one.name !== "other")
        .map((one) => [one.name, Number(within(one, node))]).filter(([, weight]) => weight > 0)
        .sort((a, b) => b[1] - a[1]).slice(0, 4);
      if (found.length) lines.push(`${words}: ${found.map(([name, w]) => `${name} ${share(w, tree.value[node])}`).join(", ")}`);
    }
    if (before) lines.push(change(node));
    let part = `${share(tree.value[node], tree.value[0])} of all`;
    if (view.zoom) part += `, ${share(tree.value[node], tree.value[view.zoom])} of ${label(view.zoom)}`;
    lines.push(part);
    return lines;
  }

  /** Describe the change of a node since the older profile. */
  function change(node) {
    const old = within(before, node);
    const difference = BigInt(Math.round(tree.value[node])) - old;
    const unit = unitName(profile.unit);
    const times = old ? ` (${difference > 0n ? "+" : ""}${((100 * Number(difference)) / Number(old)).toFixed(2)} %)` : " (new)";
    return `before: ${grouped(old)} ${unit}, change ${difference > 0n ? "+" : ""}${grouped(difference)} ${unit}${times}`;
  }

  // ---- drawing -------------------------------------------------------------------------------------------

  let charWidth = 7;
  let fills = {};              // layer kind → colour by name
  let theme = {};
  let pending = false;

  function redraw() {
    if (pending || !tree) return;
    pending = true;
    requestAnimationFrame(() => { pending = false; draw(); });
  }

  function readTheme() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    theme = { dark: darkNow(), match: colour("--match"), cursor: colour("--cursor"), text: colour("--frame-text") };
    if (!tree) return;
    fills = {};
    for (const { kind: layer } of tree.layers) {
      fills[layer] = profile.names.label.map((text, i) => fill(layer, profile.names.kind[i], hash(text)));
    }
    drawLegend();
    redraw();
  }

  /** Return a stable variation per name, 0…1. */
  function hash(text) {
    let h = 2166136261;
    for (let i = 0; i < text.length; i++) h = Math.imul(h ^ text.charCodeAt(i), 16777619);
    return ((h >>> 8) & 0xffff) / 0xffff;
  }

  function fill(layer, kindOfName, vary) {
    const [hue, saturation] = COLOURS[layer][kindOfName];
    const light = theme.dark ? 32 + 11 * vary : 68 + 13 * vary;
    return `hsl(${hue - 10 + 20 * vary} ${saturation}% ${light}%)`;
  }

  /** Say what the colours mean: of a comparison, of classes, or of waiting and running by kind of frame. */
  function drawLegend() {
    place.legend.replaceChildren(...(before ? changeLegend() : view.byClass ? classLegend() : kindLegend()));
  }

  function changeLegend() {
    return [
      legendItem([changeColour(1), changeColour(0.4)], "grown since then (paler: less)"),
      legendItem([changeColour(0)], "as before"),
      legendItem([changeColour(-0.4), changeColour(-1)], "shrunk"),
      make("span", "widths are the newer recording's"),
    ];
  }

  function classLegend() {
    const items = parts.filter((one) => one.kind === "class")
      .map((one) => legendItem([classColour(one.name, theme.dark)], one.name));
    return [make("span", "most of its time:"), ...items, ...(hasLayer("on") ? [legendItem([fill("on", 0, 0.5)], "running")] : [])];
  }

  const hasLayer = (wanted) => tree.layers.some((layer) => layer.kind === wanted);

  function kindLegend() {
    const items = [];
    for (const { kind: layer } of tree.layers) {
      for (const [kindOfName, text] of Object.entries(LEGEND[layer])) {
        if (Number(kindOfName) === KIND.waker && !profile.names.kind.includes(KIND.waker)) continue;
        items.push(legendItem([fill(layer, kindOfName, 0.5)], text));
      }
    }
    if (tree.layers.length > 1) items.push(make("span", "wall clock: a frame shows both shares"));
    return items;
  }

  /** Return the colour of the class that most of a node's waiting was in. */
  function classFill(node) {
    let [most, found] = [0, "other"];
    for (const one of parts) {
      if (one.kind !== "class") continue;
      const [hi, lo] = partsWithin(one, node);
      if (hi * GIGA + lo > most) [most, found] = [hi * GIGA + lo, one.name];
    }
    return classColour(found, theme.dark);
  }

  /** Return red for a node that has grown, blue for one that has shrunk; paler for less. */
  function changeFill(node) {
    const [old, now] = [Number(within(before, node)), tree.value[node]];
    return changeColour((now - old) / Math.max(now, old, 1));
  }

  function changeColour(part) {
    const strength = Math.min(1, Math.abs(part));
    return `hsl(${part > 0 ? CHANGE.grown : CHANGE.shrunk} ${Math.round(80 * strength)}% ${theme.dark ? 40 : 82 - Math.round(22 * strength)}%)`;
  }

  /** Fit canvas and scroll space to the window and to the depth of the shown nodes. */
  function layout() {
    const style = getComputedStyle(box);
    const width = Math.max(50, box.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight));
    const height = Math.max(ROW, box.clientHeight);
    // When the box grows, the browser moves what is scrolled to the end.
    const fromRoot = view.height && view.height !== height
      ? Math.max(0, spaceHeight() - Math.max(view.height, height) - box.scrollTop) : NaN;
    view.deepest = 0;
    for (let i = view.zoom; i < tree.end[view.zoom]; i++) view.deepest = Math.max(view.deepest, tree.depth[i]);
    place.space.style.height = `${Math.max(height, (view.deepest + 1) * ROW)}px`;
    const ratio = window.devicePixelRatio || 1;
    if (view.width !== width || view.height !== height || canvas.width !== Math.round(width * ratio)) {
      [view.width, view.height] = [width, height];
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    if (!view.icicle && fromRoot >= 0) box.scrollTop = spaceHeight() - height - fromRoot;
  }

  const spaceHeight = () => Math.max(view.height, (view.deepest + 1) * ROW);
  /** Return the top of a depth's row in the canvas. */
  const rowTop = (depth) =>
    (view.icicle ? depth * ROW : spaceHeight() - (depth + 1) * ROW) - box.scrollTop;

  function draw() {
    const began = performance.now();
    layout();
    pen.clearRect(0, 0, view.width, view.height);
    pen.font = FONT;
    pen.textBaseline = "middle";
    charWidth = pen.measureText("m").width;
    view.rows = Array.from({ length: view.deepest + 1 }, () => []);
    for (let i = tree.parent[view.zoom]; i >= 0; i = tree.parent[i]) drawFrame(i, 0, view.width, true);
    const scale = tree.value[view.zoom] ? view.width / tree.value[view.zoom] : 0;
    for (let i = view.zoom; i < tree.end[view.zoom];) {
      const width = tree.value[i] * scale;
      if (width < NARROWEST && i !== view.zoom) { i = tree.end[i]; continue; }
      drawFrame(i, (tree.start[i] - tree.start[view.zoom]) * scale, width, false);
      i++;
    }
    outline(view.cursor);
    view.drawMs = performance.now() - began;
  }

  function drawFrame(node, x, width, faded) {
    view.rows[tree.depth[node]].push(node);
    const y = rowTop(tree.depth[node]);
    if (y <= -ROW || y >= view.height) return;
    pen.globalAlpha = faded ? 0.55 : 1;
    const shown = Math.max(width - 0.6, 0.4);
    const matches = view.matching && node && view.matching[tree.name[node]];
    if (matches) {
      pen.fillStyle = theme.match;
      pen.fillRect(x, y, shown, ROW - 1);
    } else {
      drawLayers(node, x, y, shown);
    }
    drawLabel(label(node), x, y, width, matches ? "#fff" : theme.text);
    pen.globalAlpha = 1;
  }

  /** Fill a frame with the colour of each layer by its share: a frame that waited and ran shows both. */
  function drawLayers(node, x, y, width) {
    if (before) {
      pen.fillStyle = changeFill(node);
      pen.fillRect(x, y, width, ROW - 1);
      return;
    }
    let at = x;
    for (const layer of tree.layers) {
      const part = tree.value[node] ? (layer.hi[node] * GIGA + layer.lo[node]) / tree.value[node] : 1;
      pen.fillStyle = !node ? fill(layer.kind, KIND.root, 0.5)
        : view.byClass && layer.kind === "off" ? classFill(node) : fills[layer.kind][tree.name[node]];
      pen.fillRect(at, y, width * part, ROW - 1);
      at += width * part;
    }
  }

  function drawLabel(text, x, y, width, colour) {
    const chars = Math.floor((width - 6) / charWidth);
    if (chars < 3) return;
    pen.fillStyle = colour;
    const fitting = text.length <= chars ? text : `${text.slice(0, chars - 1)}…`;
    pen.fillText(fitting, x + 3, y + ROW / 2, width - 6);
  }

  /** Return left edge and width of a node in the canvas. */
  function extent(node) {
    if (tree.depth[node] < tree.depth[view.zoom]) return [0, view.width];
    const scale = view.width / (tree.value[view.zoom] || 1);
    return [(tree.start[node] - tree.start[view.zoom]) * scale, tree.value[node] * scale];
  }

  function outline(node) {
    if (node < 0 || !isShown(node)) return;
    const [x, width] = extent(node);
    pen.strokeStyle = theme.cursor;
    pen.lineWidth = 1.5;
    pen.strokeRect(x + 0.75, rowTop(tree.depth[node]) + 0.25, Math.max(width - 2, 1), ROW - 2);
  }

  const isShown = (node) =>
    (node >= view.zoom && node < tree.end[view.zoom]) || (node < view.zoom && tree.end[node] >= tree.end[view.zoom]);

  // ---- zoom, hover, search -------------------------------------------------------------------------------

  function zoomTo(node, aloud = true) {
    view.zoom = node;
    view.cursor = aloud ? node : -1;
    layout();
    showRow(tree.depth[node]);
    if (aloud) say(node);
    changed(node);
    redraw();
  }

  /** Scroll so that a row can be seen. */
  function showRow(depth) {
    const top = rowTop(depth);
    if (top < 0) box.scrollTop += top;
    else if (top + ROW > view.height) box.scrollTop += top + ROW - view.height;
  }

  function nodeAt(event) {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const depth = view.icicle
      ? Math.floor((y - rowTop(0)) / ROW)
      : Math.floor((rowTop(0) + ROW - y) / ROW);
    const row = view.rows[depth] || [];
    let [low, high] = [0, row.length - 1];
    while (low < high) {       // the last node that begins at or before x
      const middle = (low + high + 1) >> 1;
      if (extent(row[middle])[0] <= x) low = middle; else high = middle - 1;
    }
    if (!row.length) return -1;
    const [left, width] = extent(row[low]);
    return x >= left && x <= left + Math.max(width, 1) ? row[low] : -1;
  }

  function say(node) {
    place.status.textContent = node < 0 ? "" : describe(node).join(" · ");
  }

  function hover(event) {
    const node = nodeAt(event);
    const isNew = node !== view.hover;
    view.hover = node;
    if (node < 0) { tip.hidden = true; return; }
    if (isNew) say(node);
    showTip(tip, isNew ? describe(node) : null, event.clientX, event.clientY);
  }

  function endHover() {
    tip.hidden = true;
    view.hover = -1;
  }

  /** Mark the names that match a pattern (null: none); return the matched time as text. */
  function search(pattern) {
    view.matching = pattern ? Uint8Array.from(profile.names.label, (name) => (pattern.test(name) ? 1 : 0)) : null;
    redraw();
    return view.matching ? matchedText() : "";
  }

  /** Return the time below matching frames; recursion counts nothing twice. */
  function matchedText() {
    let [frames, sum] = [0, 0n];
    for (let i = 1; i < tree.n;) {
      if (!view.matching[tree.name[i]]) { i++; continue; }
      for (const layer of tree.layers) sum += exact(layer, i);
      frames++;
      i = tree.end[i];
    }
    if (!frames) return "no match";
    return `${share(Number(sum), tree.value[0])} matched: ${grouped(sum)} ${unitName(profile.unit)}`;
  }

  // ---- keys ----------------------------------------------------------------------------------------------

  /** Return the node to which an arrow key leads from the cursor; the same node if there is none. */
  function neighbour(node, key) {
    const rootward = view.icicle ? "ArrowUp" : "ArrowDown";
    const row = view.rows[tree.depth[node]] || [];
    const place = row.indexOf(node);
    if (key === "ArrowLeft") return row[place - 1] ?? node;
    if (key === "ArrowRight") return row[place + 1] ?? node;
    if (key === rootward) return Math.max(tree.parent[node], 0);
    return widestChild(node);
  }

  function widestChild(node) {
    let widest = node;
    for (let i = node + 1; i < tree.end[node]; i = tree.end[i]) {
      if (isShown(i) && (widest === node || tree.value[i] > tree.value[widest])) widest = i;
    }
    return widest;
  }

  function moveCursor(key) {
    view.cursor = view.cursor < 0 || !isShown(view.cursor) ? view.zoom : neighbour(view.cursor, key);
    showRow(tree.depth[view.cursor]);
    say(view.cursor);
    redraw();
  }

  /** Answer a key while the canvas has the focus; return whether it was one of the graph's. */
  function key(event) {
    if (event.key.startsWith("Arrow")) moveCursor(event.key);
    else if ((event.key === "Enter" || event.key === " ") && view.cursor >= 0) zoomTo(view.cursor);
    else if (event.key === "Escape") zoomTo(0);
    else return false;
    return true;
  }

  /** Turn the graph upside down; return whether its root is on top now. */
  function flip() {
    view.icicle = !view.icicle;
    layout();
    box.scrollTop = view.icicle ? 0 : spaceHeight();
    redraw();
    return view.icicle;
  }

  /** Colour by class, or by kind of frame; return whether it is by class. */
  function colourByClass(wanted) {
    view.byClass = wanted && hasClasses();
    drawLegend();
    redraw();
    return view.byClass;
  }

  canvas.addEventListener("mousemove", hover);
  canvas.addEventListener("mouseleave", endHover);
  canvas.addEventListener("click", (event) => { const node = nodeAt(event); if (node >= 0) zoomTo(node); });
  box.addEventListener("scroll", () => { endHover(); redraw(); });
  new ResizeObserver(redraw).observe(box);

  /** For tests and the console: the drawn frames and their places. */
  const boxes = () => view.rows.flat().map((node) => {
    const [page, [x, width]] = [canvas.getBoundingClientRect(), extent(node)];
    return { label: label(node), x: page.left + x, y: page.top + rowTop(tree.depth[node]), width, height: ROW };
  });

  return {
    load, search, zoomTo, flip, key, readTheme, redraw, draw, colourByClass, hasClasses, boxes,
    fullHeight: () => (view.deepest + 1) * ROW,
    summary: () => tree.layers.map(totals).join(", "),
    drawMs: () => view.drawMs,
    nodes: () => tree.n,
  };
}

// SPDX-License-Identifier: Apache-2.0
// What is selected, and its exact sums: by node, by key, by thread, by length.
//
// The rules are those of `perf-offcpu report`: a wait belongs to a span of time (both ends included) if it
// ends in it, a sum of short waits if its last wait does; classes choose among waits and leave CPU samples in.

/** @return a selection of everything */
const everything = () => ({ from: null, to: null, tracks: null, classes: null });
const isEverything = (sel) => sel.from === null && !sel.tracks && !sel.classes;

/** Return sums by index: exact weights in two parts, numbers of waits, run queue, longest single wait. */
function makeSums(size) {
  return {
    size, hi: new Float64Array(size), lo: new Float64Array(size), count: new Float64Array(size),
    runqHi: new Float64Array(size), runqLo: new Float64Array(size), longest: new Float64Array(size),
  };
}

function addRow(sums, at, rec, row, single) {
  const { hi, lo, count, runq } = rec.columns;
  sums.hi[at] += hi[row];
  sums.lo[at] += lo[row];
  sums.count[at] += count[row];
  sums.runqLo[at] += runq[row];
  if (sums.runqLo[at] > 1e15) {        // far below 2^53, where doubles would round
    sums.runqHi[at] += Math.floor(sums.runqLo[at] / GIGA);
    sums.runqLo[at] %= GIGA;
  }
  if (single) {
    const length = rec.lengthOf(row);
    if (length > sums.longest[at]) sums.longest[at] = length;
  }
}

const weightOf = (sums, at) => whole(sums.hi[at], sums.lo[at]);
const runqOf = (sums, at) => whole(sums.runqHi[at], sums.runqLo[at]);
const roughly = (sums, at) => sums.hi[at] * GIGA + sums.lo[at];

/** Call `visit` with each selected row. */
function eachSelected(rec, sel, visit) {
  const classes = sel.classes && Uint8Array.from(rec.classes, (label) => (sel.classes.has(label) ? 1 : 0));
  const [from, to] = sel.from === null ? [-Infinity, Infinity] : [sel.from, sel.to];
  const { lasts, timed } = rec.columns;
  for (const firsts of [rec.waits, rec.moments, rec.others]) {
    for (let track = 0; track < rec.tracks; track++) {
      if (sel.tracks && !sel.tracks.has(track)) continue;
      for (let row = firsts[track]; row < firsts[track + 1]; row++) {
        if (classes && !classes[rec.classOf[row]] && rec.isWait(row)) continue;
        if (row < rec.timed) {
          if (rec.end[row] < from || rec.end[row] > to) continue;
        } else if (sel.from !== null) {
          const other = row - rec.timed;
          if (!timed[other] || lasts[other] < from || lasts[other] > to) continue;
        }
        visit(row);
      }
    }
  }
}

/** Return all sums of a selection. */
function sumsOf(rec, sel) {
  const found = {
    sel,
    total: makeSums(2),                        // waits, then CPU samples
    tracks: makeSums(rec.tracks),
    nodes: [makeSums(rec.nodes), rec.hasCpu ? makeSums(rec.nodes) : null],
    keys: rec.keys.map((key) => makeSums(key.labels.length)),
    lengths: makeSums(rec.data.edges.length),
    summed: makeSums(1),                       // sums of short waits, which have no single lengths
    nodeClass: new Int8Array(rec.nodes).fill(NONE),
    moreClasses: new Map(),                    // node * 32 + class → [hi, lo], where a node has several
  };
  const edges = Float64Array.from(rec.data.edges, Number);
  const { node, flags, hi, lo } = rec.columns;
  const sumFlags = rec.data.flags["a sum of waits"] | rec.data.flags["without a time"];
  eachSelected(rec, sel, (row) => {
    const waits = rec.isWait(row);
    const single = waits && !(flags[row] & sumFlags);
    addRow(found.total, waits ? 0 : 1, rec, row, single);
    addRow(found.nodes[waits ? 0 : 1], node[row], rec, row, single);
    if (waits || !rec.hasWaits) {              // time that CPU samples stand for is no time of a class or waker
      addRow(found.tracks, rec.track[row], rec, row, single);
      for (let i = 0; i < rec.keys.length; i++) addRow(found.keys[i], rec.keys[i].column[row], rec, row, single);
    }
    if (!waits) return;
    if (single) addRow(found.lengths, bucketOf(edges, rec.lengthOf(row)), rec, row, true);
    else addRow(found.summed, 0, rec, row, false);
    addClass(found, node[row], rec.classOf[row], hi[row], lo[row]);
  });
  return found;
}

function bucketOf(edges, length) {
  let [low, high] = [0, edges.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (edges[middle] <= length) low = middle; else high = middle - 1;
  }
  return low;
}

function addClass(found, node, code, hi, lo) {
  if (found.nodeClass[node] === NONE) found.nodeClass[node] = code;
  if (found.nodeClass[node] === code) return;
  const key = node * 32 + code;
  const sums = found.moreClasses.get(key);
  if (sums) { sums[0] += hi; sums[1] += lo; } else found.moreClasses.set(key, [hi, lo]);
}

/** Return the document of a flame graph of some sums: the nodes with weight, and those above them. */
function flameOf(rec, found) {
  const used = new Uint8Array(rec.nodes);
  const layers = found.nodes.filter((sums) => sums && sums.count.some((count) => count > 0));
  for (const { count } of layers) for (let node = 0; node < rec.nodes; node++) if (count[node]) used[node] = 1;
  let number = 0;
  for (let node = rec.nodes - 1; node >= 0; node--) {
    if (!used[node]) continue;
    number++;
    if (rec.parent[node] >= 0) used[rec.parent[node]] = 1;
  }
  const kept = new Int32Array(number);
  for (let node = 0, at = 0; node < rec.nodes; node++) if (used[node]) kept[at++] = node;
  const pick = (values) => Float64Array.from(kept, (node) => values[node]);
  return {
    unit: rec.data.unit, dsos: rec.data.names.dsos, names: rec.data.names, before: null,
    nodes: { depth: pick(rec.columns.depth), name: pick(rec.columns.name) },
    layers: layers.map((sums) => ({
      kind: sums === found.nodes[0] || rec.data.moment !== "CPU sample" ? "off" : "on",  // tasks wait
      hi: pick(sums.hi), lo: pick(sums.lo), count: pick(sums.count),
    })),
    parts: classSeries(rec, found, kept),
  };
}

/** Return the weights of each class by node, for colours and tooltips of the flame graph. */
function classSeries(rec, found, kept) {
  const series = rec.classes.map((name) => ({ kind: "class", name, node: [], hi: [], lo: [] }));
  const others = new Map();
  for (const [key, sums] of found.moreClasses) {
    const node = Math.floor(key / 32);
    if (!others.has(node)) others.set(node, []);
    others.get(node).push([key % 32, sums]);
  }
  kept.forEach((node, place) => {
    if (found.nodeClass[node] === NONE) return;
    let [hi, lo] = [found.nodes[0].hi[node], found.nodes[0].lo[node]];
    for (const [code, sums] of others.get(node) || []) {
      [hi, lo] = [hi - sums[0], lo - sums[1]];
      push(series[code], place, sums[0], sums[1]);
    }
    push(series[found.nodeClass[node]], place, hi, lo);
  });
  return series.filter((one) => one.node.length);
}

function push(series, node, hi, lo) {
  series.node.push(node);
  series.hi.push(hi);
  series.lo.push(lo);
}

// ---- the same as a command -----------------------------------------------------------------------------

const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/** Return ns since the origin as seconds of the recording's clock, with nine digits. */
function seconds(rec, time) {
  const ns = BigInt(rec.data.origin) + BigInt(Math.round(time));
  return `${ns / 1000000000n}.${String(ns % 1000000000n).padStart(9, "0")}`;
}

/** Return the words of the command that reports on the same samples. */
function commandOf(rec, sel) {
  const words = ["perf-offcpu", "report", ...rec.data.options];
  if (sel.from !== null) {
    const before = words.indexOf("--time");
    if (before >= 0) words.splice(before, 2);
    words.push("--time", `${seconds(rec, Math.max(sel.from, -Number(rec.data.origin)))},${seconds(rec, sel.to)}`);
  }
  if (sel.tracks) {
    const { pid, tid } = rec.data.tracks;
    const numbers = (column) => new Set([...sel.tracks].map((track) => column[track]));
    const listed = (set) => [...set].sort((a, b) => a - b).join(",");
    const tids = numbers(tid);
    words.push("--tid", listed(tids));
    // A number can have been that of threads of two processes.
    if (tid.some((id, track) => tids.has(id) && !sel.tracks.has(track))) words.push("--pid", listed(numbers(pid)));
  }
  if (sel.classes) words.push("--class", [...sel.classes].join(","));
  return words.map(quoted).join(" ");
}

// SPDX-License-Identifier: Apache-2.0
// The recording: unpacks the columns, and answers questions about rows, threads and stacks.
//
// Rows are waits, then moments (CPU samples), then samples without a place in time; each kind by thread and
// begin. Times are ns since the origin, in doubles: exact below 2^53 ns.

const BLOCK = 32;            // waits that are drawn as one where they share a pixel
const NONE = -1;

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Return a column: its least value plus what its byte planes add up to. */
function column(bytes, { at, length, planes, least }) {
  if (!least && planes === 1) return bytes.subarray(at, at + length);
  const most = least + 256 ** planes;
  const type = least >= 0 && most <= 2 ** 16 ? Uint16Array : least >= -(2 ** 31) && most <= 2 ** 31 ? Int32Array : Float64Array;
  const values = new type(length);
  if (least) values.fill(least);
  for (let plane = 0; plane < planes; plane++) {
    const [scale, from] = [256 ** plane, at + plane * length];
    for (let i = 0; i < length; i++) values[i] += bytes[from + i] * scale;
  }
  return values;
}

async function readRecording(data, text) {
  const bytes = await inflate(fromBase64(text));
  const columns = {};
  for (const [name, where] of Object.entries(data.columns)) columns[name] = column(bytes, where);
  const [waits, moments, others] = data.firsts;
  const tracks = data.tracks.tid.length;
  const rec = {
    data, columns, tracks, waits, moments, others,
    rows: others[tracks],
    timed: others[0],
    track: new Int32Array(others[tracks]),
    begin: new Float64Array(others[0]),
    end: new Float64Array(others[0]),
    classes: data.classes.map((one) => one.label),
    keys: data.keys.map((key) => ({ ...key, column: columns[`key.${key.key}`] })),
  };
  rec.lengthOf = (row) => (columns.length ? columns.length[row] : columns.hi[row] * GIGA + columns.lo[row]);
  rec.delay = columns.delay ?? columns.runq;
  placeRows(rec);
  readNodes(rec);
  const classKey = rec.keys.find((key) => key.key === "class");
  const codes = Uint8Array.from(classKey.labels, (label) => rec.classes.indexOf(label));
  rec.classOf = classKey.column.map((rank) => codes[rank]);
  rec.runqueue = rec.classes.indexOf("runqueue");
  rec.isWait = (row) => (columns.flags[row] & data.flags.wait) !== 0;
  rec.hasWaits = columns.flags.some((_, row) => rec.isWait(row));
  rec.hasCpu = columns.flags.some((_, row) => !rec.isWait(row));
  rec.between = data.between.map((parts) => {
    const all = parts.reduce((sum, [, ns]) => sum + ns, 0);
    return parts.map(([code, ns]) => [code, ns / all]);
  });
  rec.queued = data.between.map((parts) => parts.reduce((sum, [code, ns]) => sum + (code === rec.runqueue ? ns : 0), 0));
  rec.hasRows = (track) => rec.queued[track] || [waits, moments, others].some((firsts) => firsts[track] < firsts[track + 1]);
  buildBlocks(rec);
  return rec;
}

/** Set the thread, begin and end of each row from the gaps between them. */
function placeRows(rec) {
  const { gap } = rec.columns;
  for (const [firsts, long] of [[rec.waits, true], [rec.moments, false], [rec.others, false]]) {
    for (let track = 0; track < rec.tracks; track++) {
      let at = 0;
      for (let row = firsts[track]; row < firsts[track + 1]; row++) {
        rec.track[row] = track;
        if (row >= rec.timed) continue;
        rec.begin[row] = at + gap[row];
        at = rec.end[row] = rec.begin[row] + (long ? rec.lengthOf(row) : 0);
      }
    }
  }
}

function readNodes(rec) {
  const { depth, name } = rec.columns;
  rec.nodes = depth.length;
  rec.parent = new Int32Array(depth.length).fill(NONE);
  const last = [NONE];
  for (let node = 0; node < depth.length; node++) {
    rec.parent[node] = last[depth[node] - 1];
    last[depth[node]] = node;
  }
  rec.nameOf = (node) => rec.data.names.label[name[node]];
  rec.kindOf = (node) => rec.data.names.kind[name[node]];
  rec.dsoOf = (node) => rec.data.names.dsos[rec.data.names.dso[name[node]]];
}

/** Return the nodes from the root to a node; of a waker without the root, which is no thread's. */
function pathOf(rec, node) {
  const path = [];
  for (let at = node; at >= 0; at = rec.parent[at]) path.push(at);
  return path.reverse();
}

/** Return the function of the program in which a row waits, as the verdict names it; else another one. */
function functionOf(rec, row) {
  const key = rec.keys.find((one) => one.key === "function");
  return key.labels[key.column[row]] || programFunction(rec, rec.columns.node[row]);
}

/** Return the innermost function of the program or a library on a stack, else of the kernel. */
function programFunction(rec, node) {
  for (let at = node; at >= 0; at = rec.parent[at]) {
    if (rec.kindOf(at) === KIND.user && !rec.nameOf(at).startsWith("[")) return rec.nameOf(at);
  }
  return rec.nameOf(node);
}

/** Sum up BLOCK waits each, so that drawing need not look at each wait where many share a pixel. */
function buildBlocks(rec) {
  rec.blockFirst = new Int32Array(rec.tracks + 1);
  for (let track = 0; track < rec.tracks; track++) {
    rec.blockFirst[track + 1] = rec.blockFirst[track] + Math.ceil((rec.waits[track + 1] - rec.waits[track]) / BLOCK);
  }
  const blocks = rec.blockFirst[rec.tracks];
  rec.blocks = { end: new Float64Array(blocks), time: new Float64Array(blocks), class: new Uint8Array(blocks) };
  const sums = new Float64Array(rec.classes.length);
  for (let track = 0; track < rec.tracks; track++) {
    for (let block = rec.blockFirst[track]; block < rec.blockFirst[track + 1]; block++) {
      const first = rec.waits[track] + (block - rec.blockFirst[track]) * BLOCK;
      const last = Math.min(first + BLOCK, rec.waits[track + 1]);
      sums.fill(0);
      let [end, time, most] = [0, 0, 0];
      for (let row = first; row < last; row++) {
        const length = rec.end[row] - rec.begin[row];
        time += length;
        end = Math.max(end, rec.end[row]);
        sums[rec.classOf[row]] += length - rec.delay[row];
        sums[rec.runqueue] += rec.delay[row];
      }
      for (let i = 1; i < sums.length; i++) if (sums[i] > sums[most]) most = i;
      rec.blocks.end[block] = end;
      rec.blocks.time[block] = time;
      rec.blocks.class[block] = most;
    }
  }
}

/** Return the first of the rows [from, to) that begins at or after a time. */
function firstFrom(rec, from, to, time) {
  let [low, high] = [from, to];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rec.begin[middle] < time) low = middle + 1; else high = middle;
  }
  return low;
}

/** Return the row of a thread's wait at a time; the nearest one within some ns if there is none, else -1. */
function waitAt(rec, track, time, within) {
  const [from, to] = [rec.waits[track], rec.waits[track + 1]];
  const after = firstFrom(rec, from, to, time);
  let [best, distance] = [NONE, within];
  for (const row of [after - 1, after]) {
    if (row < from || row >= to) continue;
    const away = Math.max(rec.begin[row] - time, time - rec.end[row], 0);
    if (away <= distance && (best === NONE || away < distance)) [best, distance] = [row, away];
  }
  return best;
}

const threadName = (rec, track) => {
  const { comm, tid } = rec.data.tracks;
  return `${comm[track]} ${tid[track] < 0 ? "?" : tid[track]}`;
};

// SPDX-License-Identifier: Apache-2.0
// Lanes by thread over time, on two canvases: the axis with an overview of all threads, and the lanes.
//
// Each lane is one row of pixels, made from the waits in view and stretched to the lane's height. Waits that
// are narrower than a pixel are added up: the pixel has the colour of the class with most time, stronger the
// more of the pixel was waiting. Blocks of waits within one pixel are added as one, so the cost depends on
// pixels, not on waits.

const LANE = 17;             // height of a lane, px; the last one is a gap
const AXIS = 22;             // height of the axis
const OVERVIEW = 34;         // height of the overview
const FAINTEST = 0.35;       // strength of a pixel with any wait at all
const TICKS = [1, 2, 5];
const PATH_RUNNING = 30, PATH_UNKNOWN = 31;  // numbers of colours next to those of classes
const FAINT = 32;            // added to a class's number where it is not selected or not found

const runningColour = (dark) => `hsl(130 35% ${dark ? 32 : 66}%)`;

/** Return red, green, blue of an hsl() colour. */
function rgb(colour) {
  const [hue, saturation, light] = colour.match(/-?[\d.]+/g).map(Number);
  const [s, l] = [saturation / 100, light / 100];
  const part = (n) => {
    const k = (n + hue / 30) % 12;
    return Math.round(255 * (l - s * Math.min(l, 1 - l) * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return [part(0), part(8), part(4)];
}

/**
 * Make the view of lanes.
 *
 * @param place elements: axis, lanes (canvases), box (scrolls), space
 * @param state what all views share: sel, found, wait (row or -1), cursor (track), dim (Uint8Array by row or null)
 */
function laneView(rec, place, state) {
  const [top, pen] = [place.axis.getContext("2d"), place.lanes.getContext("2d")];
  const [first, last] = rec.data.span;
  const view = { from: first, to: last, lanes: [], width: 0, height: 0, label: 190, ratio: 1, drawMs: 0, byProcess: false, sort: "weight", hideIdle: false, closed: new Set() };
  const sheet = document.createElement("canvas");
  const sheetPen = sheet.getContext("2d", { willReadFrequently: false });
  let theme = {};
  let colours = [];
  let overview = null;
  let pending = false;

  // ---- which lanes -------------------------------------------------------------------------------------

  /** Order the lanes: the critical path, then threads with samples, perhaps below their processes. */
  function arrange() {
    const path = rec.data.path ? [{ track: NONE, tracks: [], path: rec.data.path, name: rec.data.path.title }] : [];
    view.lanes = [...path, ...threadLanes()];
  }

  function threadLanes() {
    const { pid, tid, comm, idle } = rec.data.tracks;
    const weight = (track) => roughly(state.all.tracks, track);
    const order = {
      weight: (a, b) => idle[a] - idle[b] || weight(b) - weight(a) || tid[a] - tid[b],
      name: (a, b) => comm[a].localeCompare(comm[b]) || tid[a] - tid[b],
      tid: (a, b) => tid[a] - tid[b],
      begin: (a, b) => firstBegin(a) - firstBegin(b),
    }[view.sort];
    const tracks = [...Array(rec.tracks).keys()].filter((track) =>
      rec.hasRows(track) && !(view.hideIdle && idle[track]));
    const alone = (track) => ({ track, tracks: [track] });
    if (!view.byProcess) return tracks.sort(order).map(alone);
    const processes = new Map();
    for (const track of tracks) {
      if (!processes.has(pid[track])) processes.set(pid[track], []);
      processes.get(pid[track]).push(track);
    }
    const heaviest = (members) => members.reduce((sum, track) => sum + (idle[track] ? 0 : weight(track)), 0);
    const sorted = [...processes].sort(([, a], [, b]) =>
      (view.sort === "weight" ? heaviest(b) - heaviest(a) : order([...a].sort(order)[0], [...b].sort(order)[0])));
    return sorted.flatMap(([number, members]) => (members.length === 1 ? members.map(alone) : [
      { track: NONE, pid: number, tracks: members, name: rec.data.tracks.process[members[0]] },
      ...(view.closed.has(number) ? [] : members.sort(order).map((track) => ({ ...alone(track), inner: true }))),
    ]));
  }

  const firstBegin = (track) => (rec.waits[track] < rec.waits[track + 1] ? rec.begin[rec.waits[track]] : Infinity);

  // ---- layout ------------------------------------------------------------------------------------------

  function layout() {
    place.box.style.maxHeight = `${Math.max(3, view.lanes.length) * LANE + 8}px`;
    const width = Math.max(120, place.box.clientWidth);
    const height = Math.max(LANE, place.box.clientHeight);
    view.label = Math.round(Math.min(210, width * 0.32));
    place.space.style.height = `${Math.max(height, view.lanes.length * LANE + 4)}px`;
    const ratio = window.devicePixelRatio || 1;
    if (view.width === width && view.height === height && view.ratio === ratio) return;
    if (view.width !== width) overview = null;
    Object.assign(view, { width, height, ratio });
    size(place.lanes, width, height, ratio);
    size(place.axis, width, AXIS + OVERVIEW, ratio);
  }

  function size(canvas, width, height, ratio) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }

  const plot = () => Math.max(1, view.width - view.label);
  const xOf = (time) => view.label + ((time - view.from) / (view.to - view.from)) * plot();
  const timeAt = (x) => view.from + ((x - view.label) / plot()) * (view.to - view.from);
  const overviewX = (time) => view.label + ((time - first) / (last - first || 1)) * plot();
  const overviewTime = (x) => first + ((x - view.label) / plot()) * (last - first);
  const laneAt = (y) => Math.floor((y + place.box.scrollTop) / LANE);
  const laneTop = (lane) => lane * LANE - place.box.scrollTop;

  // ---- moving ------------------------------------------------------------------------------------------

  // Damaged recordings can have times at which doubles are coarse.
  const shortest = Math.max(100, Math.max(Math.abs(first), Math.abs(last)) * 2 ** -40);

  /** Show a span of time, not below the shortest, within the recording. */
  function show(from, to) {
    const length = Math.min(Math.max(to - from, shortest), last - first || 1);
    const begin = Math.min(Math.max(from, first), Math.max(first, last - length));
    [view.from, view.to] = [begin, begin + length];
    redraw();
  }

  const pan = (part) => show(view.from + part * (view.to - view.from), view.to + part * (view.to - view.from));

  /** Zoom by a factor, with the time at x fixed. */
  function zoom(factor, x = view.label + plot() / 2) {
    const at = timeAt(x);
    show(at - (at - view.from) * factor, at + (view.to - at) * factor);
  }

  function showLane(track) {
    const lane = view.lanes.findIndex((one) => one.track === track);
    if (lane < 0) return;
    const y = laneTop(lane);
    if (y < 0) place.box.scrollTop += y;
    else if (y + LANE > view.height) place.box.scrollTop += y + LANE - view.height;
  }

  /** Bring a wait into view: its lane, and its span if it is out of sight or too narrow to be seen. */
  function showWait(row) {
    showLane(rec.track[row]);
    const [begin, end] = [rec.begin[row], rec.end[row]];
    const width = ((end - begin) / (view.to - view.from)) * plot();
    if (begin >= view.from && end <= view.to && width >= 3) return redraw();
    const length = width < 3 || width > plot() ? Math.max((end - begin) * 3, 1000) : view.to - view.from;
    show((begin + end - length) / 2, (begin + end + length) / 2);
  }

  // ---- pixels of a lane --------------------------------------------------------------------------------

  const sums = new Float64Array(64);
  const touched = [];
  let target = null, base = 0, pixels = 0, current = NONE;

  /** Give the pixel under the brush the colour of the class with most time. */
  function flush() {
    if (current < 0) return;
    let [all, most] = [0, touched[0]];
    for (const code of touched) {
      all += sums[code];
      if (sums[code] > sums[most]) most = code;
    }
    for (const code of touched) sums[code] = 0;
    touched.length = 0;
    const at = base + current * 4;
    const strength = Math.max(FAINTEST, Math.min(1, all));
    const colour = colours[most];
    for (let i = 0; i < 3; i++) target[at + i] += (colour[i] - target[at + i]) * strength;
    current = NONE;
  }

  function add(pixel, code, part) {
    if (pixel < 0 || pixel >= pixels) return;
    if (pixel !== current) { flush(); current = pixel; }
    if (!sums[code]) touched.push(code);
    sums[code] += part;
  }

  /** Paint [x0, x1), in pixels of the lane. */
  function stroke(x0, x1, code) {
    if (x1 <= x0) return;
    const [begin, end] = [Math.floor(x0), Math.floor(x1)];
    if (begin === end) { add(begin, code, x1 - x0); return; }
    add(begin, code, begin + 1 - x0);
    if (end - begin > 1) {
      flush();
      const colour = colours[code];
      const to = base + Math.min(end, pixels) * 4;
      for (let at = base + Math.max(begin + 1, 0) * 4; at < to; at += 4) {
        target[at] = colour[0];
        target[at + 1] = colour[1];
        target[at + 2] = colour[2];
      }
    }
    if (x1 > end) add(end, code, x1 - end);
  }

  /** Paint the waits of a thread into the row of pixels that begins at `offset`. */
  function paint(track, data, offset, width) {
    [target, base, pixels, current] = [data, offset, width, NONE];
    paintLife(track);
    const scale = width / (view.to - view.from);
    const { runq } = rec.columns;
    const from = rec.waits[track];
    const until = firstFrom(rec, from, rec.waits[track + 1], view.to);
    let row = firstFrom(rec, from, until, view.from);
    while (row > from && rec.end[row - 1] > view.from) row--;
    while (row < until) {
      const place = row - from;
      const block = rec.blockFirst[track] + place / BLOCK;
      const x0 = (rec.begin[row] - view.from) * scale;
      if (place % BLOCK === 0 && !state.dim && row + BLOCK <= until && (rec.blocks.end[block] - view.from) * scale < Math.floor(x0) + 1) {
        add(Math.floor(x0), rec.blocks.class[block], rec.blocks.time[block] * scale);
        row += BLOCK;
        continue;
      }
      const faint = state.dim && state.dim[row] ? FAINT : 0;
      const queued = (rec.end[row] - runq[row] - view.from) * scale;
      stroke(x0, queued, rec.classOf[row] + faint);
      stroke(queued, (rec.end[row] - view.from) * scale, rec.runqueue + faint);
      if (rec.end[row] === rec.begin[row]) add(Math.floor(x0), rec.classOf[row] + faint, 1e-9);
      row++;
    }
    flush();
    paintMoments(track, scale);
  }

  /** Paint the time in which the thread lived as running; waits come on top. */
  function paintLife(track) {
    const [birth, death] = rec.data.tracks.life[track];
    const scale = pixels / (view.to - view.from);
    const from = Math.max(0, Math.floor(((birth ?? first) - view.from) * scale));
    const to = Math.min(pixels, Math.ceil(((death ?? last) - view.from) * scale));
    for (let at = 0; at < pixels; at++) {
      const colour = at >= from && at < to ? theme.running : theme.nothing;
      for (let i = 0; i < 3; i++) target[base + at * 4 + i] = colour[i];
      target[base + at * 4 + 3] = 255;
    }
  }

  function paintMoments(track, scale) {
    const from = rec.moments[track];
    for (let row = firstFrom(rec, from, rec.moments[track + 1], view.from); row < rec.moments[track + 1]; row++) {
      const x = Math.floor((rec.begin[row] - view.from) * scale);
      if (x >= pixels) return;
      for (let i = 0; i < 3; i++) target[base + x * 4 + i] = theme.moment[i];
    }
  }

  /** Paint the lane of a process: the mean of its threads. */
  function paintProcess(tracks, data, offset, width) {
    const mean = new Float64Array(width * 3);
    const shown = tracks.slice(0, 64);
    for (const track of shown) {
      paint(track, data, offset, width);
      for (let at = 0; at < width; at++) {
        for (let i = 0; i < 3; i++) mean[at * 3 + i] += data[offset + at * 4 + i] / shown.length;
      }
    }
    for (let at = 0; at < width; at++) for (let i = 0; i < 3; i++) data[offset + at * 4 + i] = mean[at * 3 + i];
  }

  /** Paint a critical path: its segments by what their threads did. */
  function paintPath(path, data, offset, width) {
    [target, base, pixels, current] = [data, offset, width, NONE];
    for (let at = 0; at < pixels; at++) {
      for (let i = 0; i < 3; i++) data[offset + at * 4 + i] = theme.nothing[i];
      data[offset + at * 4 + 3] = 255;
    }
    const scale = width / (view.to - view.from);
    for (let at = segmentAt(path, view.from, true); at < path.begin.length && path.begin[at] < view.to; at++) {
      stroke((path.begin[at] - view.from) * scale, (path.end[at] - view.from) * scale, pathCodes[path.name[at]]);
    }
    flush();
  }

  /** Return the segment of a path at a time; -1 if there is none, or (`next`) the first that ends later. */
  function segmentAt(path, time, next = false) {
    let [low, high] = [0, path.end.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (path.end[middle] <= time) low = middle + 1; else high = middle;
    }
    return next || (low < path.begin.length && path.begin[low] <= time) ? low : NONE;
  }

  const pathCodes = rec.data.path ? rec.data.path.kinds.map((kind) =>
    ({ running: PATH_RUNNING, "not recorded": PATH_UNKNOWN, runnable: rec.runqueue }[kind] ?? rec.classes.indexOf(kind))) : [];

  // ---- drawing -----------------------------------------------------------------------------------------

  function readTheme() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const dark = darkNow();
    theme = {
      dark, page: colour("--page"), text: colour("--text"), soft: colour("--soft"), line: colour("--line"), field: colour("--field"),
      focus: colour("--focus"), cursor: colour("--cursor"), shade: colour("--shade"), chosen: colour("--chosen"), match: colour("--match"),
      running: dark ? [42, 52, 46] : [226, 235, 226], nothing: dark ? [23, 25, 27] : [251, 251, 250], moment: dark ? [255, 196, 120] : [150, 70, 0],
    };
    const solid = rec.classes.map((label) => rgb(classColour(label, dark)));
    const faint = solid.map((one) => one.map((value, i) => Math.round(value * 0.22 + theme.running[i] * 0.78)));
    colours = [...solid, ...Array(FAINT - solid.length).fill(solid[0]), ...faint];
    colours[PATH_RUNNING] = rgb(runningColour(dark));
    colours[PATH_UNKNOWN] = theme.nothing;
    overview = null;
    redraw();
  }

  function redraw() {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => { pending = false; draw(); });
  }

  function draw() {
    const began = performance.now();
    layout();
    drawLanes();
    drawAxis();
    view.drawMs = performance.now() - began;
  }

  function drawLanes() {
    const { ratio } = view;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, view.width, view.height);
    const from = Math.max(0, laneAt(0));
    const to = Math.min(view.lanes.length, laneAt(view.height) + 1);
    drawPixels(from, to);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    drawGrid(pen, 0, view.height);
    pen.save();
    pen.beginPath();
    pen.rect(view.label, 0, plot(), view.height);
    pen.clip();
    drawTexts(from, to);
    drawSelection(from, to);
    drawWait();
    pen.restore();
    for (let lane = from; lane < to; lane++) drawLabel(lane);
  }

  function drawPixels(from, to) {
    const width = Math.max(1, Math.round(plot() * view.ratio));
    const rows = Math.max(1, to - from);
    const image = sheetPen.createImageData(width, rows);
    for (let lane = from; lane < to; lane++) {
      const { tracks, track, path } = view.lanes[lane];
      if (path) paintPath(path, image.data, (lane - from) * width * 4, width);
      else if (track >= 0) paint(track, image.data, (lane - from) * width * 4, width);
      else paintProcess(tracks, image.data, (lane - from) * width * 4, width);
    }
    [sheet.width, sheet.height] = [width, rows];
    sheetPen.putImageData(image, 0, 0);
    pen.imageSmoothingEnabled = false;
    for (let lane = from; lane < to; lane++) {
      const thin = view.lanes[lane].track < 0 && !view.lanes[lane].path ? 5 : 1;
      pen.drawImage(sheet, 0, lane - from, width, 1, view.label, laneTop(lane) + thin, plot(), LANE - 1 - thin);
    }
  }

  function drawLabel(lane) {
    const one = view.lanes[lane];
    const y = laneTop(lane);
    const chosen = state.sel.tracks && one.tracks.length && one.tracks.every((track) => state.sel.tracks.has(track));
    pen.fillStyle = chosen ? theme.chosen : theme.page;
    pen.fillRect(0, y, view.label - 4, LANE);
    if (one.track >= 0 && one.track === state.cursor) {
      pen.strokeStyle = theme.focus;
      pen.strokeRect(0.5, y + 0.5, view.label - 5, LANE - 1);
    }
    const weight = one.tracks.reduce((sum, track) => sum + roughly(state.found.tracks, track), 0);
    const text = weight ? rounded(weight, rec.data.unit) : "";
    pen.textBaseline = "middle";
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = theme.soft;
    pen.textAlign = "right";
    const room = view.label - 12 - (view.label > 140 ? pen.measureText(text).width + 6 : 0);
    if (view.label > 140) pen.fillText(text, view.label - 9, y + LANE / 2);
    pen.textAlign = "left";
    pen.fillStyle = weight ? theme.text : theme.soft;
    pen.font = one.track < 0 ? "600 12px system-ui, sans-serif" : "12px system-ui, sans-serif";
    const [name, number] = labelOf(one);
    const left = 4 + (one.inner ? 12 : 0);
    const shown = fitted(name, room - left - pen.measureText(number).width);
    pen.fillText(`${shown}${number}`, left, y + LANE / 2);
  }

  /** Return the name of a lane, which may be cut, and its number, which is not. */
  function labelOf({ track, pid, name, tracks, path }) {
    if (path) return [name, ""];
    if (track < 0) return [`${view.closed.has(pid) ? "▸ " : "▾ "}${name}`, ` ${pid} (${tracks.length})`];
    return [rec.data.tracks.comm[track], ` ${rec.data.tracks.tid[track]}`];
  }

  function fitted(text, width) {
    if (pen.measureText(text).width <= width) return text;
    let length = text.length;
    while (length > 1 && pen.measureText(`${text.slice(0, length)}…`).width > width) length--;
    return `${text.slice(0, length)}…`;
  }

  /** Write the function on waits that are wide enough. */
  function drawTexts(from, to) {
    const needed = ((view.to - view.from) / plot()) * 46;
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    for (let lane = from; lane < to; lane++) {
      const { track, path } = view.lanes[lane];
      if (path) drawPathTexts(path, lane);
      if (track < 0) continue;
      const begin = rec.waits[track];
      let row = firstFrom(rec, begin, rec.waits[track + 1], view.from);
      if (row > begin) row--;
      for (; row < rec.waits[track + 1] && rec.begin[row] < view.to; row++) {
        const place = row - begin;
        if (place % BLOCK === 0 && rec.blocks.time[rec.blockFirst[track] + place / BLOCK] < needed) {
          row += BLOCK - 1;
          continue;
        }
        if (rec.end[row] - rec.begin[row] < needed || rec.end[row] < view.from) continue;
        const [x0, x1] = [Math.max(view.label, xOf(rec.begin[row])), Math.min(view.width, xOf(rec.end[row] - rec.columns.runq[row]))];
        if (x1 - x0 < 40 || (state.dim && state.dim[row])) continue;
        pen.fillStyle = theme.dark ? "#000c" : "#fffffff2";
        pen.fillText(fitted(functionOf(rec, row), x1 - x0 - 6), x0 + 3, laneTop(lane) + LANE / 2 + 0.5);
      }
    }
  }

  function drawPathTexts(path, lane) {
    const needed = ((view.to - view.from) / plot()) * 46;
    for (let at = segmentAt(path, view.from, true), tries = 3000; at < path.begin.length && path.begin[at] < view.to && tries; at++, tries--) {
      if (path.end[at] - path.begin[at] < needed || path.kinds[path.name[at]] === "not recorded") continue;
      const [x0, x1] = [Math.max(view.label, xOf(path.begin[at])), Math.min(view.width, xOf(path.end[at]))];
      if (x1 - x0 < 40) continue;
      pen.fillStyle = theme.dark ? "#000c" : "#fffffff2";
      pen.fillText(fitted(path.names[path.name[at]], x1 - x0 - 6), x0 + 3, laneTop(lane) + LANE / 2 + 0.5);
    }
  }

  /** Shade what is outside of the selected span, and lanes of threads that are not selected. */
  function drawSelection(from, to) {
    pen.fillStyle = theme.shade;
    for (let lane = from; lane < to && state.sel.tracks; lane++) {
      if (view.lanes[lane].path || view.lanes[lane].tracks.some((track) => state.sel.tracks.has(track))) continue;
      pen.fillRect(view.label, laneTop(lane), plot(), LANE);
    }
    const span = state.drag || (state.sel.from === null ? null : [state.sel.from, state.sel.to]);
    if (!span) return;
    const [x0, x1] = span.map(xOf);
    pen.fillStyle = theme.shade;
    pen.fillRect(view.label, 0, Math.max(0, x0 - view.label), view.height);
    pen.fillRect(x1, 0, view.width, view.height);
    pen.fillStyle = theme.focus;
    pen.fillRect(x0 - 0.5, 0, 1, view.height);
    pen.fillRect(x1 - 0.5, 0, 1, view.height);
  }

  /** Outline the chosen wait, and draw an arrow from the thread that ended it. */
  function drawWait() {
    const row = state.wait;
    if (row < 0 || row >= rec.waits[rec.tracks]) return;
    const lane = view.lanes.findIndex((one) => one.track === rec.track[row]);
    if (lane < 0) return;
    const [x0, x1] = [xOf(rec.begin[row]), xOf(rec.end[row])];
    pen.strokeStyle = theme.cursor;
    pen.lineWidth = 1.5;
    pen.strokeRect(x0 - 1, laneTop(lane) + 0.25, Math.max(x1 - x0, 1) + 2, LANE - 1);
    const waker = rec.columns.waker_track[row];
    const other = waker < 0 ? -1 : view.lanes.findIndex((one) => one.track === waker);
    if (other < 0 || other === lane) return;
    drawArrow(xOf(rec.end[row] - rec.columns.runq[row]), laneTop(other) + LANE / 2, laneTop(lane) + (other < lane ? 0 : LANE));
  }

  function drawArrow(x, from, to) {
    const down = to > from ? 1 : -1;
    pen.beginPath();
    pen.moveTo(x, from);
    pen.lineTo(x, to - 5 * down);
    pen.stroke();
    pen.fillStyle = theme.cursor;
    pen.beginPath();
    pen.moveTo(x - 4, to - 6 * down);
    pen.lineTo(x + 4, to - 6 * down);
    pen.lineTo(x, to);
    pen.fill();
    pen.beginPath();
    pen.arc(x, from, 3, 0, 7);
    pen.fill();
  }

  // ---- axis and overview -------------------------------------------------------------------------------

  /** Return the distance of ticks in ns: a round number, at least 80 px. */
  function tickStep() {
    const least = ((view.to - view.from) / plot()) * 80;
    const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
    return TICKS.map((one) => one * power).find((one) => one >= least) || 10 * power;
  }

  function* ticks() {
    const step = tickStep();
    for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) yield [at, step];
  }

  /** Return a time since the begin in the unit of a step. */
  function tickText(at, step) {
    const [name, size] = [["s", 1e9], ["ms", 1e6], ["us", 1e3]].find(([, s]) => step >= s / 100 || view.from >= 10 * s) || ["ns", 1];
    if (Math.abs(at) < step / 2) return "0";
    const digits = Math.max(0, Math.round(Math.log10(size)) - Math.floor(Math.log10(step)));
    return `${(at / size).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${name}`;
  }

  function drawGrid(brush, y0, y1) {
    brush.fillStyle = theme.line;
    brush.globalAlpha = 0.55;
    for (const [at] of ticks()) brush.fillRect(Math.round(xOf(at)), y0, 1, y1 - y0);
    brush.globalAlpha = 1;
  }

  function drawAxis() {
    const { ratio } = view;
    top.setTransform(ratio, 0, 0, ratio, 0, 0);
    top.clearRect(0, 0, view.width, AXIS + OVERVIEW);
    drawOverview();
    drawGrid(top, OVERVIEW + 14, OVERVIEW + AXIS);
    top.fillStyle = theme.soft;
    top.font = "11px system-ui, sans-serif";
    top.textBaseline = "middle";
    for (const [at, step] of ticks()) {
      const text = tickText(at, step);
      const x = Math.min(xOf(at) + 3, view.width - top.measureText(text).width);
      top.fillText(text, x, OVERVIEW + AXIS / 2 + 1);
    }
    top.fillText("threads waiting", 4, 9);
    top.fillText(overview.most < 1 ? overview.most.toFixed(2) : String(Math.ceil(overview.most)), 4, 24);
    top.fillText(view.label > 140 ? "time since the first wait" : "time", 4, OVERVIEW + AXIS / 2 + 1);
  }

  /** Sum up all waits by pixel and class. */
  function sumOverview(width) {
    const parts = rec.classes.map(() => new Float64Array(width));
    const scale = width / (last - first || 1);
    const { runq } = rec.columns;
    const spread = (code, from, to) => {
      let [x0, x1] = [(from - first) * scale, Math.min((to - first) * scale, width)];
      for (let pixel = Math.floor(x0); x0 < x1 && pixel < width; pixel++, x0 = pixel) parts[code][pixel] += Math.min(x1, pixel + 1) - x0;
    };
    for (let row = 0; row < rec.waits[rec.tracks]; row++) {
      spread(rec.classOf[row], rec.begin[row], rec.end[row] - runq[row]);
      spread(rec.runqueue, rec.end[row] - runq[row], rec.end[row]);
    }
    let most = 0;
    for (let pixel = 0; pixel < width; pixel++) most = Math.max(most, parts.reduce((sum, part) => sum + part[pixel], 0));
    return { parts, most, width };
  }

  /** Draw the number of waiting threads, by class, once for all pictures of a width and theme. */
  function pictureOf({ parts, most, width }, height) {
    const canvas = document.createElement("canvas");
    size(canvas, width, height, view.ratio);
    const brush = canvas.getContext("2d");
    brush.setTransform(view.ratio, 0, 0, view.ratio, 0, 0);
    for (let pixel = 0; pixel < width; pixel++) {
      let y = height;
      for (let code = 0; code < parts.length; code++) {
        const part = (parts[code][pixel] / (most || 1)) * (height - 2);
        if (part <= 0) continue;
        brush.fillStyle = `rgb(${colours[code].join(" ")})`;
        brush.fillRect(pixel, y - part, 1, part);
        y -= part;
      }
    }
    return canvas;
  }

  function drawOverview() {
    const width = Math.floor(plot());
    const height = OVERVIEW - 4;
    if (!overview || overview.width !== width) {
      overview = sumOverview(width);
      overview.picture = pictureOf(overview, height);
    }
    top.drawImage(overview.picture, view.label, 0, width, height);
    const [x0, x1] = [overviewX(view.from), overviewX(view.to)];
    top.fillStyle = theme.shade;
    top.fillRect(view.label, 0, x0 - view.label, height);
    top.fillRect(x1, 0, view.width - x1, height);
    top.strokeStyle = theme.soft;
    top.lineWidth = 1;
    top.strokeRect(x0 + 0.5, 0.5, Math.max(x1 - x0 - 1, 2), height - 1);
    top.fillStyle = theme.line;
    top.fillRect(view.label, height, plot(), 1);
  }

  return {
    view, arrange, layout, redraw, readTheme, show, showWait, showLane, pan, zoom, timeAt, xOf, laneAt, laneTop, overviewTime, plot, segmentAt,
    all: () => show(first, last), draw, tickText, tickStep,
  };
}

// SPDX-License-Identifier: Apache-2.0
// Lanes by thread over time: which there are, what is in view, and drawing them.
//
// Each lane is one row of pixels (`paint.js`), stretched to the lane's height; texts and marks come on top.

const LANE = 17;             // height of a lane, px; the last one is a gap

/**
 * Make the view of lanes.
 *
 * @param place elements: axis, lanes (canvases), box (scrolls), space
 * @param state what all views share: sel, found, wait (row or -1), cursor (track), dim (Uint8Array by row or null)
 */
function laneView(rec, place, state) {
  const pen = place.lanes.getContext("2d");
  const [first, last] = rec.data.span;
  const view = { from: first, to: last, lanes: [], width: 0, height: 0, label: 190, ratio: 1, drawMs: 0, byProcess: false, sort: "weight", hideIdle: false, closed: new Set() };
  const sheet = document.createElement("canvas");
  const sheetPen = sheet.getContext("2d");
  const scales = scalesOf(rec, view);
  const { plot, xOf, timeAt, overviewTime } = scales;
  const axis = axisView(rec, place.axis, view, scales);
  const { paint, paintProcess, paintPath, segmentAt, dress } = lanePainter(rec, view, state);
  let theme = null;
  let pending = false;

  // ---- which lanes -------------------------------------------------------------------------------------

  /** Order the lanes: the critical path, then threads with samples, perhaps below their processes, then tasks. */
  function arrange() {
    const laneOf = (path) => ({ track: NONE, tracks: [], path, name: path.title });
    view.lanes = [...(rec.data.path ? [laneOf(rec.data.path)] : []), ...threadLanes(), ...rec.data.tasks.map(laneOf)];
  }

  function threadLanes() {
    const { pid, tid, comm, idle } = rec.data.tracks;
    const weight = (track) => roughly(state.all.tracks, track) + rec.queued[track];
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
    const wider = view.width !== width || view.ratio !== ratio;
    Object.assign(view, { width, height, ratio });
    sizeCanvas(place.lanes, width, height, ratio);
    if (wider) axis.resize(width, ratio);
  }

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

  // ---- drawing -----------------------------------------------------------------------------------------

  function readTheme() {
    const look = laneLook(rec);
    theme = look.theme;
    dress(look);
    axis.dress(look);
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
    axis.draw();
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
    axis.drawGrid(pen, 0, view.height);
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
    const sumOf = (of) => one.tracks.reduce((sum, track) => sum + of(track), 0);
    const weight = sumOf((track) => roughly(state.found.tracks, track)) || sumOf((track) => rec.queued[track]);
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
        const [x0, x1] = [Math.max(view.label, xOf(rec.begin[row])), Math.min(view.width, xOf(rec.end[row] - rec.delay[row]))];
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
    drawArrow(xOf(rec.end[row] - rec.delay[row]), laneTop(other) + LANE / 2, laneTop(lane) + (other < lane ? 0 : LANE));
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

  return {
    view, arrange, layout, redraw, readTheme, show, showWait, showLane, pan, zoom, timeAt, xOf, laneAt, laneTop, overviewTime, plot, segmentAt,
    all: () => show(first, last), draw,
  };
}

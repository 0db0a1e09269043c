// SPDX-License-Identifier: Apache-2.0
// Mouse, touch, wheel and keys on the lanes and the axis.
//
// A drag selects time (on the axis of all threads, on lanes of those that it touches); with Shift, with the
// middle button, or by touch it pans; two fingers zoom. The wheel scrolls; with Ctrl it zooms, with Shift it pans.

const CLICK = 4;             // px; shorter drags are clicks

/**
 * Connect the views with the pointer.
 *
 * @param actions select(sel), chooseWait(row), hover(track, row, event), leave(), toggleLane(lane, more)
 */
function connectPointer(rec, lanes, place, state, actions) {
  let drag = null;
  const fingers = new Map();                   // pointer id → x, of fingers on the lanes

  const at = (event, canvas) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const clampedTime = (x) => Math.min(Math.max(lanes.timeAt(x), lanes.view.from), lanes.view.to);

  /** Zoom by two fingers: the times under them stay there. */
  function pinch(event, x) {
    const [a, b] = [...fingers.keys()];
    const [t0, t1] = [a, b].map((id) => lanes.timeAt(fingers.get(id)));
    fingers.set(event.pointerId, x);
    const [x0, x1] = [fingers.get(a), fingers.get(b)];
    if (Math.abs(x1 - x0) < 10) return;
    const perPx = (t1 - t0) / (x1 - x0);
    if (perPx <= 0) return;
    const from = t0 - (x0 - lanes.view.label) * perPx;
    lanes.show(from, from + lanes.plot() * perPx);
  }

  function begin(event, canvas) {
    const [x, y] = at(event, canvas);
    if (event.pointerType === "touch") fingers.set(event.pointerId, x);
    if (fingers.size === 2) drag = null;
    if (fingers.size > 1) return;
    const pans = event.button === 1 || event.shiftKey || (event.pointerType === "touch" && canvas === place.lanes);
    const inOverview = canvas === place.axis && y < OVERVIEW;
    if (event.button > 1) return;
    drag = { canvas, x, y, lastX: x, lastY: y, moved: false, kind: inOverview ? "overview" : pans ? "pan" : "select", touch: event.pointerType === "touch" };
    if (event.pointerId !== undefined && canvas.setPointerCapture && event.isTrusted) canvas.setPointerCapture(event.pointerId);
    if (inOverview) moveOverview(x);
    if (event.button === 1) event.preventDefault();
  }

  function move(event, canvas) {
    const [x, y] = at(event, canvas);
    if (fingers.size === 2 && fingers.has(event.pointerId)) { pinch(event, x); return; }
    if (!drag) { if (canvas === place.lanes) hover(x, y, event); return; }
    if (Math.hypot(x - drag.x, y - drag.y) >= CLICK) drag.moved = true;
    if (!drag.moved) return;
    actions.leave();
    if (drag.kind === "overview") moveOverview(x);
    else if (drag.kind === "pan") {
      lanes.pan((drag.lastX - x) / lanes.plot());
      if (drag.touch) place.box.scrollTop += drag.lastY - y;
    } else if (drag.x >= lanes.view.label) {
      state.drag = [clampedTime(Math.min(x, drag.x)), clampedTime(Math.max(x, drag.x))];
      lanes.redraw();
    }
    [drag.lastX, drag.lastY] = [x, y];
  }

  function end(event, canvas) {
    fingers.delete(event.pointerId);
    if (!drag) return;
    const [x, y] = at(event, canvas);
    const done = drag;
    drag = null;
    if (!done.moved) { click(done, event); return; }
    if (done.kind !== "select" || !state.drag) return;
    const [from, to] = state.drag.map(Math.round);
    state.drag = null;
    const sel = { ...state.sel, from, to };
    if (canvas === place.lanes) sel.tracks = tracksBetween(done.y, y);
    actions.select(sel);
  }

  /** Return the tracks of the lanes between two heights; null for all lanes. */
  function tracksBetween(y0, y1) {
    const [from, to] = [Math.min(y0, y1), Math.max(y0, y1)].map(lanes.laneAt);
    const touched = lanes.view.lanes.slice(Math.max(0, from), to + 1);
    if (touched.length >= lanes.view.lanes.length) return null;
    return new Set(touched.flatMap((lane) => lane.tracks));
  }

  function click({ canvas, x, y }, event) {
    if (canvas !== place.lanes) return;
    const lane = lanes.view.lanes[lanes.laneAt(y)];
    if (!lane || lane.path) return;
    if (x < lanes.view.label) actions.toggleLane(lane, event.ctrlKey || event.metaKey, x < 16);
    else actions.chooseWait(rowAt(lane, x), lane);
  }

  function rowAt(lane, x) {
    if (!lane || lane.track < 0) return NONE;
    const pixel = (lanes.view.to - lanes.view.from) / lanes.plot();
    return waitAt(rec, lane.track, lanes.timeAt(x), 3 * pixel);
  }

  function hover(x, y, event) {
    const lane = lanes.view.lanes[lanes.laneAt(y)];
    if (!lane) { actions.leave(); return; }
    actions.hover(lane, x < lanes.view.label ? NONE : rowAt(lane, x), event, lanes.timeAt(x));
  }

  function moveOverview(x) {
    const half = (lanes.view.to - lanes.view.from) / 2;
    const middle = lanes.overviewTime(x);
    lanes.show(middle - half, middle + half);
  }

  function wheel(event) {
    const amount = event.deltaMode === 1 ? 16 : 1;
    if (event.ctrlKey || event.altKey || event.metaKey) {
      lanes.zoom(1.0015 ** (event.deltaY * amount), Math.max(lanes.view.label, at(event, place.lanes)[0]));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      lanes.pan(((event.deltaX || event.deltaY) * amount) / lanes.plot());
    } else {
      return;
    }
    event.preventDefault();
  }

  for (const canvas of [place.lanes, place.axis]) {
    canvas.addEventListener("pointerdown", (event) => begin(event, canvas));
    canvas.addEventListener("pointermove", (event) => move(event, canvas));
    canvas.addEventListener("pointerup", (event) => end(event, canvas));
    canvas.addEventListener("pointercancel", (event) => { fingers.delete(event.pointerId); drag = null; state.drag = null; lanes.redraw(); });
    canvas.addEventListener("pointerleave", () => { if (!drag) actions.leave(); });
    canvas.addEventListener("wheel", wheel, { passive: false });
  }
  place.axis.addEventListener("dblclick", () => lanes.all());
}

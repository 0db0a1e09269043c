// SPDX-License-Identifier: Apache-2.0
// Rows of pixels: what a lane shows at each pixel, from the waits in view.
//
// Waits that are narrower than a pixel are added up: the pixel has the colour of the class with most time,
// stronger the more of the pixel was waiting. Blocks of waits within one pixel are added as one, so the cost
// depends on pixels, not on waits.

const FAINTEST = 0.35;       // strength of a pixel with any wait at all
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

/** Return the colours of lanes in the page's theme: of the page, and by number of class. */
function laneLook(rec) {
  const style = getComputedStyle(document.documentElement);
  const dark = darkNow();
  const names = ["page", "text", "soft", "line", "focus", "cursor", "shade", "chosen"];
  const theme = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  Object.assign(theme, {
    dark, running: dark ? [42, 52, 46] : [226, 235, 226], nothing: dark ? [23, 25, 27] : [251, 251, 250],
    moment: dark ? [255, 196, 120] : [150, 70, 0],
  });
  const solid = rec.classes.map((label) => rgb(classColour(label, dark)));
  const faint = solid.map((one) => one.map((value, i) => Math.round(value * 0.22 + theme.running[i] * 0.78)));
  const colours = [...solid, ...Array(FAINT - solid.length).fill(solid[0]), ...faint];
  colours[PATH_RUNNING] = rgb(runningColour(dark));
  colours[PATH_UNKNOWN] = theme.nothing;
  return { theme, colours };
}

/**
 * Make the painter of rows of pixels.
 *
 * @param view from and to: the times in view
 * @param state dim: the rows to paint faintly, or null
 */
function lanePainter(rec, view, state) {
  const [first, last] = rec.data.span;
  let theme = null, colours = null;

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
    const { delay } = rec;
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
      const queued = (rec.end[row] - delay[row] - view.from) * scale;
      stroke(x0, queued, rec.classOf[row] + faint);
      stroke(queued, (rec.end[row] - view.from) * scale, rec.runqueue + faint);
      if (rec.end[row] === rec.begin[row]) add(Math.floor(x0), rec.classOf[row] + faint, 1e-9);
      row++;
    }
    flush();
    paintMoments(track, scale);
  }

  /** Paint the time in which the thread lived, but for pauses of its host; single waits come on top. */
  function paintLife(track) {
    const { host, life } = rec.data.tracks;
    const [birth, death] = life[track];
    const pixel = (time) => (time - view.from) * pixels / (view.to - view.from);
    fill(0, pixels, theme.nothing);
    fill(Math.floor(pixel(birth ?? first)), Math.ceil(pixel(death ?? last)), outsideOfWaits(track));
    for (const [begin, end] of rec.data.pauses[host[track]]) {
      fill(Math.ceil(pixel(begin ?? first)), Math.floor(pixel(end ?? last)), theme.nothing);
    }
  }

  /** Return the mean colour of running, of waiting for a CPU and of summed short waits, by their time. */
  function outsideOfWaits(track) {
    const parts = rec.between[track];
    if (!parts.length) return theme.running;
    const of = (code) => (code < 0 ? theme.running : colours[code]);
    return [0, 1, 2].map((i) => Math.round(parts.reduce((sum, [code, share]) => sum + share * of(code)[i], 0)));
  }

  function fill(from, to, colour) {
    for (let at = Math.max(0, from); at < Math.min(pixels, to); at++) {
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

  /** Paint a critical path, or a task: its segments by what their threads, or it, did. */
  function paintPath(path, data, offset, width) {
    [target, base, pixels, current] = [data, offset, width, NONE];
    for (let at = 0; at < pixels; at++) {
      for (let i = 0; i < 3; i++) data[offset + at * 4 + i] = theme.nothing[i];
      data[offset + at * 4 + 3] = 255;
    }
    const scale = width / (view.to - view.from);
    const codes = pathCodes.get(path);
    for (let at = segmentAt(path, view.from, true); at < path.begin.length && path.begin[at] < view.to; at++) {
      stroke((path.begin[at] - view.from) * scale, (path.end[at] - view.from) * scale, codes[path.name[at]]);
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

  const codeOf = (kind) =>
    ({ running: PATH_RUNNING, "not recorded": PATH_UNKNOWN, runnable: rec.runqueue }[kind] ?? rec.classes.indexOf(kind));
  const pathCodes = new Map([rec.data.path, ...rec.data.tasks].map((path) => [path, path ? path.kinds.map(codeOf) : []]));

  return {
    paint, paintProcess, paintPath, segmentAt,
    dress: (look) => { ({ theme, colours } = look); },
  };
}

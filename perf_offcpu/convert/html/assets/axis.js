// SPDX-License-Identifier: Apache-2.0
// The axis of time, and above it the overview: how many threads waited, by class.

const AXIS = 22;             // height of the axis, px
const OVERVIEW = 34;         // height of the overview
const TICKS = [1, 2, 5];

/** Return the functions between times and places: of the span in view, and of the whole recording. */
function scalesOf(rec, view) {
  const [first, last] = rec.data.span;
  const plot = () => Math.max(1, view.width - view.label);
  const xOf = (time) => view.label + ((time - view.from) / (view.to - view.from)) * plot();
  const timeAt = (x) => view.from + ((x - view.label) / plot()) * (view.to - view.from);
  const overviewX = (time) => view.label + ((time - first) / (last - first || 1)) * plot();
  const overviewTime = (x) => first + ((x - view.label) / plot()) * (last - first);
  return { plot, xOf, timeAt, overviewX, overviewTime };
}

/** Set the size of a canvas in px of the page. */
function sizeCanvas(canvas, width, height, ratio) {
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
}

/** Make the view of the axis on a canvas. */
function axisView(rec, canvas, view, scales) {
  const { plot, xOf, overviewX } = scales;
  const [first, last] = rec.data.span;
  const top = canvas.getContext("2d");
  let theme = null, colours = null, overview = null;

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
    const { delay } = rec;
    const spread = (code, from, to) => {
      let [x0, x1] = [(from - first) * scale, Math.min((to - first) * scale, width)];
      for (let pixel = Math.floor(x0); x0 < x1 && pixel < width; pixel++, x0 = pixel) parts[code][pixel] += Math.min(x1, pixel + 1) - x0;
    };
    for (let row = 0; row < rec.waits[rec.tracks]; row++) {
      spread(rec.classOf[row], rec.begin[row], rec.end[row] - delay[row]);
      spread(rec.runqueue, rec.end[row] - delay[row], rec.end[row]);
    }
    let most = 0;
    for (let pixel = 0; pixel < width; pixel++) most = Math.max(most, parts.reduce((sum, part) => sum + part[pixel], 0));
    return { parts, most, width };
  }

  /** Draw the number of waiting threads, by class, once for all pictures of a width and theme. */
  function pictureOf({ parts, most, width }, height) {
    const picture = document.createElement("canvas");
    sizeCanvas(picture, width, height, view.ratio);
    const brush = picture.getContext("2d");
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
    return picture;
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
    draw: drawAxis, drawGrid, tickStep, tickText,
    dress: (look) => { ({ theme, colours } = look); overview = null; },
    resize: (width, ratio) => { overview = null; sizeCanvas(canvas, width, AXIS + OVERVIEW, ratio); },
  };
}

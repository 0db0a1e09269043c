// SPDX-License-Identifier: Apache-2.0
// The page: reads the recording, connects lanes, flame graph, panels, search, legend and keys.

async function openPage() {
  const opened = performance.now();
  const data = JSON.parse(element("profile").textContent);
  const rec = await readRecording(data, element("columns").textContent.trim());
  for (const id of ["profile", "columns"]) element(id).remove();
  const place = { axis: element("axis"), lanes: element("lanes"), box: element("lanebox"), space: element("lanespace") };
  const state = { sel: everything(), found: null, all: null, wait: NONE, cursor: NONE, dim: null, drag: null, pattern: null };
  state.all = state.found = sumsOf(rec, state.sel);
  const graph = flameGraph({
    canvas: element("graph"), space: element("space"), box: element("view"),
    tip: element("tip"), status: element("status"), legend: element("flamelegend"),
  }, (node) => { element("reset").disabled = node === 0; });
  const lanes = laneView(rec, place, state);
  const tabs = makeTabs([
    ...rec.keys.map((key, i) => [key.key, key.title, () => keyTable(i)]),
    ["thread", "Thread", threadTable],
    ["stack", "Stack", () => stackTable(rec, state.found, darkNow())],
    ["length", "Length", () => histogram(rec, state.found)],
    ["wait", "Wait", () => waitPanel(rec, state.wait, showThread)],
  ]);
  const search = connectSearch(rec, state, graph, lanes);

  // ---- selection ---------------------------------------------------------------------------------------

  function select(sel) {
    const given = sel.classes && sel.classes.size === 0 ? null : sel.classes;
    const tracks = sel.tracks && sel.tracks.size === 0 ? null : sel.tracks;
    state.sel = { ...sel, classes: given, tracks };
    state.found = isEverything(state.sel) ? state.all : sumsOf(rec, state.sel);
    refresh();
  }

  function refresh() {
    const [subject, sums] = selectionText(rec, state);
    element("subject").textContent = subject;
    element("sums").textContent = sums;
    element("clear").disabled = isEverything(state.sel);
    element("zoomsel").disabled = state.sel.from === null;
    element("command").value = commandOf(rec, state.sel);
    graph.load(flameOf(rec, state.found), true);
    if (element("byclass").getAttribute("aria-pressed") === "true") graph.colourByClass(true);
    search.mark();
    drawLegend();
    tabs.show();
    lanes.redraw();
  }

  function toggled(set, value) {
    const next = new Set(set || []);
    if (!next.delete(value)) next.add(value);
    return next;
  }

  function toggleTrack(track) {
    state.cursor = track;
    lanes.showLane(track);
    select({ ...state.sel, tracks: toggled(state.sel.tracks, track) });
  }

  /** Select the threads of a lane; together with the selected ones, or, of a process, fold it. */
  function toggleLane(lane, more, onMark) {
    if (lane.track < 0 && onMark) {
      lanes.view.closed = toggled(lanes.view.closed, lane.pid);
      lanes.arrange();
      lanes.redraw();
      return;
    }
    state.cursor = lane.track;
    const chosen = state.sel.tracks && lane.tracks.every((track) => state.sel.tracks.has(track));
    const alone = chosen && state.sel.tracks.size === lane.tracks.length;
    const next = new Set(more ? state.sel.tracks || [] : []);
    for (const track of lane.tracks) if (more && chosen) next.delete(track); else next.add(track);
    select({ ...state.sel, tracks: alone ? null : next });
  }

  const toggleClass = (label) => select({ ...state.sel, classes: toggled(state.sel.classes, label) });

  // ---- a single wait -----------------------------------------------------------------------------------

  function chooseWait(row, lane = null) {
    state.wait = row;
    if (lane && lane.track >= 0) state.cursor = lane.track;
    if (row >= 0) {
      state.cursor = rec.track[row];
      tabs.choose("wait");
      say(waitLines(row).join(" · "));
    }
    tabs.show();
    lanes.redraw();
  }

  function waitLines(row) {
    const { columns } = rec;
    const runq = rec.delay[row] ? `, ${rounded(rec.delay[row], "ns")} of it run queue` : "";
    const key = (name) => { const one = rec.keys.find((each) => each.key === name); return one.labels[one.column[row]]; };
    return [
      functionOf(rec, row),
      `${key("class")}, ${rounded(rec.end[row] - rec.begin[row], "ns")}${runq}`,
      `${threadName(rec, rec.track[row])}, system call ${key("syscall")}`,
      `woken by ${key("waker")}`,
      `from ${rounded(rec.begin[row], "ns")} on`,
    ];
  }

  function hover(lane, row, event, time) {
    const lines = lane.path ? pathLines(lane.path, time) : row >= 0 ? waitLines(row) : laneLines(lane);
    showTip(element("tip"), lines, event.clientX, event.clientY);
  }

  function pathLines(path, time) {
    const at = lanes.segmentAt(path, time);
    const title = path === data.path ? path.title : `task of pid ${path.pid}, as it was read now and then: ${path.title}`;
    if (at < 0) return [title];
    const detail = path.details[path.detail[at]];
    const lines = detail ? [path === data.path ? `through ${detail}` : detail] : [];
    return [path.names[path.name[at]], `for ${rounded(path.end[at] - path.begin[at], "ns")}`, ...lines, title];
  }

  function laneLines(lane) {
    if (lane.path) return [lane.name];
    const { pid, process } = rec.data.tracks;
    const name = lane.track >= 0 ? `${threadName(rec, lane.track)} of ${process[lane.track] || "?"} (pid ${pid[lane.track]})` : `${lane.name}, pid ${lane.pid}`;
    const sum = lane.tracks.reduce((all, track) => all + weightOf(state.found.tracks, track), 0n);
    const count = lane.tracks.reduce((all, track) => all + state.found.tracks.count[track], 0);
    const placeless = lane.tracks.reduce((all, track) => all + rec.others[track + 1] - rec.others[track], 0);
    return [name, `selected: ${exactly(sum, rec.data.unit)} in ${plural(count, "wait")}`,
      ...(placeless ? [`${plural(placeless, "sum")} of short waits and samples without a time: not in the lane`] : [])];
  }

  /** Go to the next or previous wait of the cursor's lane. */
  function step(by) {
    if (state.cursor < 0) moveCursor(0);
    const [from, to] = [rec.waits[state.cursor], rec.waits[state.cursor + 1]];
    let row = state.wait >= from && state.wait < to ? state.wait + by : firstFrom(rec, from, to, lanes.view.from);
    while (row >= from && row < to && state.dim && state.dim[row]) row += by;
    if (row < from || row >= to) { say("no more waits in this lane"); return; }
    chooseWait(row);
    lanes.showWait(row);
  }

  function moveCursor(by) {
    const threads = lanes.view.lanes.filter((lane) => lane.track >= 0);
    if (!threads.length) return;
    const at = threads.findIndex((lane) => lane.track === state.cursor);
    const next = threads[at < 0 ? 0 : Math.min(Math.max(at + by, 0), threads.length - 1)];
    state.cursor = next.track;
    lanes.showLane(next.track);
    say(laneLines(next).join(" · "));
    lanes.redraw();
  }

  function showThread(track) {
    state.cursor = track;
    lanes.showLane(track);
    lanes.redraw();
    place.lanes.focus();
  }

  const say = (text) => { element("status").textContent = text; };

  // ---- panels ------------------------------------------------------------------------------------------

  function threadTable() {
    const { pid } = rec.data.tracks;
    return sumTable(rec, "Thread", state.found.tracks, (track) => `${threadName(rec, track)} (pid ${pid[track]})`,
      toggleTrack, (track) => Boolean(state.sel.tracks && state.sel.tracks.has(track)));
  }

  function keyTable(i) {
    const key = rec.keys[i];
    const isClass = key.key === "class";
    return sumTable(rec, key.title, state.found.keys[i], (at) => key.labels[at] || "[unknown]",
      isClass ? (at) => toggleClass(key.labels[at]) : null,
      (at) => isClass && Boolean(state.sel.classes && state.sel.classes.has(key.labels[at])),
      isClass ? (at) => classColour(key.labels[at], darkNow()) : null);
  }

  /** Leave out the lanes of idle threads, and select all others; or show and select them again. */
  function hideIdle(wanted) {
    lanes.view.hideIdle = wanted;
    lanes.arrange();
    const busy = new Set([...Array(rec.tracks).keys()].filter((track) => rec.hasRows(track) && !data.tracks.idle[track]));
    select({ ...state.sel, tracks: wanted ? busy : null });
    return wanted;
  }

  /** Show the classes of the recording as buttons that choose among waits, and what lanes mean besides. */
  function drawLegend() {
    const key = rec.keys.findIndex((one) => one.key === "class");
    const sums = state.all.keys[key];
    const dark = darkNow();
    element("classes").replaceChildren(...ranked(sums).map((at) => {
      const label = rec.keys[key].labels[at];
      const chip = make("button", label, "chip");
      chip.type = "button";
      chip.title = `${data.classes.find((one) => one.label === label).meaning}: click to select`;
      chip.setAttribute("aria-pressed", String(Boolean(state.sel.classes && state.sel.classes.has(label))));
      const swatch = make("i");
      swatch.style.background = classColour(label, dark);
      chip.prepend(swatch);
      chip.addEventListener("click", () => toggleClass(label));
      return chip;
    }));
    const labels = ranked(sums).map((at) => rec.keys[key].labels[at]);
    const shown = labels.includes("runqueue");
    element("lanelegend").replaceChildren(
      ...(shown ? [] : [legendItem([classColour("runqueue", dark)], "waits for a CPU")]),
      legendItem([dark ? "rgb(42 52 46)" : "rgb(226 235 226)"], rec.columns.length ? "running, or waits not drawn" : "running, tinted by short waits and waits for a CPU"),
      ...[...new Set(data.tasks.flatMap((task) => task.kinds))].filter((kind) => rec.classes.includes(kind) && !labels.includes(kind))
        .map((kind) => legendItem([classColour(kind, dark)], `${kind}, of tasks alone`)),
      ...(data.path ? [legendItem([runningColour(dark)], "running, on the critical path")] : []),
      ...(rec.moments[rec.tracks] > rec.moments[0] ? [legendItem([dark ? "rgb(255 196 120)" : "rgb(150 70 0)"], data.moment)] : []));
  }

  // ---- keys --------------------------------------------------------------------------------------------

  const LANE_KEYS = {
    ArrowLeft: () => lanes.pan(-0.1), ArrowRight: () => lanes.pan(0.1),
    a: () => lanes.pan(-0.25), d: () => lanes.pan(0.25),
    ArrowUp: () => moveCursor(-1), ArrowDown: () => moveCursor(1),
    "+": () => lanes.zoom(0.5), "=": () => lanes.zoom(0.5), w: () => lanes.zoom(0.5),
    "-": () => lanes.zoom(2), s: () => lanes.zoom(2), 0: lanes.all,
    "]": () => step(1), "[": () => step(-1),
    Enter: () => { if (state.cursor >= 0) toggleTrack(state.cursor); },
    z: () => zoomToSelection(),
  };

  function zoomToSelection() {
    const { from, to } = state.sel;
    if (from !== null) lanes.show(from - (to - from) * 0.02, to + (to - from) * 0.02);
  }

  function onKey(event) {
    const field = element("search");
    if (event.target === field) {
      if (event.key === "Escape") { field.value = ""; search.find(""); place.lanes.focus(); }
      return;
    }
    if (event.target.tagName === "INPUT" || event.target.tagName === "SELECT") return;
    const plain = !event.ctrlKey && !event.metaKey && !event.altKey;
    if ((plain && event.key === "/") || (!plain && event.key === "f" && !event.altKey)) {
      field.focus();
      field.select();
    } else if (document.activeElement === element("graph") && plain && graph.key(event)) {
      // the flame graph's own
    } else if (event.key === "Escape") {
      chooseWait(NONE);
      select(everything());
    } else if (plain && document.activeElement === place.lanes && LANE_KEYS[event.key]) {
      LANE_KEYS[event.key]();
    } else {
      return;
    }
    event.preventDefault();
  }

  // ---- the page ----------------------------------------------------------------------------------------

  function fillHead() {
    element("title").textContent = data.title;
    const sentences = data.sentences.length ? data.sentences : [selectionText(rec, state)[1]];
    element("verdict").replaceChildren(...sentences.map((text) => make("li", text)));
    for (const [term, text] of data.facts) element("facts").append(make("dt", term), make("dd", text));
    const lost = element("lost");
    lost.replaceChildren(...data.lost.map(([count, cause]) => make("li", `${count} ${cause}`)));
    element("lostcount").textContent = data.lost.length ? `Lost: ${plural(data.lost.length, "cause")}` : "Nothing was lost";
    element("about").classList.toggle("lossy", data.lost.length > 0);
    const idle = data.tracks.idle.reduce((sum, one) => sum + one, 0);
    element("idle").hidden = !idle;
    element("idle").textContent = `Hide ${idle} idle`;
    const placeless = rec.rows - rec.timed;
    if (placeless) {
      const sums = makeSums(1);
      for (let row = rec.timed; row < rec.rows; row++) addRow(sums, 0, rec, row, false);
      element("placeless").textContent = `Not in the lanes, for want of single times: ${exactly(weightOf(sums, 0), data.unit)} in sums of ${plural(sums.count[0], "short wait")}. Tables and flame graph have them.`;
    }
  }

  function readTheme() {
    lanes.readTheme();
    graph.readTheme();
    if (state.found) { drawLegend(); tabs.show(); }
  }

  function splitter() {
    const bar = element("splitter");
    const body = document.documentElement;
    const set = (height) => body.style.setProperty("--lanes", `${Math.min(Math.max(height, 60), innerHeight - 160)}px`);
    bar.addEventListener("pointerdown", (event) => { bar.setPointerCapture(event.pointerId); });
    bar.addEventListener("pointermove", (event) => {
      if (bar.hasPointerCapture(event.pointerId)) set(event.clientY - place.box.getBoundingClientRect().top);
    });
    bar.addEventListener("keydown", (event) => {
      const by = { ArrowUp: -20, ArrowDown: 20 }[event.key];
      if (!by) return;
      set(place.box.clientHeight + by);
      event.preventDefault();
    });
  }

  /** Open what a screen scrolls, so that paper shows it: facts, lanes, the whole flame graph. */
  function toPaper(wanted) {
    element("about").open = wanted;
    place.box.style.height = wanted ? `${Math.min(lanes.view.lanes.length * LANE + 8, 1200)}px` : "";
    element("view").style.height = wanted ? `${Math.min(graph.fullHeight(), 900)}px` : "";
    lanes.draw();
    graph.draw();
  }

  function pressed(id, change) {
    element(id).addEventListener("click", () => {
      element(id).setAttribute("aria-pressed", String(change(element(id).getAttribute("aria-pressed") !== "true")));
    });
  }

  connectPointer(rec, lanes, place, state, { select, chooseWait, hover, toggleLane, leave: () => { element("tip").hidden = true; } });
  place.box.addEventListener("scroll", () => { element("tip").hidden = true; lanes.redraw(); });
  new ResizeObserver(lanes.redraw).observe(place.box);
  element("sort").addEventListener("change", (event) => { lanes.view.sort = event.target.value; lanes.arrange(); lanes.redraw(); });
  pressed("group", (wanted) => { lanes.view.byProcess = wanted; lanes.arrange(); lanes.redraw(); return wanted; });
  pressed("idle", hideIdle);
  pressed("byclass", (wanted) => graph.colourByClass(wanted));
  pressed("icicle", () => graph.flip());
  element("clear").addEventListener("click", () => select(everything()));
  element("zoomsel").addEventListener("click", zoomToSelection);
  element("zoomin").addEventListener("click", () => lanes.zoom(0.5));
  element("zoomout").addEventListener("click", () => lanes.zoom(2));
  element("zoomall").addEventListener("click", lanes.all);
  element("reset").addEventListener("click", () => graph.zoomTo(0));
  element("command").addEventListener("focus", (event) => event.target.select());
  document.addEventListener("keydown", onKey);
  addEventListener("beforeprint", () => toPaper(true));
  addEventListener("afterprint", () => toPaper(false));
  themeButton(element("theme"), readTheme);
  splitter();
  fillHead();
  lanes.arrange();
  readTheme();
  element("byclass").setAttribute("aria-pressed", "true");
  refresh();
  document.body.classList.add("ready");

  /** For tests and the console. */
  window.page = {
    rec, state, lanes, graph, select, chooseWait, everything, openMs: performance.now() - opened,
    selectTimes: (from, to) => select({ ...state.sel, from, to }),
    selectTracks: (tracks) => select({ ...state.sel, tracks: tracks && new Set(tracks) }),
    selectClasses: (classes) => select({ ...state.sel, classes: classes && new Set(classes) }),
    sums: () => ({
      total: [String(weightOf(state.found.total, 0)), state.found.total.count[0]],
      keys: Object.fromEntries(rec.keys.map((key, i) => [key.key, ranked(state.found.keys[i]).map((at) =>
        [key.labels[at], String(weightOf(state.found.keys[i], at)), state.found.keys[i].count[at], String(runqOf(state.found.keys[i], at))])])),
      lengths: ranked(state.found.lengths).map((at) => [data.edges[at], String(weightOf(state.found.lengths, at)), state.found.lengths.count[at]]),
      stacks: ranked(state.found.nodes[0]).map((at) => [pathOf(rec, at).map(rec.nameOf), String(weightOf(state.found.nodes[0], at)), state.found.nodes[0].count[at]]),
      tracks: ranked(state.found.tracks).map((at) => [data.tracks.tid[at], String(weightOf(state.found.tracks, at)), state.found.tracks.count[at]]),
    }),
  };
}

openPage().catch((error) => {
  element("title").textContent = "This page could not be opened";
  element("verdict").replaceChildren(make("li", `${error}: it needs a browser of 2023 or newer (DecompressionStream).`));
  throw error;
});

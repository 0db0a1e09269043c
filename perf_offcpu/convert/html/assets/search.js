// SPDX-License-Identifier: Apache-2.0
// The search: functions in the flame graph, waits below them or of matching threads in the lanes.

/** Connect the search field; state.dim has the rows that are neither found nor of a selected class. */
function connectSearch(rec, state, graph, lanes) {
  function find(text) {
    const field = element("search");
    if (!text) field.removeAttribute("aria-invalid");
    state.pattern = text ? searchPattern(text, field) : null;
    mark();
    lanes.redraw();
  }

  /** Mark what the search finds: functions in the flame graph, waits below them or of threads in the lanes. */
  function mark() {
    const { pattern, sel } = state;
    graph.search(pattern);
    if (!pattern && !sel.classes) {
      state.dim = null;
      element("matched").textContent = "";
      return;
    }
    const nodes = pattern ? matchingNodes(pattern) : null;
    const tracks = pattern ? rec.data.tracks.comm.map((comm, track) => pattern.test(threadName(rec, track))) : null;
    state.dim = new Uint8Array(rec.rows);
    for (let row = 0; row < rec.rows; row++) {
      const found = !pattern || nodes[rec.columns.node[row]] || tracks[rec.track[row]];
      if (!found || (sel.classes && !sel.classes.has(rec.classes[rec.classOf[row]]))) state.dim[row] = 1;
    }
    element("matched").textContent = pattern ? matchedText() : "";
  }

  function matchingNodes(pattern) {
    const names = Uint8Array.from(rec.data.names.label, (label) => (pattern.test(label) ? 1 : 0));
    const found = new Uint8Array(rec.nodes);
    for (let node = 0; node < rec.nodes; node++) {
      if (names[rec.columns.name[node]] || (rec.parent[node] >= 0 && found[rec.parent[node]])) found[node] = 1;
    }
    return found;
  }

  function matchedText() {
    const sums = makeSums(1);
    eachSelected(rec, state.sel, (row) => { if (!state.dim[row] && rec.isWait(row)) addRow(sums, 0, rec, row, false); });
    if (!sums.count[0]) return "no match";
    return `${rounded(roughly(sums, 0), rec.data.unit)} in ${plural(sums.count[0], "wait")} match`;
  }

  element("search").addEventListener("input", (event) => find(event.target.value));
  return { find, mark };
}

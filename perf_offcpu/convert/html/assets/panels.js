// SPDX-License-Identifier: Apache-2.0
// The panels of a selection: its totals, tables, histogram, and a single wait. Names go into textContent only.

const SHOWN = 60;            // rows of a table before "more"

/** Return the rows of sums with weight, heaviest first. */
function ranked(sums) {
  const rows = [];
  for (let at = 0; at < sums.size; at++) if (sums.count[at]) rows.push(at);
  return rows.sort((a, b) => roughly(sums, b) - roughly(sums, a) || a - b);
}

/**
 * Make a table of sums.
 *
 * @param name returns the text of a row, or an element
 * @param click called with the index of the row that was chosen; null if rows are no buttons
 * @param chosen returns whether a row is part of the selection
 */
function sumTable(rec, title, sums, name, click = null, chosen = () => false, swatch = null) {
  const table = make("table", "", "sums");
  const head = make("tr");
  const rows = ranked(sums);
  const withRunq = rows.some((at) => runqOf(sums, at) > 0n);
  for (const [text, kind] of [[title, ""], ["time", "number"], ["share", "number"], ["count", "number"], ...(withRunq ? [["run queue", "number"]] : []), ["longest", "number"]]) {
    const cell = make("th", text, kind);
    cell.scope = "col";
    head.append(cell);
  }
  table.createTHead().append(head);
  const all = rows.reduce((sum, at) => sum + roughly(sums, at), 0);
  const body = table.createTBody();
  for (const at of rows.slice(0, SHOWN)) body.append(sumRow(rec, sums, at, all, withRunq, name(at), click, chosen(at), swatch && swatch(at)));
  if (rows.length > SHOWN) {
    const rest = rows.slice(SHOWN).reduce((sum, at) => sum + weightOf(sums, at), 0n);
    const row = make("tr", "", "more");
    row.append(make("td", `${plural(rows.length - SHOWN, "more row")}: ${exactly(rest, rec.data.unit)}`));
    row.firstChild.colSpan = 6;
    body.append(row);
  }
  if (!rows.length) body.insertRow().append(make("td", "nothing is selected"));
  return table;
}

function sumRow(rec, sums, at, all, withRunq, name, click, chosen, swatch) {
  const row = make("tr", "", chosen ? "chosen" : "");
  const weight = weightOf(sums, at);
  row.dataset.weight = String(weight);
  row.dataset.count = String(sums.count[at]);
  const first = make("td", "", "name");
  if (swatch) {
    const mark = make("i", "", "swatch");
    mark.style.background = swatch;
    first.append(mark);
  }
  if (click) {
    const button = make("button", name);
    button.type = "button";
    button.setAttribute("aria-pressed", String(chosen));
    button.addEventListener("click", () => click(at));
    first.append(button);
  } else {
    first.append(name);
  }
  const part = all ? roughly(sums, at) / all : 0;
  row.append(first);
  const time = make("td", rounded(Number(weight), rec.data.unit), "number");
  time.title = `${grouped(weight)} ${unitName(rec.data.unit)}`;
  const percent = make("td", `${(100 * part).toFixed(1)} %`, "number share");
  percent.style.setProperty("--part", `${100 * part}%`);
  row.append(time, percent, make("td", grouped(sums.count[at]), "number"));
  if (withRunq) row.append(make("td", rounded(Number(runqOf(sums, at)), rec.data.unit), "number"));
  row.append(make("td", sums.longest[at] ? rounded(sums.longest[at], rec.data.unit) : "", "number"));
  return row;
}

/** Return the table of stacks: the function of the program, the kernel's, and all frames on request. */
function stackTable(rec, found, dark) {
  const sums = found.nodes.find((one) => one && one.count.some((count) => count > 0)) || found.nodes[0];
  return sumTable(rec, "Stack", sums, (node) => {
    const details = make("details");
    const path = pathOf(rec, node);
    const [comm, leaf] = [rec.nameOf(path[0]), path.length > 1 ? rec.nameOf(node) : ""];
    const program = programFunction(rec, node);
    details.append(make("summary", `${comm}: ${program}${leaf && leaf !== program ? ` … ${leaf}` : ""}`));
    details.addEventListener("toggle", () => {
      if (details.open && details.children.length < 2) details.append(frameList(rec, path.slice(1)));
    });
    return details;
  }, null, undefined, (node) => (found.nodeClass[node] < 0 ? "" : classColour(rec.classes[found.nodeClass[node]], dark)));
}

function frameList(rec, nodes) {
  const list = make("ol", "", "frames");
  for (const node of [...nodes].reverse()) {
    const item = make("li", rec.nameOf(node), ["user", "kernel", "root", "mark", "user"][rec.kindOf(node)]);
    if (rec.dsoOf(node)) item.append(make("small", ` ${rec.dsoOf(node)}`));
    list.append(item);
  }
  return list;
}

/** Return the histogram of the lengths of single waits; sums of short waits have no lengths. */
function histogram(rec, found) {
  const { lengths, summed } = found;
  const used = ranked(lengths);
  const box = make("div", "", "histogram");
  if (!used.length && !summed.count[0]) return box.append(make("p", "no waits are selected")), box;
  const most = Math.max(1, ...used.map((at) => lengths.count[at]));
  const heaviest = Math.max(1, ...used.map((at) => roughly(lengths, at)));
  const table = make("table", "", "sums");
  const head = table.createTHead().insertRow();
  for (const text of ["length of waits", "waits", "", "time", ""]) head.append(make("th", text, text === "length of waits" ? "" : "number"));
  const body = table.createTBody();
  for (let at = Math.min(...used); used.length && at <= Math.max(...used); at++) {
    const row = body.insertRow();
    row.dataset.from = rec.data.edges[at];
    row.dataset.weight = String(weightOf(lengths, at));
    row.dataset.count = String(lengths.count[at]);
    const above = rec.data.edges[at + 1];
    row.append(make("td", `${rounded(Number(rec.data.edges[at]), "ns")} – ${above ? rounded(Number(above), "ns") : "…"}`, "name"));
    row.append(make("td", grouped(lengths.count[at]), "number"), bar(lengths.count[at] / most));
    row.append(make("td", lengths.count[at] ? rounded(roughly(lengths, at), rec.data.unit) : "", "number"), bar(roughly(lengths, at) / heaviest));
  }
  box.append(table);
  if (summed.count[0]) {
    box.append(make("p", `Not in the buckets: ${exactly(weightOf(summed, 0), rec.data.unit)} in sums of ${plural(summed.count[0], "wait")} that were too short to be recorded singly, or have no time.`, "note"));
  }
  return box;
}

function bar(part) {
  const cell = make("td", "", "meter");
  const fill = make("i");
  fill.style.width = `${Math.max(part * 100, part ? 1 : 0)}%`;
  cell.append(fill);
  return cell;
}

/** Return the description of a wait: times, keys, stack, and its waker's stack. */
function waitPanel(rec, row, showThread) {
  const box = make("div", "", "wait");
  if (row < 0) return box.append(make("p", "Click a wait in a lane, or move with [ and ] along the lane of the cursor.", "note")), box;
  const { columns, data } = rec;
  const list = make("dl");
  const line = (term, content) => list.append(make("dt", term), content instanceof Node ? content : make("dd", content));
  const [begin, end] = [rec.begin[row], rec.end[row]];
  const runq = rec.delay[row];
  line("Thread", threadButton(rec, rec.track[row], showThread));
  const [lasted, weight] = [BigInt(rec.lengthOf(row)), weightOf(columns, row)];
  line("Lasted", exactly(columns.length ? lasted : weight, data.unit));
  if (runq) line("of it run queue", `${exactly(BigInt(runq), data.unit)}: woken, not yet running`);
  if (columns.length && lasted !== weight) line("Stands for", `${exactly(weight, data.unit)} in about ${plural(columns.count[row], "wait")}: drawn by length`);
  line("Began", `${seconds(rec, begin)} s (${rounded(begin, "ns")} after the first wait)`);
  line("Ended", `${seconds(rec, end)} s${columns.cpu[row] >= 0 ? `, on CPU ${columns.cpu[row]}` : ""}`);
  for (const key of rec.keys) {
    const rank = key.column[row];
    const holder = key.tids ? trackOf(rec, data.tracks.pid[rec.track[row]], key.tids[rank]) : NONE;
    if (holder >= 0) line(key.title, threadButton(rec, holder, showThread));
    else if (key.labels[rank]) line(key.title, key.labels[rank]);
  }
  const waker = columns.waker_track[row];
  if (waker >= 0 && !(columns.flags[row] & data.flags["ended by an interrupt"])) line("Waker's thread", threadButton(rec, waker, showThread));
  const notes = Object.entries(data.flags).filter(([name, flag]) => name !== "wait" && columns.flags[row] & flag).map(([name]) => name);
  if (notes.length) line("Notes", notes.join(", "));
  box.append(list, make("h3", "Stack, innermost first"), frameList(rec, pathOf(rec, columns.node[row]).slice(1)));
  if (columns.waker_node[row] >= 0) {
    box.append(make("h3", "Stack of the waker"), frameList(rec, pathOf(rec, columns.waker_node[row]).slice(1)));
  }
  return box;
}

const trackOf = (rec, pid, tid) =>
  rec.data.tracks.tid.findIndex((id, track) => id === tid && tid >= 0 && rec.data.tracks.pid[track] === pid);

function threadButton(rec, track, showThread) {
  const cell = make("dd");
  const { pid } = rec.data.tracks;
  const button = make("button", `${threadName(rec, track)} (pid ${pid[track] < 0 ? "?" : pid[track]})`);
  button.type = "button";
  button.addEventListener("click", () => showThread(track));
  cell.append(button);
  return cell;
}

/** Return what is selected in words. */
function selectionText(rec, state) {
  const { sel, found } = state;
  const parts = [];
  if (sel.tracks) parts.push(sel.tracks.size === 1 ? threadName(rec, [...sel.tracks][0]) : plural(sel.tracks.size, "thread"));
  if (sel.from !== null) parts.push(`${rounded(sel.to - sel.from, "ns")} from ${rounded(Math.max(sel.from, 0), "ns")}`);
  if (sel.classes) parts.push([...sel.classes].join(", "));
  if (!rec.hasWaits) return [parts.join(" · ") || "Everything", `${exactly(weightOf(found.total, 1), rec.data.unit)} in ${plural(found.total.count[1], "sample")}`];
  const waiting = `${exactly(weightOf(found.total, 0), rec.data.unit)} in ${plural(found.total.count[0], "wait")}`;
  const running = found.total.count[1] ? `, ${exactly(weightOf(found.total, 1), rec.data.unit)} in ${plural(found.total.count[1], rec.data.moment)}` : "";
  const summed = weightOf(found.summed, 0);
  const sums = found.summed.count[0] ? `, of it ${rounded(Number(summed), rec.data.unit)} in sums of short waits: not in the lanes` : "";
  return [parts.join(" · ") || "Everything", `${waiting}${sums}${running}`];
}

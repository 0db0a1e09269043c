// SPDX-License-Identifier: Apache-2.0
// The page of a flame graph: title, facts, search, buttons.

(() => {
  const profile = JSON.parse(element("profile").textContent);
  const place = {
    canvas: element("graph"), space: element("space"), box: element("view"),
    tip: element("tip"), status: element("status"), legend: element("legend"),
  };
  const graph = flameGraph(place, (node) => { element("reset").disabled = node === 0; });

  function fillPage() {
    element("title").textContent = profile.title;
    element("summary").textContent = graph.summary() || "no samples";
    for (const [term, text] of profile.facts) element("facts").append(make("dt", term), make("dd", text));
  }

  function search(text) {
    const field = element("search");
    element("matched").textContent = graph.search(text ? searchPattern(text, field) : null);
    if (!text) field.removeAttribute("aria-invalid");
  }

  function onKey(event) {
    const field = element("search");
    if (event.target === field) {
      if (event.key === "Escape") { field.value = ""; search(""); place.canvas.focus(); }
      return;
    }
    if (event.key === "/" || ((event.ctrlKey || event.metaKey) && event.key === "f")) {
      field.focus();
      field.select();
    } else if (event.key === "Escape") {
      graph.zoomTo(0);
    } else if (document.activeElement !== place.canvas || !graph.key(event)) {
      return;
    }
    event.preventDefault();
  }

  graph.load(profile);
  fillPage();
  element("colours").hidden = !graph.hasClasses() || profile.before !== null;
  element("reset").addEventListener("click", () => graph.zoomTo(0));
  element("flip").addEventListener("click", () => { element("flip").textContent = graph.flip() ? "Flame" : "Icicle"; });
  element("colours").addEventListener("click", () => {
    const byClass = graph.colourByClass(element("colours").getAttribute("aria-pressed") !== "true");
    element("colours").setAttribute("aria-pressed", String(byClass));
  });
  themeButton(element("theme"), graph.readTheme);
  element("search").addEventListener("input", (event) => search(event.target.value));
  document.addEventListener("keydown", onKey);
  window.flamegraph = graph;
})();

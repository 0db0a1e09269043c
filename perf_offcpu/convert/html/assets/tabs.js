// SPDX-License-Identifier: Apache-2.0
// Tabs: one panel that shows one of several views, by mouse and keys.

/**
 * Make tabs.
 *
 * @param views [id, title, function that returns the view's element]
 */
function makeTabs(views) {
  let chosen = views[0][0];

  function moveFrom(id, event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    chosen = views[(views.findIndex(([one]) => one === id) + by + views.length) % views.length][0];
    show();
    element(`tab-${chosen}`).focus();
    event.preventDefault();
  }

  function show() {
    for (const [id] of views) {
      element(`tab-${id}`).setAttribute("aria-selected", String(id === chosen));
      element(`tab-${id}`).tabIndex = id === chosen ? 0 : -1;
    }
    element("panel").setAttribute("aria-labelledby", `tab-${chosen}`);
    element("panel").replaceChildren(views.find(([id]) => id === chosen)[2]());
  }

  for (const [id, title] of views) {
    const tab = make("button", title);
    tab.type = "button";
    tab.id = `tab-${id}`;
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", "panel");
    tab.addEventListener("click", () => { chosen = id; show(); });
    tab.addEventListener("keydown", (event) => moveFrom(id, event));
    element("tabs").append(tab);
  }
  return { choose: (id) => { chosen = id; }, show };
}

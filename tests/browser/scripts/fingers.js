// SPDX-License-Identifier: Apache-2.0
const canvas = document.getElementById("lanes"), box = canvas.getBoundingClientRect();
const fire = (name, pointerId, x) => canvas.dispatchEvent(new PointerEvent(name,
  { clientX: box.left + x, clientY: box.top + 20, pointerId, pointerType: "touch", bubbles: true }));
const times = () => [page.lanes.view.from, page.lanes.view.to];
page.lanes.zoom(0.5);
const before = times();
fire("pointerdown", 1, 500);
fire("pointermove", 1, 450);
fire("pointerup", 1, 450);
const panned = times();
fire("pointerdown", 1, 500);
fire("pointerdown", 2, 600);
fire("pointermove", 1, 400);
fire("pointermove", 2, 700);
fire("pointerup", 1, 400);
fire("pointerup", 2, 700);
return [before, panned, times(), page.state.sel.from];

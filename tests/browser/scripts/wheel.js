// SPDX-License-Identifier: Apache-2.0
const [x, y, options] = arguments;
document.getElementById("lanes").dispatchEvent(new WheelEvent("wheel",
  { clientX: x, clientY: y, bubbles: true, cancelable: true, ...options }));
return [page.lanes.view.from, page.lanes.view.to];

// SPDX-License-Identifier: Apache-2.0
const [x0, y0, x1, y1, shift] = arguments;
const target = document.elementFromPoint(x0, y0);
const mouse = { button: 0, pointerId: 1, pointerType: "mouse", bubbles: true, shiftKey: shift };
const fire = (name, clientX, clientY) =>
  target.dispatchEvent(new PointerEvent(name, { clientX, clientY, ...mouse }));
fire("pointerdown", x0, y0);
for (let i = 1; i <= 5; i++) fire("pointermove", x0 + (x1 - x0) * i / 5, y0 + (y1 - y0) * i / 5);
fire("pointerup", x1, y1);

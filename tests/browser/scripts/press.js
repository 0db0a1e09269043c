// SPDX-License-Identifier: Apache-2.0
const one = document.querySelector(arguments[0]);
one.scrollIntoView({ block: "center" });
const box = one.getBoundingClientRect();
return [box.x + Math.min(box.width / 2, 40), box.y + box.height / 2];

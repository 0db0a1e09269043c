// SPDX-License-Identifier: Apache-2.0
const canvas = document.getElementById("graph"), page = canvas.getBoundingClientRect();
const scale = canvas.width / page.width;
const [x, y] = [(arguments[0] - page.left) * scale, (arguments[1] - page.top) * scale];
return Array.from(canvas.getContext("2d").getImageData(x, y, 1, 1).data).slice(0, 3);

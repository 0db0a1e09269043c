// SPDX-License-Identifier: Apache-2.0
const canvas = document.getElementById("lanes"), box = canvas.getBoundingClientRect();
const scale = canvas.width / box.width, pen = canvas.getContext("2d");
const [x, y] = [(arguments[0] - box.left) * scale, (arguments[1] - box.top - 6) * scale];
return [...pen.getImageData(x, y, 1, 1).data].slice(0, 3);

// SPDX-License-Identifier: Apache-2.0
const found = new Set();
for (const canvas of document.querySelectorAll("canvas")) {
  if (!canvas.width || !canvas.height) continue;
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  for (let i = 0; i < data.length; i += 4) found.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
}
return found.size;

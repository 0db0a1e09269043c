// SPDX-License-Identifier: Apache-2.0
return [...document.querySelectorAll("button, input, select")].filter((one) => {
  const box = one.getBoundingClientRect();
  return one.checkVisibility() && (box.right > innerWidth + 1 || box.left < -1 || box.width < 1);
}).map((one) => one.id || one.textContent);

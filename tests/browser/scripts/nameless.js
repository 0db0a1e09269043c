// SPDX-License-Identifier: Apache-2.0
const named = (one) => one.ariaLabel || one.getAttribute("aria-labelledby") || one.textContent.trim();
return [...document.querySelectorAll("button, input, select, canvas, section, [role]")]
  .filter((one) => !named(one) && one.ariaHidden !== "true" && !one.hidden)
  .map((one) => one.outerHTML.slice(0, 80));

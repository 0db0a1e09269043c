// SPDX-License-Identifier: Apache-2.0
// Numbers as text, and colours by theme, for all pages.
"use strict";

const GIGA = 1e9;            // weights come as two columns, hi * GIGA + lo, each summed exactly in doubles
const element = (id) => document.getElementById(id);

/** Return the exact sum of two parts; a BigInt, because sums over threads exceed 2^53 ns. */
const whole = (hi, lo) => BigInt(hi) * BigInt(GIGA) + BigInt(lo);
const grouped = (number) => number.toLocaleString("en-US");
const share = (part, all) => `${all > 0 ? ((100 * part) / all).toFixed(2) : "0.00"} %`;
const plural = (number, word) => `${grouped(number)} ${word}${Number(number) === 1 ? "" : "s"}`;
const unitName = (unit) => (unit === "ns" ? "ns" : "events");

/** Return a weight with four digits in the unit that suits it. */
function rounded(weight, unit) {
  if (unit !== "ns") return grouped(Math.round(weight));
  const [name, size] = [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]].find(([, s]) => weight >= s) || ["ns", 1];
  return `${(weight / size).toLocaleString("en-US", { maximumSignificantDigits: 4 })} ${name}`;
}

/** Return an exact weight, a BigInt, after the rounded one where that is shorter. */
function exactly(weight, unit) {
  const text = `${grouped(weight)} ${unitName(unit)}`;
  return unit === "ns" && weight >= 1000n ? `${rounded(Number(weight), unit)} (${text})` : text;
}

/** Return a new element with a text and, perhaps, a class. */
function make(tag, text = "", name = "") {
  const made = document.createElement(tag);
  if (text !== "") made.textContent = text;
  if (name) made.className = name;
  return made;
}

// ---- colours -------------------------------------------------------------------------------------------

/** Hue, saturation and lightness (light page, dark page) of wait classes. */
const CLASS_COLOURS = {
  lock: [2, 68, 58, 56], disk: [268, 48, 58, 62], network: [140, 42, 45, 48], pipe: [186, 55, 46, 48],
  sleep: [215, 12, 66, 48], poll: [213, 60, 62, 60], fault: [318, 55, 58, 62], child: [28, 42, 48, 50],
  runqueue: [42, 90, 52, 56], throttled: [22, 92, 52, 56], other: [60, 4, 60, 52],
};
const classColour = (label, dark) => {
  const [hue, saturation, light, night] = CLASS_COLOURS[label] || CLASS_COLOURS.other;
  return `hsl(${hue} ${saturation}% ${dark ? night : light}%)`;
};

function darkNow() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Let a button go through the themes; `changed` is called after each change, the system's included. */
function themeButton(button, changed) {
  button.addEventListener("click", () => {
    const root = document.documentElement;
    const next = { auto: "light", light: "dark", dark: "auto" }[root.dataset.theme || "auto"];
    if (next === "auto") delete root.dataset.theme; else root.dataset.theme = next;
    button.textContent = `Theme: ${next}`;
    changed();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
}

/** Return an entry of a legend: a swatch of one or more colours, and what they mean. */
function legendItem(colours, text) {
  const item = make("span");
  for (const colour of colours) {
    const swatch = make("i");
    swatch.style.background = colour;
    item.append(swatch);
  }
  item.append(text);
  return item;
}

/** Return a regular expression for a search; of an invalid one the plain text, and mark the field. */
function searchPattern(text, field) {
  try {
    const pattern = new RegExp(text, "i");
    field.removeAttribute("aria-invalid");
    return pattern;
  } catch {
    field.setAttribute("aria-invalid", "true");
    return new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "i");
  }
}

/** Place a tooltip of some lines next to the pointer. */
function showTip(tip, lines, x, y) {
  if (lines) tip.replaceChildren(...lines.map((line) => make("div", line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const below = y + 16 + box.height < innerHeight;
  tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - box.width - 6))}px`;
  tip.style.top = `${below ? y + 16 : Math.max(4, y - box.height - 10)}px`;
}

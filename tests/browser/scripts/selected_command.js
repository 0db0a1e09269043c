// SPDX-License-Identifier: Apache-2.0
const [from, to, tracks, classes] = arguments;
page.select({ from, to, tracks: new Set(tracks), classes: new Set(classes) });
return [document.getElementById("command").value, page.sums()];

// SPDX-License-Identifier: Apache-2.0
const { lanes, rec } = page;
for (let i = 0; i < 40; i++) { lanes.zoom(0.3); lanes.draw(); }
lanes.all();
for (let row = 0; row < rec.waits[rec.tracks]; row++) {
  page.chooseWait(row);
  lanes.showWait(row);
  lanes.draw();
}
return page.sums().total[0];

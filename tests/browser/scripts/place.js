// SPDX-License-Identifier: Apache-2.0
const { lanes, rec } = page, box = document.getElementById("lanes").getBoundingClientRect();
const lane = lanes.view.lanes.findIndex((one) => rec.data.tracks.tid[one.track] === arguments[0]);
return [box.left + lanes.xOf(arguments[1]), box.top + lanes.laneTop(lane) + 8];

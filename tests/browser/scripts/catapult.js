// SPDX-License-Identifier: Apache-2.0
const [text, done] = arguments;
const frame = document.createElement("iframe");
frame.src = "/assets/catapult_trace_viewer.html";
frame.onload = async () => {
  const { tr } = frame.contentWindow, model = new tr.Model();
  await new tr.importer.Import(model).importTracesWithProgressDialog([text]);
  const threads = Object.values(model.processes).flatMap((one) => Object.values(one.threads));
  done({
    warnings: model.importWarnings.map((one) => one.message),
    processes: Object.values(model.processes).map((one) => [one.pid, one.name]),
    threads: threads.map((one) => [one.parent.pid, one.tid, one.name]),
    slices: threads.flatMap((one) => one.sliceGroup.slices.map((slice) =>
      [one.tid, slice.category, slice.title, slice.start, slice.duration])),
    flows: model.flowEvents.length,
    instants: model.instantEvents.length + threads.flatMap((one) => one.instantEvents ?? []).length,
  });
};
document.body.append(frame);

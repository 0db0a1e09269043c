// SPDX-License-Identifier: Apache-2.0
const [done, requests] = [arguments[1], arguments[0]];
if (!window.engine) {
  const worker = new Worker("/engine_bundle.js"), channel = new MessageChannel();
  worker.postMessage({ enginePort: channel.port1 }, [channel.port1]);
  window.engine = channel.port2;
}
const parts = [];
window.engine.onmessage = ({ data }) => {
  parts.push(btoa(Array.from(new Uint8Array(data), (byte) => String.fromCharCode(byte)).join("")));
  done(parts);
};
for (const text of requests) {
  window.engine.postMessage(Uint8Array.from(atob(text), (char) => char.charCodeAt(0)));
}

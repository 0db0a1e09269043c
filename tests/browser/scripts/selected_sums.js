// SPDX-License-Identifier: Apache-2.0
const [span, tids, classes] = arguments, { rec } = page, origin = BigInt(rec.data.origin);
const since = (ns) => Number(BigInt(ns) - origin);
const tracks = tids && new Set([...rec.data.tracks.tid.keys()]
  .filter((track) => tids.includes(rec.data.tracks.tid[track])));
const [from, to] = span ? span.map(since) : [null, null];
page.select({ from, to, tracks, classes: classes && new Set(classes) });
return page.sums();

// SPDX-License-Identifier: Apache-2.0
// Sleeps 100 times 5 ms below functions whose names a profile should show.
"use strict";
const cell = new Int32Array(new SharedArrayBuffer(4));
function waitForDisk() {
	for (let i = 0; i < 2; i++) Atomics.wait(cell, 0, 0, 5);
}
function handleRequest(n) {
	let sum = 0;
	for (let i = 0; i < 20000; i++) sum += Math.sqrt(i * n);
	waitForDisk();
	return sum;
}
function main() {
	let sum = 0;
	for (let n = 0; n < 50; n++) sum += handleRequest(n);
	return sum;
}
main();

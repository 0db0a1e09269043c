// SPDX-License-Identifier: Apache-2.0
const blocked = [];
const note = (event) => blocked.push(event.effectiveDirective);
document.addEventListener("securitypolicyviolation", note);
const added = document.createElement("script");
added.textContent = "window.hacked = 1";
document.body.append(added);
new Image().src = "http://127.0.0.1:9/x.png";
return fetch("data:,x").then(() => "fetched", () => "refused").then((answer) =>
    new Promise((done) => setTimeout(() => done([answer, typeof hacked, blocked.sort()]), 100)));

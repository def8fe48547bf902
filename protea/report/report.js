"use strict";

// A report has its content in the page.
start(JSON.parse(document.getElementById("content").textContent));
document.getElementById("made").textContent = `Made by Protea ${content.made.version} on ${content.made.date}, from the files of the runs alone.`;
keepFitting();

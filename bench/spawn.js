// See spawn.lua.  An async function runs at once until its first await; the
// await makes it one that runs later, as in vigil and Go.
'use strict';
const { measure } = require('./support.js');

let count;

async function trivial() {
  await null;
  count++;
}

measure(async (n, alive) => {
  count = 0;
  for (let i = 0; i < n / alive; i++) {
    for (let j = 0; j < alive; j++) trivial();
    await null;
  }
  return count;
});

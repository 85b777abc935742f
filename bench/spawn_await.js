// See spawn_await.lua.
'use strict';
const { measure } = require('./support.js');

async function task(value) {
  await null;
  return value;
}

measure(async (n, batch) => {
  const spawned = [];
  let count = 0;
  for (let i = 0; i < n / batch; i++) {
    for (let j = 0; j < batch; j++) spawned[j] = task(1);
    for (const promise of spawned) count += await promise;
  }
  return count;
});

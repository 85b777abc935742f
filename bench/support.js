// What the Node contenders share.
'use strict';

function cpu() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

// Runs a tenth of the work to warm up, then all of it; work returns how many
// times it did what it does n times.
exports.measure = async function (work) {
  const [n, ...sizes] = process.argv.slice(2).map(Number);
  await work(Math.floor(n / 10), ...sizes);
  const start = cpu();
  const done = await work(n, ...sizes);
  console.log('rate', n / (cpu() - start));
  if (done !== n) throw new Error(`did ${done} instead of ${n}`);
};

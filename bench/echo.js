// See echo.lua.
'use strict';
const net = require('net');

const server = net.createServer((socket) => {
  socket.on('data', (data) => socket.write(data));
  socket.on('error', () => socket.destroy());
});

server.listen({
  host: '127.0.0.1', port: 0, backlog: Number(process.argv[2]),
}, () => console.log(server.address().port));

-- echo_server.lua: sends back what it receives, to any number of clients.
--
-- Usage: lua5.4 examples/echo_server.lua [PORT]
-- Serves on 127.0.0.1:PORT (0: any) until Ctrl-C.  Without an argument it is
-- its own client, and ends.

local vigil = require "vigil"

-- A coroutine for each connection.  The connection is closed at its end.
local function echo(conn)
  while true do
    local data = conn:read() -- nil at the end of input, or on an error
    if not data or not conn:write(data) then break end
  end
end

local function try_it(host, port)
  local conn <close> = assert(vigil.tcp.connect(host, port, 5))
  for _, word in ipairs { "one", "two", "three" } do
    assert(conn:write(word .. "\n"))
    print(word, "->", conn:read("line", 5))
  end
end

vigil.run(function()
  local server <close> = assert(vigil.tcp.listen("127.0.0.1",
    tonumber(arg[1]) or 0))
  local host, port = server:sockname()
  print(("listening on %s:%d"):format(host, port))
  io.stdout:flush()
  local _ <close> = vigil.spawn(server.serve, server, echo)
  if arg[1] then
    vigil.await(assert(vigil.signal "INT"))
    print "stopping" -- leaving the block closes connections and server
  else
    try_it(host, port)
  end
end)

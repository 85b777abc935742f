-- port_forwarder.lua: accepts connections and passes their bytes on to
-- another server, both ways; an end of input, too.
--
-- Usage: lua5.4 examples/port_forwarder.lua [PORT HOST TARGET_PORT]
-- Serves on 127.0.0.1:PORT until Ctrl-C.  Without arguments it forwards to a
-- server of its own, and ends.

local vigil = require "vigil"

local function copy(from, to)
  while true do
    local data = from:read()
    if not data then break end
    if not to:write(data) then return end -- waits while `to` is slow
  end
  to:shutdown() -- no more will come; the other way goes on
end

local function forwarder(host, port)
  return function(conn)
    local target <close>, err = vigil.tcp.connect(host, port, 10)
    if not target then return print("no connection:", err) end
    vigil.await_all_or_fail {
      vigil.spawn(copy, conn, target),
      vigil.spawn(copy, target, conn),
    }
  end
end

local function shout(conn)
  conn:write((conn:read "all"):upper())
end

local function try_it(host, port)
  local conn <close> = assert(vigil.tcp.connect(host, port, 5))
  conn:write "louder, "
  conn:write "please"
  conn:shutdown()
  print(conn:read("all", 5))
end

vigil.run(function()
  local function listen(port)
    return assert(vigil.tcp.listen("127.0.0.1", port))
  end
  local target <close> = listen(0)
  local host, port = target:sockname()
  local _ <close> = vigil.spawn(target.serve, target, shout)
  if arg[1] then host, port = arg[2], tonumber(arg[3]) end

  local server <close> = listen(tonumber(arg[1]) or 0)
  print(("listening on %s:%d"):format(server:sockname()))
  io.stdout:flush()
  local _ <close> = vigil.spawn(server.serve, server, forwarder(host, port))
  if not arg[1] then return try_it(server:sockname()) end
  vigil.await(assert(vigil.signal "INT"))
end)

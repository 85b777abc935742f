-- chat_server.lua: each line goes to everybody.  A client has two coroutines:
-- one reads from it, one writes to it, so that a slow one holds up nobody.
--
-- Usage: lua5.4 examples/chat_server.lua [PORT]     then: nc 127.0.0.1 PORT
-- Serves until Ctrl-C.  Without an argument two clients of its own talk.

local vigil = require "vigil"

local outboxes = {} -- by name of the client

local function say(text)
  for _, outbox in pairs(outboxes) do
    outbox:try_send(text .. "\n") -- dropped where a client is 100 behind
  end
end

local function chat(conn)
  conn:write "your name?\n"
  local name = conn:read("line", 60)
  if not name or outboxes[name] then return end
  local outbox <close> = vigil.channel(100)
  local _ <close> = vigil.spawn(function()
    for text in outbox do conn:write(text) end
  end)
  outboxes[name] = outbox
  say(name .. " is here")
  for line in function() return (conn:read "line") end do
    say(name .. ": " .. line)
  end
  outboxes[name] = nil
  say(name .. " has left")
end

local function try_it(host, port)
  local function join(name)
    local conn = assert(vigil.tcp.connect(host, port, 5))
    assert(conn:read("line", 5) == "your name?")
    conn:write(name .. "\n")
    print(name, conn:read("line", 5))
    return conn
  end
  local ann, bob = join "Ann", join "Bob"
  bob:write "hello\n"
  for _ = 1, 2 do print("Ann", ann:read("line", 5)) end
  ann:close()
  for _ = 1, 2 do print("Bob", bob:read("line", 5)) end
end

vigil.run(function()
  local server <close> = assert(vigil.tcp.listen("127.0.0.1",
    tonumber(arg[1]) or 0))
  print(("listening on %s:%d"):format(server:sockname()))
  io.stdout:flush()
  local _ <close> = vigil.spawn(server.serve, server, chat)
  if not arg[1] then return try_it(server:sockname()) end
  vigil.await(assert(vigil.signal "INT"))
end)

-- TCP echo servers.  Each listens on a free port of 127.0.0.1, says which on
-- its first line, and serves until it is killed; bench/load.c is the client.

local support = dofile "bench/support.lua"
local contenders = {}

local function ready(port)
  print(math.tointeger(port))
  io.stdout:flush()
end

function contenders.vigil(backlog)
  local vigil = require "vigil"

  vigil.run(function()
    local server = assert(vigil.tcp.listen("127.0.0.1", 0,
      { backlog = backlog }))
    local _, port = server:sockname()
    ready(port)
    server:serve(function(conn)
      while true do
        local data = conn:read()
        if not data then break end
        conn:write(data)
      end
    end)
  end)
end

local function luv_server(backlog, serve)
  local uv = require "luv"

  local server = uv.new_tcp()
  assert(server:bind("127.0.0.1", 0))
  assert(server:listen(backlog, function(err)
    assert(not err, err)
    local client = uv.new_tcp()
    assert(server:accept(client))
    serve(client)
  end))
  ready(server:getsockname().port)
  uv.run()
end

function contenders.luv_callbacks(backlog)
  luv_server(backlog, function(client)
    client:read_start(function(err, data)
      if err or not data then
        client:close()
      else
        client:write(data)
      end
    end)
  end)
end

-- A coroutine for each connection; reads stay armed, and what nobody waits
-- for yet is kept for the next read.
function contenders.luv_coroutines(backlog)
  local running, resume, yield = coroutine.running, coroutine.resume,
    coroutine.yield

  local function reader(client)
    local waiting, kept, ended
    client:read_start(function(err, data)
      ended = err or not data
      if waiting then
        local co = waiting
        waiting = nil
        assert(resume(co, data))
      elseif data then
        kept = kept and kept .. data or data
      end
    end)
    return function()
      if kept then
        local data = kept
        kept = nil
        return data
      end
      if ended then return nil end
      waiting = running()
      return yield()
    end
  end

  luv_server(backlog, function(client)
    coroutine.wrap(function()
      for data in reader(client) do client:write(data) end
      client:close()
    end)()
  end)
end

function contenders.cqueues(backlog)
  local cqueues = require "cqueues"
  local socket = require "cqueues.socket"

  local controller = cqueues.new()
  local server = socket.listen {
    host = "127.0.0.1", port = 0, backlog = backlog,
  }
  assert(server:listen())
  local _, _, port = server:localname()
  ready(port)
  controller:wrap(function()
    for conn in server:clients() do
      controller:wrap(function()
        conn:setmode("bn", "bn")
        while true do
          local data = conn:read(-4096)
          if not data then break end
          conn:write(data)
        end
        conn:close()
      end)
    end
  end)
  assert(controller:loop())
end

support.run(contenders)

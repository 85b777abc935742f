-- timeout.lua: three ways to wait no longer than that: for one call, for
-- several calls together, and for a whole block of code.
--
-- Usage: lua5.4 examples/timeout.lua

local vigil = require "vigil"

vigil.run(function()
  local silent = vigil.channel()
  local start = vigil.now()
  local function passed() return ("%.2f s"):format(vigil.now() - start) end

  -- One call: a number of seconds.  Methods return nil and an error.
  local value, err = silent:recv(0.05)
  print("one call:", value, err.kind, passed())

  -- Several calls: a token is a deadline, fixed when it is made.
  local deadline = vigil.timeout(0.05)
  for i = 1, 2 do
    value, err = silent:recv(deadline)
    print("call " .. i .. ":", value, err.kind, passed())
  end

  -- A block: whatever waits inside is cut off, however deep.  Blocks nest;
  -- the error is raised out of the one whose time is up.
  local ok, failure = pcall(vigil.with_timeout, 0.05, function()
    vigil.with_timeout(60, function()
      while true do
        vigil.pcall(vigil.sleep, 10) -- does not swallow it; pcall would
      end
    end)
  end)
  print("a block:", ok, failure.kind, passed())

  -- What has happened already is not lost to a timeout of 0.
  local buffered = vigil.channel(1)
  buffered:send "there"
  print("timeout 0:", buffered:recv(0))
end)

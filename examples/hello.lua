-- hello.lua: coroutines that wait, side by side.
--
-- Usage: lua5.4 examples/hello.lua

local vigil = require "vigil"

local function greet(name, delay)
  vigil.sleep(delay) -- only this coroutine waits
  print("hello, " .. name)
  return #name
end

vigil.run(function()
  local start = vigil.now()
  local world = vigil.spawn(greet, "world", 0.2)
  local lua = vigil.spawn(greet, "Lua", 0.1)
  local letters = vigil.await(world) + vigil.await(lua)
  print(("%d letters in about %.1f seconds"):format(letters,
    vigil.now() - start))
end)

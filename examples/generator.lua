-- generator.lua: a plain Lua generator that waits.  To the loop that uses it
-- it is an ordinary iterator; while it waits, other coroutines run.
--
-- Usage: lua5.4 examples/generator.lua

local vigil = require "vigil"

local wrap, yield = vigil.coroutine.wrap, vigil.coroutine.yield

-- Stands for a service that gives its records page by page, and slowly.
local function fetch_page(number)
  vigil.sleep(0.02)
  if number > 3 then return nil end
  return { number * 10 + 1, number * 10 + 2 }
end

local function records()
  return wrap(function()
    for number = 1, math.huge do
      local page = fetch_page(number) -- waits
      if not page then return end
      for _, record in ipairs(page) do yield(record) end -- gives
    end
  end)
end

-- Generators can be put on top of each other.
local function even(source)
  return wrap(function()
    for record in source do
      if record % 2 == 0 then yield(record) end
    end
  end)
end

vigil.run(function()
  local ticks = 0
  local ticker <close> = vigil.spawn(function()
    while true do
      vigil.sleep(0.005)
      ticks = ticks + 1
    end
  end)
  for record in even(records()) do print("record", record) end
  assert(ticks >= 3 and not ticker:is_closed())
  print "others ran meanwhile"
end)

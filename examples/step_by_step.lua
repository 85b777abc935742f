-- step_by_step.lua: a coroutine driven by hand, step by step, whose steps may
-- wait.  `yield` goes back to whoever resumed it; a wait does not: it suspends
-- the vigil coroutine around both.
--
-- Usage: lua5.4 examples/step_by_step.lua

local vigil = require "vigil"

local create, resume = vigil.coroutine.create, vigil.coroutine.resume
local yield, status = vigil.coroutine.yield, vigil.coroutine.status

local function recipe(name)
  vigil.sleep(0.01) -- a wait inside a step: the driver does not see it
  local flour = yield("flour for " .. name)
  vigil.sleep(0.01)
  local eggs = yield("eggs for " .. name)
  return ("%s of %d g and %d eggs"):format(name, flour, eggs)
end

local supplies = { 250, 3 }

vigil.run(function()
  local steps = create(recipe)
  local ok, wanted = resume(steps, "a cake")
  for i, supply in ipairs(supplies) do
    assert(ok and status(steps) == "suspended")
    print(("step %d asks for %s, gets %d"):format(i, wanted, supply))
    ok, wanted = resume(steps, supply)
  end
  assert(ok and status(steps) == "dead")
  print("made " .. wanted)
end)

-- user_awaitable.lua: an awaitable of your own.  A latch opens when it has been
-- counted down to zero; everybody who awaits it goes on then.
--
-- Usage: lua5.4 examples/user_awaitable.lua

local vigil = require "vigil"

local Latch = {}
Latch.__index = Latch

local function new_latch(count)
  return setmetatable({ count = count, wakers = {} }, Latch)
end

-- Called once for each wait.  It must not wait itself.
function Latch:__await(waker)
  if self.count == 0 then return waker:resolve "open already" end
  self.wakers[waker] = true
  waker:on_cancel(function() -- a timeout, a cancellation, a select
    self.wakers[waker] = nil
  end)
end

function Latch:count_down()
  self.count = self.count - 1
  if self.count > 0 then return end
  for waker in pairs(self.wakers) do waker:resolve "opened" end
  self.wakers = {}
end

vigil.run(function()
  local latch = new_latch(3)

  for i = 1, 3 do
    vigil.spawn(function()
      vigil.sleep(i * 0.04)
      print("part " .. i .. " is ready")
      latch:count_down()
    end)
  end

  local ok, err = vigil.pawait(latch, 0.06)
  print("after 0.06 s:", ok, err.kind)
  assert(next(latch.wakers) == nil)
  print("select:", vigil.select { latch, vigil.timeout(1) })
  print("later:", vigil.await(latch))
end)

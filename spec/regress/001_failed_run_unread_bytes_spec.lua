-- A run that failed, or was shut down, went on for ever where bytes were on
-- their way to somebody who did not read them: its error was never told.
-- (What remains has five seconds, as much as this takes.)
-- DESIGN 2.4; SEMANTICS GS-01.

local vigil = require "vigil"

local MORE_THAN_THE_KERNEL_TAKES = ("x"):rep(1000000)

local function write_unread()
  local a, b = assert(vigil.pipe.pair())
  a:setoption("high_water", math.huge)
  assert(a:write(MORE_THAN_THE_KERNEL_TAKES))
  return a, b
end

describe("a run with bytes that nobody reads", function()
  it("tells its error", function()
    local a, b
    local ok, err = pcall(vigil.run, function()
      a, b = write_unread()
      error("boom", 0)
    end)
    a:abort()
    b:close()
    assert.is_false(ok)
    assert.equal("boom", err)
  end)
end)

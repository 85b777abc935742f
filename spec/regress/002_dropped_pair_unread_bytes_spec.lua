-- A run whose coroutines had ended waited for ever for bytes to a peer in the
-- same program that was garbage, too: nothing allocated any more, so nothing
-- was collected, and so nothing was closed.

local helper = require "spec.helper"

describe("a run with queued bytes between two dropped ends", function()
  it("collects before it waits, and ends (GC-07)", function()
    local status, _, err = helper.run_script([[
      local vigil = require "vigil"
      vigil.run(function()
        local a, b = vigil.pipe.pair()
        a:setoption("high_water", 1e7)
        a:write(("x"):rep(1e6))
        assert(b)
      end)
    ]])
    assert.equal(0, status, err)
  end)
end)

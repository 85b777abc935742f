-- periodic_job.lua: does something again and again, and stops gracefully: on
-- INT or TERM the job under way is finished, then things are put in order.
--
-- Usage: lua5.4 examples/periodic_job.lua [SECONDS]
-- Runs every so many seconds until Ctrl-C.  Without an argument it is quick,
-- and asks itself to stop after a while.

local vigil = require "vigil"

local count = 0

local function job()
  count = count + 1
  print("job " .. count .. " begins")
  vigil.sleep(0.02)
  print("job " .. count .. " is done")
end

vigil.run(function()
  local period = tonumber(arg[1] or 0.05)
  local ticker <close> = vigil.timer(0, period)
  local int <close> = assert(vigil.signal "INT")
  local term <close> = assert(vigil.signal "TERM")

  if not arg[1] then
    vigil.spawn(function()
      vigil.sleep(2.2 * period) -- in the middle of the third job
      os.execute "kill -TERM $PPID"
    end)
  end

  while true do
    -- A signal that comes while the job runs is kept for the next select.
    local case, what = vigil.select { int, term, ticker }
    if case < 3 then
      print("stopping on " .. what)
      break
    end
    job()
  end
  print("did " .. count .. " jobs; everything is in order")
end)

-- worker_pool.lua: a fixed number of workers take jobs from one channel.  The
-- channel is what limits them: it hands out one job at a time, in order.
--
-- Usage: lua5.4 examples/worker_pool.lua [WORKERS [JOBS]]     (3, 10)

local vigil = require "vigil"

local WORKERS, JOBS = tonumber(arg[1] or 3), tonumber(arg[2] or 10)

local function do_job(n)
  vigil.sleep(0.01) -- such as a request to a server
  return n * n
end

vigil.run(function()
  local jobs, results = vigil.channel(), vigil.channel()

  local workers = {}
  for i = 1, WORKERS do
    workers[i] = vigil.spawn(function()
      local done = 0
      for n in jobs do -- ends when jobs is closed and empty
        results:send { n = n, value = do_job(n) }
        done = done + 1
      end
      return done
    end)
  end

  vigil.spawn(function()
    for n = 1, JOBS do jobs:send(n) end
    jobs:close()
  end)
  vigil.spawn(function()
    for i, done in ipairs(vigil.await_all_or_fail(workers)) do
      print(("worker %d did %d jobs"):format(i, done))
    end
    results:close()
  end)

  local sum = 0
  for result in results do
    print(("%d squared is %d"):format(result.n, result.value))
    sum = sum + result.value
  end
  print("sum", sum)
end)

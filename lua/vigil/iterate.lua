--- vigil.iterate: a function over every element, several at a time.

return function(core, vigil)
  local function check(condition, argument, text)
    if not condition then
      error(("bad argument #%d to 'iterate' (%s)"):format(argument, text), 3)
    end
  end

  --- A table's pairs, or an iterator's values with their number as the key.
  -- The key comes first: nil is the end.
  local function source_of(iter)
    if type(iter) == "table" then
      local nextpair, state, key = pairs(iter)
      return function()
        local value
        key, value = nextpair(state, key)
        return key, value
      end
    end
    local count = 0
    return function()
      local value = iter()
      if value == nil then return nil end
      count = count + 1
      return count, value
    end
  end

  --- iterate(iter or table, fn [, {concurrency = n}]): calls fn(value, key).
  --
  -- Workers are coroutines of one child scope.  Each takes an element, makes
  -- sure that another worker is there for the next one, and calls fn; so calls
  -- that never suspend run one after another in one coroutine.
  function vigil.iterate(iter, fn, options)
    check(type(iter) == "table" or type(iter) == "function", 1,
      "table or iterator expected, got " .. type(iter))
    check(type(fn) == "function", 2,
      "function expected, got " .. type(fn))
    options = options or {}
    check(type(options) == "table", 3,
      "options: table expected, got " .. type(options))
    for option in pairs(options) do
      check(option == "concurrency" or option == "wait_children", 3,
        "unknown option '" .. tostring(option) .. "'")
    end
    local limit = options.concurrency or math.huge
    check(type(limit) == "number" and limit >= 1, 3,
      "concurrency: a number of 1 or more expected")
    vigil.checkpoint()

    local following = source_of(iter)
    local scope = core.new_scope()
    local workers, idle = 0, 0
    local done, failed, failure = false, false, nil
    local moving = vigil.channel(1) -- one moves the iterator at a time
    moving:try_send(true)
    local leftover = not options.wait_children

    -- The first error counts: of a call, or of a coroutine that one spawned,
    -- which the scope keeps and answers by cancelling the workers.
    local function fail(err)
      if not failed and not scope:failure() then
        failed, failure = true, err
      end
      done = true
      scope:cancel()
    end

    local function take()
      if done then return nil end
      if not moving:try_recv() then
        moving:recv()
        if done then
          moving:try_send(true)
          return nil
        end
      end
      local ok, key, value = vigil.pcall(following)
      moving:try_send(true)
      if not ok then
        fail(key)
        return nil
      end
      if key == nil then done = true end
      return key, value
    end

    local worker

    local function more_workers()
      if not done and idle == 0 and workers < limit then
        workers, idle = workers + 1, idle + 1
        core.spawn_in(scope, worker)
      end
    end

    local finished, finish = vigil.future()

    function worker()
      local busy = false
      local ok, err = pcall(function()
        while true do
          local key, value = take()
          if key == nil then return end
          if not busy then
            busy = true
            idle = idle - 1
          end
          more_workers()
          if fn(value, key) == false then done = true end
        end
      end)
      if not busy then idle = idle - 1 end
      workers = workers - 1
      if not ok then fail(err) end
      if workers == 0 then finish:complete() end
    end

    more_workers()
    -- The scope is empty when what was left of the workers was cancelled
    -- before it ran.
    local ok, err = pcall(vigil.select, { finished, scope })
    if not ok or leftover then scope:cancel() end
    -- Nothing outlives the call, whatever ends it.
    vigil.protect(function()
      vigil.await(scope)
    end)
    if not ok then error(err, 0) end
    local child_failed, child_error = scope:failure()
    if failed then error(failure, 0) end
    if child_failed then error(child_error, 0) end
  end
end

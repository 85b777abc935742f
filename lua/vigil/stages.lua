--- What follows a future: map, catch, finally.
--
-- Each makes a derived future and a stage, which runs in a coroutine of its
-- own once the source has settled.  The source counts as caught: its failure
-- is the derived future's to show.

return function(core, vigil)
  local Future = getmetatable((vigil.future())).__index
  local add_stage = core.add_stage

  local function check(fn, name)
    if type(fn) ~= "function" then
      error(("bad argument #1 to '%s' (function expected, got %s)"):format(
        name, type(fn)), 3)
    end
  end

  local function settle(promise, ok, ...)
    if ok then promise:complete(...) else promise:fail((...)) end
  end

  --- What the source failed with, unchanged: a cancellation stays one.
  local function pass(source, future, promise, err)
    if source:is_cancelled() then
      future:cancel(err)
    else
      promise:fail(err)
    end
  end

  --- The outcome of the source decides whether fn is called.
  local function derive(source, stage)
    local future, promise = core.new_future(2) -- made where map is called
    add_stage(source, function()
      stage(promise, future, vigil.pawait(source))
    end)
    return future
  end

  --- future:map(fn) --> future of fn(value...)
  function Future:map(fn)
    check(fn, "map")
    return derive(self, function(promise, future, ok, ...)
      if not ok then return pass(self, future, promise, (...)) end
      settle(promise, pcall(fn, ...))
    end)
  end

  --- future:catch(fn) --> future of the value, or of fn(error)
  function Future:catch(fn)
    check(fn, "catch")
    return derive(self, function(promise, _, ok, ...)
      if ok then return promise:complete(...) end
      settle(promise, pcall(fn, (...)))
    end)
  end

  --- future:finally(fn) --> future of the same outcome, after fn(value or
  -- error); an error of fn overrides, with the original as its cause.
  function Future:finally(fn)
    check(fn, "finally")
    return derive(self, function(promise, future, ok, ...)
      local fine, err = pcall(fn, (...))
      if fine and ok then return promise:complete(...) end
      if fine then return pass(self, future, promise, (...)) end
      if not ok and vigil.is_error(err) and err.cause == nil then
        err.cause = (...)
      end
      promise:fail(err)
    end)
  end

  --- future:await([token]): the same as vigil.await(future, token)
  function Future:await(token)
    return vigil.await(self, token)
  end
end

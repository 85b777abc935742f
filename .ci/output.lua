-- What busted prints: each spec file with its counts, what failed as soon as
-- it has, and the totals.  With -v each spec's name before it runs, so that
-- the last one is known after a crash, and the traceback of what failed.

local pretty = require "pl.pretty"

local function say(...)
  io.write(string.format(...), "\n")
  io.flush()
end

return function(options)
  local busted = require "busted"
  local handler = require "busted.outputHandlers.base"()
  local before = 0 -- how many had passed, and failed, when this file began
  local failed_before = 0

  local function failed()
    return handler.failuresCount + handler.errorsCount
  end

  local function describe(kind, failure)
    local message = failure.message
    if type(message) ~= "string" then message = pretty.write(message) end
    say("\n%s: %s\n%s", kind, failure.name, message)
    local trace = failure.trace and failure.trace.traceback
    if options.verbose and trace then say("%s", trace) end
    say("")
  end

  local function on(channel, fn)
    busted.subscribe(channel, function(...)
      fn(...)
      return nil, true
    end)
  end

  on({ "file", "start" }, function()
    before, failed_before = handler.successesCount, failed()
  end)

  on({ "file", "end" }, function(file)
    say("%s: %d passed, %d failed, %.1f s", file.name,
      handler.successesCount - before, failed() - failed_before, file.duration)
  end)

  on({ "test", "start" }, function(element)
    if options.verbose then say("  %s", handler.getFullName(element)) end
  end)

  on({ "failure", "it" }, function()
    describe("FAILED", handler.failures[#handler.failures])
  end)

  on({ "error" }, function()
    describe("ERROR", handler.errors[#handler.errors])
  end)

  on({ "suite", "end" }, function(suite)
    for _, pending in ipairs(handler.pendings) do
      say("skipped: %s%s", pending.name,
        pending.message and ": " .. tostring(pending.message) or "")
    end
    say("Lua specs: %d passed, %d failed, %d skipped, %.1f s",
      handler.successesCount, failed(), handler.pendingsCount, suite.duration)
  end)

  return handler
end

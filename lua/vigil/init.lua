--- vigil: coroutines that wait on anything, over libuv.
--
-- This file puts the module together: what vigil.core defines in C, and the
-- files beside this one, which define what is shorter in Lua.

local core = require "vigil.core"

local VERSION = "0.1.0"
if core._VERSION ~= VERSION then
  error(("vigil: the Lua files are version %s, vigil.core is %s; "
    .. "install both again"):format(VERSION, tostring(core._VERSION)))
end

local vigil = { _VERSION = VERSION }

for _, name in ipairs {
  "run", "spawn", "await", "pawait", "suspend", "sleep", "checkpoint",
  "protect", "pcall", "with_timeout", "timeout", "timer", "now", "select",
  "current", "coroutines", "shutdown", "on_unhandled", "is_error",
  "channel", "future", "coroutine", "signal", "poll", "trigger", "tcp",
  "pipe",
} do
  vigil[name] = core[name]
end

--- Runs finally handlers, each whatever the others do.  One failure surfaces
-- as itself, several as one composite error.
core.set_run_finally(function(handlers, coroutine)
  local errors = {}
  for _, handler in ipairs(handlers) do
    local ok, err = vigil.pcall(handler, coroutine)
    if not ok then errors[#errors + 1] = err end
  end
  if #errors == 1 then error(errors[1], 0) end
  if #errors > 1 then
    local composite = core.new_error("composite", "ECOMPOSITE",
      #errors .. " finally handlers failed, first: " .. tostring(errors[1]))
    composite.errors = errors
    error(composite, 0)
  end
end)

--- vigil.dump([file]): every coroutine, where it waits and for what.
function vigil.dump(file)
  (file or io.stderr):write(core.report())
end

local settings = {
  warnings = function(value)
    core.set_quiet(not value)
  end,
}

--- vigil.configure{ warnings = true }
function vigil.configure(options)
  if type(options) ~= "table" then
    error("bad argument #1 to 'configure' (table expected, got "
      .. type(options) .. ")", 2)
  end
  for name in pairs(options) do
    if not settings[name] then
      error(("vigil.configure: unknown setting '%s'"):format(tostring(name)),
        2)
    end
  end
  for name, value in pairs(options) do
    settings[name](value)
  end
end

require "vigil.await" (core, vigil)
require "vigil.iterate" (core, vigil)
require "vigil.stages" (core, vigil)
require "vigil.net" (core, vigil)

return vigil

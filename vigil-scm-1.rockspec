rockspec_format = "3.0"
package = "vigil"
version = "scm-1"

source = {
  url = ".",
}

description = {
  summary = "Coroutines that wait on anything, over libuv",
  detailed = [[
    vigil gives Lua 5.4 programs coroutines that wait on anything without
    blocking the process, and that cannot leak a handle, lose an error, or
    hang without saying why.
  ]],
  license = "MIT",
}

dependencies = {
  "lua >= 5.4, < 5.5",
}

external_dependencies = {
  LIBUV = { header = "uv.h", library = "uv" },
}

build = {
  type = "builtin",
  modules = {
    ["vigil.core"] = {
      sources = {
      },
      defines = { "_GNU_SOURCE" },
      libraries = { "uv" },
      incdirs = { "$(LIBUV_INCDIR)" },
      libdirs = { "$(LIBUV_LIBDIR)" },
    },
  },
}

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
    vigil = "lua/vigil/init.lua",
    ["vigil.await"] = "lua/vigil/await.lua",
    ["vigil.iterate"] = "lua/vigil/iterate.lua",
    ["vigil.net"] = "lua/vigil/net.lua",
    ["vigil.stages"] = "lua/vigil/stages.lua",
    ["vigil.core"] = {
      sources = {
        "src/event.c",
        "src/callbacks.c",
        "src/waker.c",
        "src/coroutine.c",
        "src/scheduler.c",
        "src/reactor.c",
        "src/future.c",
        "src/channel.c",
        "src/gather.c",
        "src/scope.c",
        "src/timer.c",
        "src/poll.c",
        "src/signal.c",
        "src/trigger.c",
        "src/dns.c",
        "src/socket.c",
        "src/io.c",
        "src/io_buffer.c",
        "src/io_stream.c",
        "src/listen.c",
        "src/error.c",
        "src/report.c",
        "src/lua_module.c",
        "src/lua_util.c",
        "src/lua_error.c",
        "src/lua_await.c",
        "src/lua_coroutine.c",
        "src/lua_cotype.c",
        "src/lua_aware.c",
        "src/lua_blocks.c",
        "src/lua_run.c",
        "src/lua_position.c",
        "src/lua_future.c",
        "src/lua_channel.c",
        "src/lua_select.c",
        "src/lua_gather.c",
        "src/lua_scope.c",
        "src/lua_report.c",
        "src/lua_timer.c",
        "src/lua_poll.c",
        "src/lua_signal.c",
        "src/lua_trigger.c",
        "src/lua_socket.c",
        "src/lua_connect.c",
        "src/lua_io.c",
        "src/lua_listen.c",
      },
      defines = { "_GNU_SOURCE" },
      libraries = { "uv" },
      incdirs = { "$(LIBUV_INCDIR)" },
      libdirs = { "$(LIBUV_LIBDIR)" },
    },
  },
}

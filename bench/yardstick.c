/* How fast Lua coroutines can be run from C when nothing else is done: no
 * queue that grows, no errors, no scheduler.  A Lua module, "yardstick".
 */
#include <stdbool.h>

#include <lauxlib.h>
#include <lua.h>

/* Resumes co with what lies on its stack; whether it has ended. */
static bool run(lua_State *L, lua_State *co) {
  int results;
  int status = lua_resume(co, L, 0, &results);
  if (status > LUA_YIELD) {
    lua_xmove(co, L, 1);
    lua_error(L);
  }
  lua_pop(co, results);
  return status == LUA_OK;
}

/* spawn(fn, n, alive): runs fn n times, each time in a coroutine, `alive` of
 * them at a time.  Threads are used again and again. */
static int l_spawn(lua_State *L) {
  lua_Integer n = luaL_checkinteger(L, 2);
  int alive = (int)luaL_checkinteger(L, 3);
  lua_State **threads =
      lua_newuserdatauv(L, (size_t)alive * sizeof *threads, 0);

  lua_createtable(L, alive, 0);
  for (int i = 0; i < alive; i++) {
    threads[i] = lua_newthread(L);
    lua_rawseti(L, -2, i + 1);
  }
  /* stack: fn, n, alive, threads, table of threads */
  for (lua_Integer done = 0; done < n; done += alive) {
    for (int i = 0; i < alive; i++) {
      lua_pushvalue(L, 1);
      lua_xmove(L, threads[i], 1);
    }
    for (int i = 0; i < alive; i++) {
      if (!run(L, threads[i])) return luaL_error(L, "fn must not yield");
    }
  }
  return 0;
}

/* switch(fn, n): runs fn in two coroutines and resumes them in turn, n times
 * after the first. */
static int l_switch(lua_State *L) {
  lua_Integer n = luaL_checkinteger(L, 2);
  lua_State *a = lua_newthread(L);
  lua_State *b = lua_newthread(L);

  lua_pushvalue(L, 1);
  lua_xmove(L, a, 1);
  lua_pushvalue(L, 1);
  lua_xmove(L, b, 1);
  run(L, a);
  run(L, b);
  for (lua_Integer i = 0; i < n; i += 2) {
    if (run(L, a) || run(L, b)) return luaL_error(L, "fn must not return");
  }
  return 0;
}

static const luaL_Reg functions[] = {
    {"spawn", l_spawn}, {"switch", l_switch}, {NULL, NULL}};

int luaopen_yardstick(lua_State *L);
int luaopen_yardstick(lua_State *L) {
  luaL_newlib(L, functions);
  return 1;
}

/*
** gcstress.c: require "gcstress"(n) collects everything at every n-th
** instruction of the running Lua thread and of those it creates, so that what
** can be collected is, at once.  (A hook set by debug.sethook does not reach
** new coroutines.)
*/

#include <lauxlib.h>
#include <lua.h>

static void collect(lua_State *L, lua_Debug *ar) {
  (void)ar;
  lua_gc(L, LUA_GCCOLLECT);
}

static int l_start(lua_State *L) {
  lua_sethook(L, collect, LUA_MASKCOUNT, (int)luaL_checkinteger(L, 1));
  return 0;
}

LUAMOD_API int luaopen_gcstress(lua_State *L);

int luaopen_gcstress(lua_State *L) {
  lua_pushcfunction(L, l_start);
  return 1;
}

/*
** lua_blocks.c: with_timeout and protect, which put a block around a call, and
** vigil.pcall, which a cancellation passes through.
**
** stack of a block's function: block, handler, function, arguments...
*/

#include "lua_internal.h"

#define BLOCK "vigil.block"

/* Where the block's userdata is collected while its call was abandoned (in a
** plain coroutine that was dropped), it leaves. */
static int block__gc(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  if (S->sched != NULL) vg__block_leave(lua_touserdata(L, 1));
  return 0;
}

/* The error of a block that has been left is forgotten. */
static void leave(lua_State *L, vgL_state_t *S, vg_block_t *block) {
  vg_coroutine_t *co = block->coroutine;

  if (co == NULL) return;
  if (block->fired && block->kind == VG_BLOCK_TIMEOUT) {
    vgL_pushextras(L, S, co);
    lua_pushnil(L);
    lua_rawsetp(L, -2, block);
    lua_pop(L, 1);
  }
  vg__block_leave(block);
}

static int block_done(lua_State *L, int status, lua_KContext was_active) {
  vgL_state_t *S = VGL_S(L);
  vg_block_t *block = lua_touserdata(L, 1);
  vg_coroutine_t *co = block->coroutine;
  int kind = block->kind;

  leave(L, S, block);
  if (status != LUA_OK && status != LUA_YIELD) return lua_error(L);
  if (kind == VG_BLOCK_PROTECT && !was_active && co != NULL &&
      (co->flags & VG_CO_CANCEL_ACTIVE)) { /* what was held back */
    vgL_pushcancellation(L, S, co);
    return lua_error(L);
  }
  return lua_gettop(L) - 2;
}

/* stack: function, arguments...  Calls it inside a block. */
static int call_in_block(lua_State *L, vgL_state_t *S, int kind, double limit) {
  vg_coroutine_t *co = vgL_self(S);
  int was_active = (co->flags & VG_CO_CANCEL_ACTIVE) != 0;
  int n = lua_gettop(L) - 1, err = 0;
  vg_block_t *block = lua_newuserdatauv(L, sizeof *block, 0);

  block->coroutine = NULL;
  luaL_setmetatable(L, BLOCK);
  lua_insert(L, 1);
  lua_pushcfunction(L, vgL_keeptraceback);
  lua_insert(L, 2);
  vg__block_enter(co, block, kind);
  if (limit >= 0) err = vg__block_limit(block, vg__deadline(limit));
  if (err < 0) {
    vg__block_leave(block);
    return lua_error((vgL_pusherror(L, NULL, err, NULL), L));
  }
  return block_done(L, lua_pcallk(L, n, LUA_MULTRET, 2, was_active, block_done),
                    was_active);
}

/* vigil.with_timeout(seconds, fn, ...) --> results... */
static int l_with_timeout(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  double seconds = vgL_checkseconds(L, 1, "seconds");

  luaL_checktype(L, 2, LUA_TFUNCTION);
  vgL_checkopen(L, S);
  lua_remove(L, 1);
  return call_in_block(L, S, VG_BLOCK_TIMEOUT, seconds);
}

/* vigil.protect(fn [, seconds]) --> results... */
static int l_protect(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  double seconds = -1;

  luaL_checktype(L, 1, LUA_TFUNCTION);
  if (!lua_isnoneornil(L, 2)) seconds = vgL_checkseconds(L, 2, "seconds");
  vgL_checkopen(L, S);
  lua_settop(L, 1);
  return call_in_block(L, S, VG_BLOCK_PROTECT, seconds);
}

/* stack: true, results... or true, error */
static int pcall_done(lua_State *L, int status, lua_KContext ctx) {
  vgL_state_t *S = VGL_S(L);

  VG_UNUSED(ctx);
  if (status == LUA_OK || status == LUA_YIELD) return lua_gettop(L);
  if (S->sched != NULL) {
    vg_coroutine_t *co = vgL_self(S);
    if (co->flags & VG_CO_CANCEL_ACTIVE) {
      int mine;
      vgL_pushcancellation(L, S, co);
      mine = lua_rawequal(L, -1, -2);
      lua_pop(L, 1);
      if (mine) return lua_error(L);
    }
  }
  lua_pushboolean(L, 0);
  lua_replace(L, 1);
  return 2;
}

/* vigil.pcall(fn, ...) --> true, results... | false, error */
static int l_pcall(lua_State *L) {
  luaL_checkany(L, 1);
  lua_pushboolean(L, 1);
  lua_insert(L, 1);
  return pcall_done(
      L, lua_pcallk(L, lua_gettop(L) - 2, LUA_MULTRET, 0, 0, pcall_done), 0);
}

static const luaL_Reg functions[] = {{"with_timeout", l_with_timeout},
                                     {"protect", l_protect},
                                     {"pcall", l_pcall},
                                     {NULL, NULL}};

static const luaL_Reg metamethods[] = {{"__gc", block__gc}, {NULL, NULL}};

void vgL_openblocks(lua_State *L, vgL_state_t *S) {
  VG_UNUSED(S);
  luaL_newmetatable(L, BLOCK);
  vgL_setfuncs(L, metamethods);
  lua_pop(L, 1);
  vgL_setfuncs(L, functions);
}

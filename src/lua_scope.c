/*
** lua_scope.c: the internal scope, for the Lua layer: iterate and servers.
*/

#include "lua_internal.h"

/* core.new_scope() --> scope: a child of the current one */
static int l_new_scope(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_scope_t *scope, *parent;
  int err;

  vgL_checkopen(L, S);
  parent =
      S->sched->current != NULL ? S->sched->current->scope : S->sched->root;
  err = vg_scope_new(S->sched, parent, &scope);
  if (err < 0) return lua_error((vgL_pusherror(L, NULL, err, NULL), L));
  vgL_pushbox(L, S, VGL_SCOPE, &scope->event, 0);
  /* misc[scope] takes the first error of a coroutine in it */
  lua_rawgeti(L, LUA_REGISTRYINDEX, S->misc_ref);
  lua_newtable(L);
  lua_rawsetp(L, -2, scope);
  lua_pop(L, 1);
  return 1;
}

static vg_scope_t *check(lua_State *L) {
  return vgL_check(L, VGL_S(L), 1, VGL_SCOPE);
}

static int scope_cancel(lua_State *L) {
  vg_scope_cancel(check(L));
  return 0;
}

static int scope_count(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)check(L)->count);
  return 1;
}

/* scope:failure() --> failed, error; takes it */
static int scope_failure(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_scope_t *scope = check(L);
  int failed = 0;

  lua_rawgeti(L, LUA_REGISTRYINDEX, S->misc_ref);
  if (lua_rawgetp(L, -1, scope) == LUA_TTABLE) {
    lua_getfield(L, -1, "failed");
    failed = lua_toboolean(L, -1);
    lua_pop(L, 1);
    lua_rawgeti(L, -1, 1);
  } else {
    lua_pushnil(L);
  }
  lua_pushboolean(L, failed);
  lua_insert(L, -2);
  return 2;
}

static int scope__gc(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_event_t **box = lua_touserdata(L, 1);
  vg_event_t *event = *box;

  *box = NULL;
  if (event == NULL || S->sched == NULL) return 0;
  lua_rawgeti(L, LUA_REGISTRYINDEX, S->misc_ref);
  lua_pushnil(L);
  lua_rawsetp(L, -2, event);
  vg_event_release(event);
  return 0;
}

static int scope_collect(lua_State *L, vgL_state_t *S, int index,
                         vg_event_t *event, int status, intptr_t value) {
  VG_UNUSED(S);
  VG_UNUSED(index);
  VG_UNUSED(event);
  VG_UNUSED(status);
  VG_UNUSED(value);
  lua_pushboolean(L, 1);
  return 1;
}

static const vgL_type_t type = {
    .name = "vigil.scope",
    .is_box = 1,
    .collect = scope_collect,
};

static const luaL_Reg methods[] = {{"cancel", scope_cancel},
                                   {"count", scope_count},
                                   {"failure", scope_failure},
                                   {NULL, NULL}};

static const luaL_Reg metamethods[] = {{"__gc", scope__gc}, {NULL, NULL}};

static const luaL_Reg functions[] = {{"new_scope", l_new_scope}, {NULL, NULL}};

void vgL_openscope(lua_State *L, vgL_state_t *S) {
  vgL_newtype(L, S, VGL_SCOPE, &type, methods, metamethods);
  vgL_setfuncs(L, functions);
}

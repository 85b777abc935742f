/*
** lua_cotype.c: a coroutine as Lua programs see it: methods, fields, and what
** awaiting it gives.  How it runs is lua_coroutine.c's.
*/

#include <stdio.h>
#include <string.h>

#include "lua_internal.h"

enum { RESULT = VGL_OUTCOME, EXTRAS = VGL_EXTRAS };

static vg_coroutine_t *check(lua_State *L, vgL_state_t *S) {
  return vgL_check(L, S, 1, VGL_COROUTINE);
}

/* The table of a coroutine that may have ended; its userdata is at 1. */
static void push_own_extras(lua_State *L, vg_coroutine_t *co) {
  vgL_pushextrasof(L, co, 1);
}

static void push_rare(lua_State *L, const vg_coroutine_t *co, const char *key) {
  if (!(co->flags & VG_CO_EXTRAS)) {
    lua_pushnil(L);
    return;
  }
  lua_getiuservalue(L, 1, EXTRAS);
  lua_getfield(L, -1, key);
  lua_remove(L, -2);
}

/* co:cancel([reason]) --> boolean */
static int coroutine_cancel(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_coroutine_t *co = check(L, S);

  vgL_checkreason(L, S, 2);
  lua_settop(L, 2);
  if (!vg__coroutine_ended(co) && !(co->flags & VG_CO_CANCEL_REQUESTED)) {
    push_own_extras(L, co);
    vgL_pushreason(L, 2);
    lua_setfield(L, 3, "cancel");
  }
  lua_pushboolean(L, vg_coroutine_cancel(co));
  return 1;
}

/* co:cancel_requested() --> boolean */
static int coroutine_cancel_requested(lua_State *L) {
  vg_coroutine_t *co = check(L, VGL_S(L));
  lua_pushboolean(L, (co->flags & VG_CO_CANCEL_REQUESTED) != 0);
  return 1;
}

/* co:finally(fn) --> co */
static int coroutine_finally(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_coroutine_t *co = check(L, S);

  luaL_checktype(L, 2, LUA_TFUNCTION);
  lua_settop(L, 2);
  if (vg__coroutine_ended(co)) {
    vg_coroutine_t *current = S->sched->current;
    lua_rawgeti(L, LUA_REGISTRYINDEX, S->misc_ref);
    lua_getfield(L, 3, "run_finally");
    lua_createtable(L, 1, 0);
    lua_pushvalue(L, 2);
    lua_rawseti(L, -2, 1);
    lua_pushvalue(L, 1);
    vgL_spawn(L, S, 2, current != NULL ? current->scope : S->sched->root, 1)
        ->flags |= VG_CO_CLEANUP;
    lua_settop(L, 1);
    return 1;
  }
  push_own_extras(L, co);
  if (lua_getfield(L, 3, "finally") == LUA_TNIL) {
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_setfield(L, 3, "finally");
    lua_replace(L, 4);
  }
  lua_pushvalue(L, 2);
  lua_rawseti(L, 4, (lua_Integer)lua_rawlen(L, 4) + 1);
  lua_settop(L, 1);
  return 1;
}

/* co:awaiting() --> { what it waits for, one line each } */
static int coroutine_awaiting(lua_State *L) {
  vg_coroutine_t *co = check(L, VGL_S(L));
  const vg_waker_t *w = &co->waker;
  const vg_wait_t *wait;
  char text[512];
  lua_Integer n = 0;

  lua_newtable(L);
  if (co->state != VG_COROUTINE_SUSPENDED) return 1;
  if (w->first.flags & VG_WAIT_USED) {
    for (wait = &w->first; wait != NULL; wait = wait->next) {
      vg_event_info(wait->event, text, sizeof text);
      lua_pushstring(L, text);
      lua_rawseti(L, -2, ++n);
    }
  }
  if (w->timer.index != 0) {
    lua_pushstring(L, (w->flags & VG_WAKER_F_SLEEP) ? "sleep" : "timeout");
    lua_rawseti(L, -2, ++n);
  }
  return 1;
}

/* co:traceback() --> string | nil.  Where it is suspended; after a failure,
** where it failed. */
static int coroutine_traceback(lua_State *L) {
  vg_coroutine_t *co = check(L, VGL_S(L));
  if (vg__coroutine_ended(co)) {
    push_rare(L, co, "traceback");
  } else if (co->state == VG_COROUTINE_SUSPENDED ||
             (co->state == VG_COROUTINE_QUEUED &&
              (co->flags & VG_CO_STARTED))) {
    luaL_traceback(L, co->waker.thread, NULL, 0);
  } else {
    lua_pushnil(L);
  }
  return 1;
}

/* co:high_priority([on=true]) --> co */
static int coroutine_high_priority(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_coroutine_t *co = check(L, S);
  vg_ring_t *ring = &S->sched->ready;
  size_t i, found;

  if (!lua_isnone(L, 2) && !lua_toboolean(L, 2)) {
    co->flags &= (uint16_t)~VG_CO_HIGH_PRIORITY;
  } else if (!(co->flags & VG_CO_HIGH_PRIORITY)) {
    co->flags |= VG_CO_HIGH_PRIORITY;
    for (found = 0; found < ring->count; found++)
      if (ring->items[(ring->head + found) & ring->mask] == co) break;
    if (found < ring->count) { /* queued already: to the front */
      for (i = found; i > 0; i--)
        ring->items[(ring->head + i) & ring->mask] =
            ring->items[(ring->head + i - 1) & ring->mask];
      ring->items[ring->head] = co;
    }
  }
  lua_settop(L, 1);
  return 1;
}

/* __close: cancels it and waits for its end */
static int closed(lua_State *L, int status, lua_KContext ctx) {
  VG_UNUSED(status);
  VG_UNUSED(ctx);
  vgL_woken(L, VGL_S(L));
  return 0;
}

static int coroutine__close(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_coroutine_t *co = check(L, S), *self;
  int err;

  lua_settop(L, 1);
  if (vg__coroutine_ended(co)) return 0;
  vg_coroutine_cancel(co);
  if (co == S->sched->current) return 0; /* it ends at its next wait */
  self = vgL_enter(L, S, "closing a coroutine");
  vg_waker_new(self);
  err = vg_resume_when(self, &co->event, 0, NULL, NULL);
  if (err < 0) return lua_error((vgL_pusherror(L, NULL, err, NULL), L));
  return vgL_park(L, S, self, 0, closed);
}

static void push_result(lua_State *L, const vg_coroutine_t *co) {
  if (co->state != VG_COROUTINE_COMPLETED) {
    lua_pushnil(L);
    return;
  }
  lua_getiuservalue(L, 1, RESULT);
  if (co->flags & VG_CO_MULTI) lua_rawgeti(L, -1, 1);
}

static void push_place(lua_State *L, const char *source, int line) {
  if (source != NULL)
    lua_pushfstring(L, "%s:%d", source, line);
  else
    lua_pushnil(L);
}

static int coroutine__index(lua_State *L) {
  vg_coroutine_t *co = check(L, VGL_S(L));
  const char *key;
  char text[LUA_IDSIZE + 32];

  lua_settop(L, 2);
  lua_pushvalue(L, 2);
  if (lua_rawget(L, lua_upvalueindex(2)) != LUA_TNIL) return 1; /* method */
  key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
  if (strcmp(key, "state") == 0) {
    lua_pushstring(L, vg__state_name(co->state));
  } else if (strcmp(key, "id") == 0) {
    lua_pushinteger(L, (lua_Integer)co->id);
  } else if (strcmp(key, "result") == 0) {
    push_result(L, co);
  } else if (strcmp(key, "error") == 0) {
    if (co->state == VG_COROUTINE_FAILED || co->state == VG_COROUTINE_CANCELLED)
      lua_getiuservalue(L, 1, RESULT);
    else
      lua_pushnil(L);
  } else if (strcmp(key, "name") == 0) {
    push_rare(L, co, "name");
  } else if (strcmp(key, "spawned_at") == 0) {
    push_place(L, co->spawn_source, co->spawn_line);
  } else if (strcmp(key, "suspended_at") == 0) {
    if (co->state == VG_COROUTINE_SUSPENDED &&
        vg__comethods(co)->where(co, text, sizeof text) > 0)
      lua_pushstring(L, text);
    else
      lua_pushnil(L);
  } else {
    lua_pushnil(L);
  }
  return 1;
}

/* Only the name can be set. */
static int coroutine__newindex(lua_State *L) {
  vg_coroutine_t *co = check(L, VGL_S(L));
  const char *key = luaL_checkstring(L, 2);

  if (strcmp(key, "name") != 0)
    return luaL_error(L, "a coroutine has no field '%s' to set", key);
  if (!lua_isnil(L, 3)) luaL_checkstring(L, 3);
  lua_settop(L, 3);
  push_own_extras(L, co);
  lua_pushvalue(L, 3);
  lua_setfield(L, 4, "name");
  return 0;
}

static int coroutine__tostring(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_coroutine_t *co;
  char text[1024];

  if (S->sched == NULL)
    return lua_pushliteral(L, "vigil.coroutine (the loop is closed)"), 1;
  co = check(L, S);
  lua_settop(L, 1);
  push_rare(L, co, "name");
  vg__describe(co, lua_tostring(L, -1), text, sizeof text);
  lua_pushstring(L, text);
  return 1;
}

static int coroutine_collect(lua_State *L, vgL_state_t *S, int index,
                             vg_event_t *event, int status, intptr_t value) {
  vg_coroutine_t *co = (vg_coroutine_t *)event;

  VG_UNUSED(S);
  VG_UNUSED(status);
  VG_UNUSED(value);
  if (co->state == VG_COROUTINE_COMPLETED)
    return vgL_unpack(L, index, co->flags & VG_CO_MULTI);
  lua_getiuservalue(L, index, RESULT);
  return VGL_RAISE;
}

static const vgL_type_t type = {
    .name = "vigil.coroutine",
    .collect = coroutine_collect,
};

static const luaL_Reg methods[] = {
    {"cancel", coroutine_cancel},
    {"cancel_requested", coroutine_cancel_requested},
    {"finally", coroutine_finally},
    {"awaiting", coroutine_awaiting},
    {"traceback", coroutine_traceback},
    {"high_priority", coroutine_high_priority},
    {NULL, NULL}};

static const luaL_Reg metamethods[] = {{"__newindex", coroutine__newindex},
                                       {"__tostring", coroutine__tostring},
                                       {"__close", coroutine__close},
                                       {NULL, NULL}};

void vgL_opencotype(lua_State *L, vgL_state_t *S) {
  vgL_newtype(L, S, VGL_COROUTINE, &type, methods, metamethods);
  /* __index: methods first, then fields */
  lua_rawgeti(L, LUA_REGISTRYINDEX, S->metatable_refs[VGL_COROUTINE]);
  vgL_pushstate(L);
  lua_getfield(L, -2, "__index");
  lua_pushcclosure(L, coroutine__index, 2);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
}

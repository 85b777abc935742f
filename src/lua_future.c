/*
** lua_future.c: futures and their promises; and the waker that a user-defined
** awaitable is given, which is a promise for one wait.
**
** A future's outcome is its first uservalue; the second is a table of what
** few futures have: stages to run, who registered them, where it was made.
** A future has no finalizer.  One that fails while nobody looks gets a
** sentinel there which has, and which reports when both are collected.
*/

#include <string.h>

#include "lua_internal.h"

enum { EXTRAS = 2, USERVALUES = 2 };

typedef struct future_object {
  vg_future_t future;
  int packed;
  const char *made_at; /* interned */
  int made_line;
} future_object_t;

/* Promises are not awaitable: they only lead to their future (uservalue 1). */
#define PROMISE "vigil.promise"
#define SENTINEL "vigil.sentinel"

static void push_extras(lua_State *L, int future) {
  future = lua_absindex(L, future);
  if (lua_getiuservalue(L, future, EXTRAS) != LUA_TNIL) return;
  lua_pop(L, 1);
  lua_newtable(L);
  lua_pushvalue(L, -1);
  lua_setiuservalue(L, future, EXTRAS);
}


/*
** {== Settling
*/

/* A failure that nobody has caught yet will be reported by its collection. */
static void set_sentinel(lua_State *L, int future) {
  future_object_t *f = lua_touserdata(L, future);
  int *caught;

  future = lua_absindex(L, future);
  push_extras(L, future);
  caught = lua_newuserdatauv(L, sizeof *caught, 2);
  *caught = 0;
  lua_getiuservalue(L, future, VGL_OUTCOME);
  lua_setiuservalue(L, -2, 1);
  lua_getfield(L, -2, "settled_at");
  lua_pushfstring(L, "future made at %s:%d, failed at %s; nobody caught it",
                  f->made_at != NULL ? f->made_at : "?", f->made_line,
                  lua_isnil(L, -1) ? "?" : lua_tostring(L, -1));
  lua_setiuservalue(L, -3, 2);
  lua_pop(L, 1);
  luaL_getmetatable(L, SENTINEL);
  lua_setmetatable(L, -2);
  lua_setfield(L, -2, "sentinel");
  lua_pop(L, 1);
}

static int sentinel__gc(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  int *caught = lua_touserdata(L, 1);
  if (!*caught) {
    *caught = 1;
    lua_getiuservalue(L, 1, 2);
    lua_getiuservalue(L, 1, 1);
    vgL_reportunhandled(L, S, lua_tostring(L, 2), NULL);
  }
  return 0;
}

/* Somebody sees its failure. */
static void mark_caught(lua_State *L, int index, future_object_t *f) {
  f->future.event.flags |= VG_EVENT_RESULT_USED | VG_EVENT_ERROR_CAUGHT;
  if (f->future.state != VG_FUTURE_FAILED) return;
  if (lua_getiuservalue(L, index, EXTRAS) == LUA_TNIL) {
    lua_pop(L, 1);
    return;
  }
  if (lua_getfield(L, -1, "sentinel") != LUA_TNIL)
    *(int *)lua_touserdata(L, -1) = 1;
  lua_pop(L, 2);
}

void vgL_caught(lua_State *L, int index) {
  mark_caught(L, index, lua_touserdata(L, index));
}

/* Stages run in coroutines of their own, in the scope of who added them. */
static void start_stages(lua_State *L, vgL_state_t *S, int future) {
  lua_Integer i, n;
  int stages;

  if (lua_getiuservalue(L, future, EXTRAS) == LUA_TNIL ||
      lua_getfield(L, -1, "stages") == LUA_TNIL)
    return;
  stages = lua_gettop(L);
  n = (lua_Integer)lua_rawlen(L, stages);
  for (i = 1; i <= n; i += 2) { /* function, coroutine or false */
    vg_scope_t *scope = S->sched->root;
    lua_rawgeti(L, stages, i + 1);
    if (lua_isuserdata(L, -1)) {
      vg_coroutine_t *by = lua_touserdata(L, -1);
      if (by->scope != NULL && !by->scope->closed) scope = by->scope;
    }
    lua_pop(L, 1);
    lua_rawgeti(L, stages, i);
    vgL_spawn(L, S, 0, scope, 0);
    lua_settop(L, stages);
  }
  lua_pushnil(L);
  lua_setfield(L, stages - 1, "stages");
}

/* stack: ..., n values.  The future is at `index`. */
static int settle(lua_State *L, vgL_state_t *S, int index,
                  vg_future_state_t how, int n) {
  future_object_t *f = lua_touserdata(L, index);
  int waited = f->future.event.callbacks.length > 0;

  f->packed = vgL_pack(L, index, n);
  if (how == VG_FUTURE_FAILED && !waited &&
      !(f->future.event.flags & VG_EVENT_ERROR_CAUGHT))
    set_sentinel(L, index);
  vg_future_settle(&f->future, how);
  start_stages(L, S, index);
  return 1;
}

/* }================================================================= */


/*
** {== Promises
*/

/* Pushes the future of the promise at 1. */
static future_object_t *check_promise(lua_State *L, vgL_state_t *S) {
  luaL_checkudata(L, 1, PROMISE);
  vgL_checkopen(L, S);
  lua_getiuservalue(L, 1, 1);
  return lua_touserdata(L, -1);
}

/* 0 where its consumer has cancelled it, which stops no producer.  Raises
** where a promise has settled it. */
static int check_pending(lua_State *L, const future_object_t *f, int future) {
  if (f->future.state == VG_FUTURE_PENDING) return 1;
  if (f->future.state == VG_FUTURE_CANCELLED) return 0;
  push_extras(L, future);
  lua_getfield(L, -1, "settled_at");
  return luaL_error(L, "the future has been settled already%s%s",
                    lua_isnil(L, -1) ? "" : ", at ",
                    lua_isnil(L, -1) ? "" : lua_tostring(L, -1));
}

static void record_place(lua_State *L, vgL_state_t *S, int future) {
  int line;
  const char *source = vgL_position(L, S, 1, &line);
  if (source == NULL) return;
  push_extras(L, future);
  lua_pushfstring(L, "%s:%d", source, line);
  lua_setfield(L, -2, "settled_at");
  lua_pop(L, 1);
}

/* promise:complete(...) --> boolean */
static int promise_complete(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  int n = lua_gettop(L) - 1;
  future_object_t *f = check_promise(L, S);

  lua_pushboolean(L, 0);
  if (!check_pending(L, f, lua_gettop(L) - 1)) return 1;
  lua_pop(L, 1);
  lua_replace(L, 1); /* stack: future, values... */
  record_place(L, S, 1);
  settle(L, S, 1, VG_FUTURE_COMPLETED, n);
  lua_pushboolean(L, 1);
  return 1;
}

/* promise:fail(error) --> boolean */
static int promise_fail(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  future_object_t *f;

  luaL_checkany(L, 2);
  lua_settop(L, 2);
  f = check_promise(L, S);
  lua_pushboolean(L, 0);
  if (!check_pending(L, f, 3)) return 1;
  lua_pop(L, 1);
  lua_replace(L, 1);
  record_place(L, S, 1);
  settle(L, S, 1, VG_FUTURE_FAILED, 1);
  lua_pushboolean(L, 1);
  return 1;
}

/* promise:future() --> future */
static int promise_future(lua_State *L) {
  check_promise(L, VGL_S(L));
  return 1;
}

static const luaL_Reg promise_methods[] = {{"complete", promise_complete},
                                           {"fail", promise_fail},
                                           {"future", promise_future},
                                           {NULL, NULL}};

/* }================================================================= */


/*
** {== Futures
*/

/* Pushes a future, made where the function at `level` was called, and its
** promise. */
static int new_future(lua_State *L, int level) {
  vgL_state_t *S = VGL_S(L);
  future_object_t *f;

  vgL_checkopen(L, S);
  f = vgL_newobject(L, S, VGL_FUTURE, sizeof *f, USERVALUES);
  vg_future_init(&f->future, S->sched, VG_EVENT_LUA_OBJECT);
  f->made_at = vgL_position(L, S, level, &f->made_line);
  lua_newuserdatauv(L, 0, 1);
  lua_pushvalue(L, -2);
  lua_setiuservalue(L, -2, 1);
  luaL_setmetatable(L, PROMISE);
  return 2;
}

/* vigil.future() --> future, promise */
static int l_future(lua_State *L) { return new_future(L, 1); }

/* core.new_future(level) --> future, promise: for the Lua layer */
static int l_new_future(lua_State *L) {
  return new_future(L, (int)luaL_checkinteger(L, 1));
}

static future_object_t *check_future(lua_State *L) {
  return vgL_check(L, VGL_S(L), 1, VGL_FUTURE);
}

/* future:cancel([reason]) --> boolean */
static int future_cancel(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  future_object_t *f = check_future(L);

  lua_settop(L, 2);
  vgL_checkreason(L, S, 2);
  if (f->future.state != VG_FUTURE_PENDING) {
    lua_pushboolean(L, 0);
    return 1;
  }
  vgL_pushreason(L, 2);
  lua_replace(L, 2);
  settle(L, S, 1, VG_FUTURE_CANCELLED, 1);
  lua_pushboolean(L, 1);
  return 1;
}

static int future__close(lua_State *L) {
  lua_settop(L, 1);
  future_cancel(L);
  return 0;
}

/* future:ignore() --> future */
static int future_ignore(lua_State *L) {
  mark_caught(L, 1, check_future(L));
  lua_settop(L, 1);
  return 1;
}

/* future:is_cancelled() --> boolean */
static int future_is_cancelled(lua_State *L) {
  lua_pushboolean(L, check_future(L)->future.state == VG_FUTURE_CANCELLED);
  return 1;
}

/* future:status() --> "pending" | "completed" | "failed" | "cancelled" */
static int future_status(lua_State *L) {
  lua_pushstring(L, vg__future_state_name(check_future(L)->future.state));
  return 1;
}

/* core.add_stage(future, fn): runs fn in a coroutine once it has settled */
static int l_add_stage(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  future_object_t *f = check_future(L);
  lua_Integer n;

  luaL_checktype(L, 2, LUA_TFUNCTION);
  lua_settop(L, 2);
  mark_caught(L, 1, f);
  lua_settop(L, 2);
  push_extras(L, 1);
  if (lua_getfield(L, 3, "stages") == LUA_TNIL) {
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_setfield(L, 3, "stages");
    lua_replace(L, 4);
  }
  n = (lua_Integer)lua_rawlen(L, 4);
  lua_pushvalue(L, 2);
  lua_rawseti(L, 4, n + 1);
  if (S->sched->current != NULL)
    vgL_pushcoroutine(L, S, S->sched->current);
  else
    lua_pushboolean(L, 0);
  lua_rawseti(L, 4, n + 2);
  if (f->future.state != VG_FUTURE_PENDING) start_stages(L, S, 1);
  return 0;
}

static int future__tostring(lua_State *L) {
  future_object_t *f;
  char text[128];

  if (VGL_S(L)->sched == NULL)
    return lua_pushliteral(L, "vigil.future (the loop is closed)"), 1;
  f = check_future(L);
  vg_event_info(&f->future.event, text, sizeof text);
  if (f->made_at != NULL)
    lua_pushfstring(L, "%s, made at %s:%d", text, f->made_at, f->made_line);
  else
    lua_pushstring(L, text);
  return 1;
}

static int future_collect(lua_State *L, vgL_state_t *S, int index,
                          vg_event_t *event, int status, intptr_t value) {
  future_object_t *f = (future_object_t *)event;

  VG_UNUSED(S);
  VG_UNUSED(status);
  VG_UNUSED(value);
  if (f->future.state == VG_FUTURE_COMPLETED)
    return vgL_unpack(L, index, f->packed);
  index = lua_absindex(L, index);
  mark_caught(L, index, f);
  lua_getiuservalue(L, index, VGL_OUTCOME);
  return VGL_RAISE;
}

static const vgL_type_t future_type = {
    .name = "vigil.future",
    .collect = future_collect,
};

static const luaL_Reg future_methods[] = {{"cancel", future_cancel},
                                          {"ignore", future_ignore},
                                          {"status", future_status},
                                          {"is_cancelled", future_is_cancelled},
                                          {NULL, NULL}};

static const luaL_Reg future_metamethods[] = {
    {"__close", future__close}, {"__tostring", future__tostring}, {NULL, NULL}};

static const luaL_Reg functions[] = {{"future", l_future},
                                     {"new_future", l_new_future},
                                     {"add_stage", l_add_stage},
                                     {NULL, NULL}};

/* }================================================================= */


/*
** {== Wakers of user-defined awaitables.  Uservalue 2: what to call when the
** wait ends without it.
*/

void vgL_newwaker(lua_State *L, vgL_state_t *S) {
  future_object_t *f = vgL_newobject(L, S, VGL_WAKER, sizeof *f, USERVALUES);
  vg_future_init(&f->future, S->sched, VG_EVENT_LUA_OBJECT);
}

static int waker_settle(lua_State *L, vg_future_state_t how) {
  vgL_state_t *S = VGL_S(L);
  future_object_t *f = vgL_check(L, S, 1, VGL_WAKER);
  int n;

  if (how == VG_FUTURE_FAILED) lua_settop(L, 2);
  n = lua_gettop(L) - 1;
  if (f->future.state != VG_FUTURE_PENDING) {
    lua_pushboolean(L, 0);
    return 1;
  }
  f->packed = vgL_pack(L, 1, n);
  lua_pushnil(L);
  lua_setiuservalue(L, 1, EXTRAS);
  vg_future_settle(&f->future, how);
  lua_pushboolean(L, 1);
  return 1;
}

/* waker:resolve(...) --> boolean */
static int waker_resolve(lua_State *L) {
  return waker_settle(L, VG_FUTURE_COMPLETED);
}

/* waker:reject(error) --> boolean */
static int waker_reject(lua_State *L) {
  return waker_settle(L, VG_FUTURE_FAILED);
}

/* waker:on_cancel(fn) --> boolean */
static int waker_on_cancel(lua_State *L) {
  future_object_t *f = vgL_check(L, VGL_S(L), 1, VGL_WAKER);

  luaL_checktype(L, 2, LUA_TFUNCTION);
  lua_settop(L, 2);
  if (f->future.state == VG_FUTURE_PENDING) lua_setiuservalue(L, 1, EXTRAS);
  lua_pushboolean(L, f->future.state == VG_FUTURE_PENDING);
  return 1;
}

void vgL_abandon(lua_State *L, vgL_state_t *S, int index) {
  int type;
  vg_event_t *event = vgL_toevent(L, S, index, &type);
  future_object_t *f = (future_object_t *)event;
  vg_waker_t *w = &vgL_self(S)->waker;
  vg_waker_t saved;

  if (event == NULL || type != VGL_WAKER ||
      f->future.state != VG_FUTURE_PENDING)
    return;
  f->future.state = VG_FUTURE_CANCELLED; /* what comes late is refused */
  f->future.event.flags |= VG_EVENT_CLOSED;
  if (lua_getiuservalue(L, index, EXTRAS) != LUA_TFUNCTION) {
    lua_pop(L, 1);
    return;
  }
  lua_pushnil(L);
  lua_setiuservalue(L, index, EXTRAS);
  saved = *w;
  if (lua_pcall(L, 0, 0, 0) != LUA_OK)
    vgL_reportunhandled(L, S, "in a function given to waker:on_cancel", NULL);
  w->error = saved.error;
  w->ordinal = saved.ordinal;
  w->value = saved.value;
}

static const vgL_type_t waker_type = {
    .name = "vigil.waker",
    .collect = future_collect,
};

static const luaL_Reg waker_methods[] = {{"resolve", waker_resolve},
                                         {"reject", waker_reject},
                                         {"on_cancel", waker_on_cancel},
                                         {NULL, NULL}};

/* }================================================================= */


static void new_metatable(lua_State *L, const char *name,
                          const luaL_Reg *methods) {
  luaL_newmetatable(L, name);
  vgL_setfuncs(L, methods);
  lua_pushvalue(L, -1);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
}

void vgL_openfuture(lua_State *L, vgL_state_t *S) {
  static const luaL_Reg sentinel_methods[] = {{"__gc", sentinel__gc},
                                              {NULL, NULL}};
  vgL_newtype(L, S, VGL_FUTURE, &future_type, future_methods,
              future_metamethods);
  vgL_newtype(L, S, VGL_WAKER, &waker_type, waker_methods, NULL);
  new_metatable(L, PROMISE, promise_methods);
  new_metatable(L, SENTINEL, sentinel_methods);
  vgL_setfuncs(L, functions);
}

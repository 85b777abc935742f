/*
** lua_aware.c: the standard coroutine library, made aware of vigil.
**
** A plain coroutine resumed through here may wait.  Its wait belongs to the
** vigil coroutine around it:
**
**   the body (thread of the vigil coroutine)
**     resume(G1) ... resume(G2) ... await
**
** await parks the waker and yields out of G2 with a mark (the state as a light
** userdata) that no program can make.  Each resume below sees the mark, and
** yields in turn, out of its own thread, until the scheduler has control.
** When the waker has its outcome the way is taken back: the scheduler resumes
** the body, whose resume continues and resumes G1, and so on.
*/

#include <string.h>

#include <lualib.h>

#include "lua_internal.h"

static lua_State *get_thread(lua_State *L) {
  lua_State *co = lua_tothread(L, 1);
  if (co == NULL) luaL_typeerror(L, 1, "coroutine");
  return co;
}

/* misc[thread] while its wait is parked: it is neither dead nor ours to
** resume. */
static void set_waiting(lua_State *L, vgL_state_t *S, lua_State *co,
                        int waiting) {
  lua_rawgeti(L, LUA_REGISTRYINDEX, S->misc_ref);
  if (waiting)
    lua_pushboolean(L, 1);
  else
    lua_pushnil(L);
  lua_rawsetp(L, -2, co);
  lua_pop(L, 1);
}

static int is_waiting(lua_State *L, vgL_state_t *S, lua_State *co) {
  int waiting;
  lua_rawgeti(L, LUA_REGISTRYINDEX, S->misc_ref);
  lua_rawgetp(L, -1, co);
  waiting = lua_toboolean(L, -1);
  lua_pop(L, 2);
  return waiting;
}

enum { AS_RESUME, AS_WRAP };

static int after_resume(lua_State *L, vgL_state_t *S, lua_State *co, int status,
                        int n, lua_KContext how);

/* The waker of the vigil coroutine around has its outcome: on to `co`. */
static int resume_on(lua_State *L, int status, lua_KContext how) {
  vgL_state_t *S = VGL_S(L);
  lua_State *co = how == AS_WRAP ? lua_tothread(L, lua_upvalueindex(2))
                                 : lua_tothread(L, 1);
  lua_State *walled = S->walled;
  int n;

  VG_UNUSED(status);
  set_waiting(L, S, co, 0);
  S->active = co;
  if (walled == NULL && !lua_isyieldable(L)) S->walled = L;
  status = lua_resume(co, L, 0, &n);
  S->active = L;
  S->walled = walled;
  return after_resume(L, S, co, status, n, how);
}

static int after_resume(lua_State *L, vgL_state_t *S, lua_State *co, int status,
                        int n, lua_KContext how) {
  if (status == LUA_YIELD && S->parked) { /* it waits */
    lua_pop(co, n);
    set_waiting(L, S, co, 1);
    if (L == vgL_self(S)->thread) return lua_yieldk(L, 0, how, resume_on);
    lua_pushlightuserdata(L, S);
    return lua_yieldk(L, 1, how, resume_on);
  }
  if (status == LUA_OK || status == LUA_YIELD) {
    luaL_checkstack(L, n + 1, "too many results to resume");
    if (how == AS_RESUME) lua_pushboolean(L, 1);
    lua_xmove(co, L, n);
    return how == AS_RESUME ? n + 1 : n;
  }
  if (how == AS_RESUME) {
    lua_xmove(co, L, 1); /* `co` may be L: it cannot resume itself */
    lua_pushboolean(L, 0);
    lua_insert(L, -2);
    return 2;
  }
  if (lua_status(co) != LUA_OK && lua_status(co) != LUA_YIELD)
    status = lua_resetthread(co); /* as coroutine.wrap: close, then raise */
  lua_xmove(co, L, 1);
  if (status != LUA_ERRMEM && lua_type(L, -1) == LUA_TSTRING) {
    luaL_where(L, 1);
    lua_insert(L, -2);
    lua_concat(L, 2);
  }
  return lua_error(L);
}

/* Resumes `co` with the values from index `first` up. */
static int resume(lua_State *L, vgL_state_t *S, lua_State *co, int first,
                  lua_KContext how) {
  int n = lua_gettop(L) - first + 1, status;
  lua_State *active = S->active, *walled = S->walled;
  const char *refusal = NULL;

  if (is_waiting(L, S, co))
    refusal = "cannot resume a coroutine that waits";
  else if (lua_status(co) == LUA_OK && lua_gettop(co) == 0)
    refusal = "cannot resume dead coroutine";
  else if (!lua_checkstack(co, n))
    refusal = "too many arguments to resume";
  if (refusal != NULL) {
    if (how == AS_WRAP) return luaL_error(L, "%s", refusal);
    lua_pushboolean(L, 0);
    lua_pushstring(L, refusal);
    return 2;
  }
  lua_xmove(L, co, n);
  if (S->sched != NULL && L == active) {
    S->active = co;
    if (walled == NULL && S->sched->current != NULL && !lua_isyieldable(L))
      S->walled = L;
  }
  status = lua_resume(co, L, n, &n);
  S->active = active;
  S->walled = walled;
  return after_resume(L, S, co, status, n, how);
}

static int l_resume(lua_State *L) {
  return resume(L, VGL_S(L), get_thread(L), 2, AS_RESUME);
}

static int l_create(lua_State *L) {
  lua_State *co;
  luaL_checktype(L, 1, LUA_TFUNCTION);
  co = lua_newthread(L);
  lua_pushvalue(L, 1);
  lua_xmove(L, co, 1);
  return 1;
}

static int wrapped(lua_State *L) {
  return resume(L, VGL_S(L), lua_tothread(L, lua_upvalueindex(2)), 1, AS_WRAP);
}

static int l_wrap(lua_State *L) {
  lua_State *co;
  luaL_checktype(L, 1, LUA_TFUNCTION);
  vgL_pushstate(L);
  co = lua_newthread(L);
  lua_pushvalue(L, 1);
  lua_xmove(L, co, 1); /* stack: function..., state, thread */
  lua_pushcclosure(L, wrapped, 2);
  return 1;
}

static int l_yield(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  if (S->sched != NULL && S->sched->current != NULL &&
      L == S->sched->current->thread)
    return luaL_error(L, "attempt to yield from outside a plain coroutine "
                         "(vigil.suspend lets the others run)");
  return lua_yield(L, lua_gettop(L));
}

static const char *status_of(lua_State *L, vgL_state_t *S, lua_State *co) {
  lua_Debug ar;
  if (L == co) return "running";
  if (is_waiting(L, S, co)) return "normal"; /* its resumer waits with it */
  switch (lua_status(co)) {
    case LUA_YIELD: return "suspended";
    case LUA_OK:
      if (lua_getstack(co, 0, &ar)) return "normal";
      return lua_gettop(co) == 0 ? "dead" : "suspended";
    default: return "dead";
  }
}

static int l_status(lua_State *L) {
  lua_pushstring(L, status_of(L, VGL_S(L), get_thread(L)));
  return 1;
}

static int l_isyieldable(lua_State *L) {
  lua_State *co = lua_isnone(L, 1) ? L : get_thread(L);
  lua_pushboolean(L, lua_isyieldable(co));
  return 1;
}

/* The thread of a vigil coroutine that a program has seen is not recycled. */
static int l_running(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  int is_main = lua_pushthread(L);
  vg_coroutine_t *co = S->sched != NULL ? S->sched->current : NULL;
  if (co != NULL && co->thread == L) co->flags |= VG_CO_GOT_HOLD;
  lua_pushboolean(L, is_main);
  return 2;
}

static int l_close(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  lua_State *co = get_thread(L);
  const char *status = status_of(L, S, co);

  if (strcmp(status, "dead") != 0 && strcmp(status, "suspended") != 0)
    return luaL_error(L, "cannot close a %s coroutine", status);
  if (lua_resetthread(co) == LUA_OK) {
    lua_pushboolean(L, 1);
    return 1;
  }
  lua_pushboolean(L, 0);
  lua_xmove(co, L, 1);
  return 2;
}

/* vigil.coroutine.install(): puts the library in _G and package.loaded */
static int l_install(lua_State *L) {
  lua_pushvalue(L, lua_upvalueindex(2));
  lua_pushvalue(L, -1);
  lua_setglobal(L, LUA_COLIBNAME);
  lua_getfield(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  lua_insert(L, -2);
  lua_setfield(L, -2, LUA_COLIBNAME);
  return 0;
}

static const luaL_Reg functions[] = {{"create", l_create},
                                     {"resume", l_resume},
                                     {"wrap", l_wrap},
                                     {"yield", l_yield},
                                     {"status", l_status},
                                     {"isyieldable", l_isyieldable},
                                     {"running", l_running},
                                     {"close", l_close},
                                     {NULL, NULL}};

void vgL_openaware(lua_State *L, vgL_state_t *S) {
  VG_UNUSED(S);
  lua_newtable(L);
  vgL_setfuncs(L, functions);
  vgL_pushstate(L);
  lua_pushvalue(L, -2);
  lua_pushcclosure(L, l_install, 2);
  lua_setfield(L, -2, "install");
  lua_setfield(L, -2, "coroutine");
}

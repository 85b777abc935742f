/*
** lua_run.c: vigil.run, and what the core asks of its host: errors that nobody
** took, deadlocks.
**
** The core's calls come where Lua may run but nothing may raise; each does
** its work in a protected call.
*/

#include <stdio.h>
#include <string.h>

#include "lua_internal.h"

/*
** {== Errors that nobody took
*/

static void print_unhandled(const char *what, const char *message,
                            const char *traceback) {
  fprintf(stderr, "vigil: unhandled error (%s): %s\n", what, message);
  if (traceback != NULL) fprintf(stderr, "%s\n", traceback);
  fflush(stderr);
}

static int to_text(lua_State *L) {
  luaL_tolstring(L, 1, NULL);
  return 1;
}

/* Pushes a value as text; its __tostring may fail. */
static const char *push_text(lua_State *L, int index) {
  index = lua_absindex(L, index);
  lua_pushcfunction(L, to_text);
  lua_pushvalue(L, index);
  if (lua_pcall(L, 1, 1, 0) == LUA_OK) return lua_tostring(L, -1);
  lua_pop(L, 1);
  return lua_pushfstring(L, "(a %s whose __tostring failed)",
                         luaL_typename(L, index));
}

/* stack: light state, error, what, traceback or nil */
static int report(lua_State *L) {
  vgL_state_t *S = lua_touserdata(L, 1);
  int failed = 0;

  lua_rawgeti(L, LUA_REGISTRYINDEX, S->misc_ref);
  if (lua_getfield(L, 5, "on_unhandled") == LUA_TFUNCTION) {
    lua_pushvalue(L, 2);
    lua_createtable(L, 0, 2);
    lua_pushvalue(L, 3);
    lua_setfield(L, -2, "what");
    lua_pushvalue(L, 4);
    lua_setfield(L, -2, "traceback");
    if (lua_pcall(L, 2, 0, 0) == LUA_OK) return 0;
    failed = 1; /* both are told: the error, and the hook's own */
  }
  if (S->quiet && !failed) return 0;
  print_unhandled(lua_tostring(L, 3), push_text(L, 2), lua_tostring(L, 4));
  if (failed)
    print_unhandled("in the function given to vigil.on_unhandled",
                    push_text(L, 6), NULL);
  return 0;
}

void vgL_reportunhandled(lua_State *L, vgL_state_t *S, const char *what,
                         const char *traceback) {
  int top = lua_gettop(L) - 1; /* without the error */

  if (lua_checkstack(L, 8)) {
    lua_pushcfunction(L, report);
    lua_pushlightuserdata(L, S);
    lua_pushvalue(L, top + 1);
    lua_pushstring(L, what);
    lua_pushstring(L, traceback);
    lua_pcall(L, 4, 0, 0);
  }
  lua_settop(L, top);
}

static int has_hook(lua_State *L, vgL_state_t *S) {
  int found;
  lua_rawgeti(L, LUA_REGISTRYINDEX, S->misc_ref);
  found = lua_getfield(L, -1, "on_unhandled") == LUA_TFUNCTION;
  lua_pop(L, 2);
  return found;
}

/* stack: ..., error.  The run will fail with it. */
static void set_exit_error(lua_State *L, vgL_state_t *S) {
  lua_createtable(L, 1, 0); /* it may be nil */
  lua_insert(L, -2);
  lua_rawseti(L, -2, 1);
  lua_rawgeti(L, LUA_REGISTRYINDEX, S->misc_ref);
  lua_insert(L, -2);
  lua_setfield(L, -2, "exit_error");
  lua_pop(L, 1);
  S->failed = 1;
}

void vgL_pushexiterror(lua_State *L, vgL_state_t *S) {
  lua_rawgeti(L, LUA_REGISTRYINDEX, S->misc_ref);
  if (lua_getfield(L, -1, "exit_error") == LUA_TTABLE)
    lua_rawgeti(L, -1, 1);
  else /* there was no memory to keep it */
    lua_pushliteral(L, "not enough memory");
  lua_pushnil(L);
  lua_setfield(L, -4, "exit_error");
  lua_replace(L, -3);
  lua_pop(L, 1);
  S->failed = 0;
}

/* The run fails, or the main chunk's wait. */
static void stop(vgL_state_t *S) {
  vg_scheduler_shutdown(S->sched);
  if (S->main.state == VG_COROUTINE_SUSPENDED)
    vg_waker_wake(&S->main, NULL, VG_EFAILED, 0);
  else if (S->main.state == VG_COROUTINE_QUEUED)
    vg__waker_replace(&S->main, VG_EFAILED);
}

/* stack: light coroutine.  The first error fails the run, or the main chunk's
** wait, and cancels everything; in a scope of its own, that scope. */
static int take_unhandled(lua_State *L) {
  vg_coroutine_t *co = lua_touserdata(L, 1);
  vg_scheduler_t *s = co->event.scheduler;
  vgL_state_t *S = s->host.data;
  vg_scope_t *scope = co->scope;
  char who[512];
  int known = 0;

  vgL_pushcoroutine(L, S, co); /* stack: light, coroutine */
  lua_getiuservalue(L, 2, VGL_OUTCOME);
  vgL_pushextras(L, S, co);
  lua_getfield(L, 4, "name");
  vg__identify(co, lua_tostring(L, 5), who, sizeof who);
  lua_getfield(L, 4, "traceback");
  lua_replace(L, 4);
  lua_settop(L, 4); /* stack: light, coroutine, error, traceback */
  lua_rawgeti(L, LUA_REGISTRYINDEX, S->misc_ref);
  if (scope != s->root) {
    known = lua_rawgetp(L, 5, scope) == LUA_TTABLE;
    if (known && (lua_rawlen(L, -1) == 0)) {
      lua_pushvalue(L, 3);
      lua_rawseti(L, -2, 1);
      lua_pushboolean(L, 1);
      lua_setfield(L, -2, "failed");
      vg_scope_cancel(scope);
      return 0;
    }
    lua_settop(L, 5);
  }
  if (S->failed && (co->flags & VG_CO_DEADLOCKED) &&
      vgL_errorkind(L, S, 3) != NULL &&
      strcmp(vgL_errorkind(L, S, 3), "deadlock") == 0)
    return 0; /* the run fails with the verdict itself */
  if (S->failed || has_hook(L, S)) {
    const char *what = lua_pushfstring(L, "%s; nobody awaited it", who);
    lua_pushvalue(L, 3);
    vgL_reportunhandled(L, S, what, lua_tostring(L, 4));
  }
  if (S->failed || known) return 0;
  lua_pushvalue(L, 3);
  set_exit_error(L, S);
  stop(S);
  return 0;
}

static void host_unhandled(void *data, vg_coroutine_t *co) {
  vgL_state_t *S = data;
  lua_State *L = S->aside;
  int top = lua_gettop(L);

  if (!lua_checkstack(L, 4)) return;
  lua_pushcfunction(L, take_unhandled);
  lua_pushlightuserdata(L, co);
  if (lua_pcall(L, 1, 0, 0) != LUA_OK && !S->failed) { /* no memory */
    S->failed = 1;
    stop(S);
  }
  lua_settop(L, top);
}

/* }================================================================= */


/*
** {== Deadlock
*/

typedef struct lines {
  lua_State *L;
  vgL_state_t *S;
  luaL_Buffer *buffer;
} lines_t;

static void add_line(vg_coroutine_t *co, void *data) {
  lines_t *lines = data;
  char text[1024];
  vg__describe(co, vgL_coname(lines->L, lines->S, co), text, sizeof text);
  luaL_addstring(lines->buffer, "  ");
  luaL_addstring(lines->buffer, text);
  luaL_addchar(lines->buffer, '\n');
}

/* stack: light state, count */
static int take_deadlock(lua_State *L) {
  vgL_state_t *S = lua_touserdata(L, 1);
  int count = (int)lua_tointeger(L, 2);
  const char *message =
      lua_pushfstring(L, "%d coroutine%s wait%s for what nothing can bring",
                      count, count == 1 ? "" : "s", count == 1 ? "s" : "");
  luaL_Buffer buffer;
  lines_t lines = {L, S, &buffer};

  luaL_buffinit(L, &buffer);
  if (S->main.state == VG_COROUTINE_SUSPENDED) add_line(&S->main, &lines);
  vg__each_coroutine(S->sched, add_line, &lines);
  luaL_pushresult(&buffer); /* stack: light state, count, message, report */
  if (!S->quiet) {
    fprintf(stderr, "vigil: deadlock: %s\n%s", message, lua_tostring(L, 4));
    fflush(stderr);
  }
  if (!S->in_run) return 0; /* the main chunk's own wait will raise */
  vgL_pusherror(L, NULL, VG_EDEADLOCK, message);
  lua_pushvalue(L, 4);
  lua_setfield(L, -2, "report");
  if (S->failed) {
    vgL_pushexiterror(L, S);
    if (vgL_errorkind(L, S, -1) != NULL &&
        strcmp(vgL_errorkind(L, S, -1), "deadlock") == 0) {
      set_exit_error(L, S); /* the first verdict stays */
      return 0;
    }
    lua_setfield(L, -2, "cause");
  }
  set_exit_error(L, S);
  return 0;
}

static void host_deadlock(void *data, size_t count) {
  vgL_state_t *S = data;
  lua_State *L = S->aside;
  int top = lua_gettop(L);

  if (!lua_checkstack(L, 4)) return;
  lua_pushcfunction(L, take_deadlock);
  lua_pushlightuserdata(L, S);
  lua_pushinteger(L, (lua_Integer)count);
  lua_pcall(L, 2, 0, 0);
  lua_settop(L, top);
}

/* stack: light coroutine.  Its error is made while its wait can be seen. */
static int take_stuck(lua_State *L) {
  vg_coroutine_t *co = lua_touserdata(L, 1);
  vgL_state_t *S = co->event.scheduler->host.data;
  char text[1024];

  vg__describe(co, vgL_coname(L, S, co), text, sizeof text);
  lua_rawgeti(L, LUA_REGISTRYINDEX, S->misc_ref);
  lua_pushfstring(L, "deadlock: %s", text);
  vgL_pusherror(L, NULL, VG_EDEADLOCK, lua_tostring(L, -1));
  lua_rawsetp(L, 2, co);
  return 0;
}

static void host_stuck(void *data, vg_coroutine_t *co) {
  vgL_state_t *S = data;
  lua_State *L = S->aside;
  int top = lua_gettop(L);

  if (!lua_checkstack(L, 4)) return;
  lua_pushcfunction(L, take_stuck);
  lua_pushlightuserdata(L, co);
  lua_pcall(L, 1, 0, 0);
  lua_settop(L, top);
}

/* }================================================================= */


/* Twice: finalizers let go of things. */
static void host_collect(void *data) {
  vgL_state_t *S = data;
  lua_gc(S->aside, LUA_GCCOLLECT, 0);
  lua_gc(S->aside, LUA_GCCOLLECT, 0);
}

void vgL_inithost(vgL_state_t *S, vg_host_t *host) {
  memset(host, 0, sizeof *host);
  host->data = S;
  host->unhandled = host_unhandled;
  host->deadlock = host_deadlock;
  host->stuck = host_stuck;
  host->collect = host_collect;
}

/* vigil.run(fn, ...) --> results...; raises the first error nobody took */
static int l_run(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_coroutine_t *co;
  lua_State *active = S->active;
  int line, n;

  luaL_checktype(L, 1, LUA_TFUNCTION);
  vgL_checkopen(L, S);
  if (S->sched->running)
    return luaL_error(L, "vigil.run: the loop is already running "
                         "(spawn or await instead)");
  if (S->failed) { /* the main chunk's last wait has not told it */
    vgL_pushexiterror(L, S);
    return lua_error(L);
  }
  S->from = L;
  S->was_shut_down = 0;
  co = vgL_spawn(L, S, lua_gettop(L) - 1, S->sched->root, 0);
  co->spawn_source = vgL_position(L, S, 1, &line);
  co->spawn_line = line;
  S->in_run = S->ran = 1;
  vg_scheduler_run(S->sched, NULL);
  S->in_run = 0;
  S->active = active;
  if (S->sched == NULL) return luaL_error(L, "vigil.run: the loop is closed");
  vgL_trimthreads(L, S, 4);
  if (S->failed) {
    vgL_pushexiterror(L, S);
    return lua_error(L);
  }
  n = S->types[VGL_COROUTINE]->collect(L, S, 1, &co->event, 0, 0);
  if (n != VGL_RAISE) return n;
  if (co->state != VG_COROUTINE_CANCELLED || !S->was_shut_down)
    return lua_error(L);
  lua_pushnil(L);
  lua_insert(L, -2);
  return 2;
}

/* vigil.shutdown() */
static int l_shutdown(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vgL_checkopen(L, S);
  S->was_shut_down = 1;
  vg_scheduler_shutdown(S->sched);
  return 0;
}

/* vigil.on_unhandled(fn | nil) */
static int l_on_unhandled(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  if (!lua_isnoneornil(L, 1)) luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  lua_rawgeti(L, LUA_REGISTRYINDEX, S->misc_ref);
  lua_pushvalue(L, 1);
  lua_setfield(L, -2, "on_unhandled");
  return 0;
}

/* core.report_error(error, what [, traceback]): as one that nobody took */
static int l_report_error(lua_State *L) {
  const char *what = luaL_checkstring(L, 2);
  const char *traceback = luaL_optstring(L, 3, NULL);
  lua_pushvalue(L, 1);
  vgL_reportunhandled(L, VGL_S(L), what, traceback);
  return 0;
}

/* core.set_quiet(boolean) */
static int l_set_quiet(lua_State *L) {
  VGL_S(L)->quiet = lua_toboolean(L, 1);
  return 0;
}

/* core.set_run_finally(fn): how finally handlers are run */
static int l_set_run_finally(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_rawgeti(L, LUA_REGISTRYINDEX, VGL_S(L)->misc_ref);
  lua_pushvalue(L, 1);
  lua_setfield(L, -2, "run_finally");
  return 0;
}

static const luaL_Reg functions[] = {{"run", l_run},
                                     {"shutdown", l_shutdown},
                                     {"on_unhandled", l_on_unhandled},
                                     {"report_error", l_report_error},
                                     {"set_quiet", l_set_quiet},
                                     {"set_run_finally", l_set_run_finally},
                                     {NULL, NULL}};

void vgL_openrun(lua_State *L, vgL_state_t *S) {
  VG_UNUSED(S);
  vgL_setfuncs(L, functions);
}

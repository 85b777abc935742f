/*
** lua_coroutine.c: a Lua thread as a coroutine of the core.
**
** A coroutine is one userdata.  Its body runs in a Lua thread, called by a
** trampoline (body) through lua_pcallk: only so may <close> variables wait
** while an error unwinds, and only so is the first error known when clean-up
** raises another.  When the body has ended the thread is used again.
**
** While it has not ended, threads[anchor] is its thread, and that has the
** userdata on its stack.  Afterwards only the program's references keep it.
*/

#include <stdio.h>
#include <string.h>

#include "lua_internal.h"

enum { RESULT = VGL_OUTCOME, EXTRAS = VGL_EXTRAS, USERVALUES = 2 };

static const vg_coroutine_methods_t coroutine_methods;

static vgL_state_t *state_of(const vg_coroutine_t *co) {
  return co->event.scheduler->host.data;
}

/*
** {== Rare things, in a table that few coroutines have
*/

/* The outermost frame of a thread; 0: there is none. */
static int get_base(lua_State *thread, lua_Debug *ar) {
  int low = 0, high = 1;
  if (!lua_getstack(thread, 0, ar)) return 0;
  while (lua_getstack(thread, high, ar)) {
    low = high;
    high *= 2;
  }
  while (high - low > 1) {
    int middle = low + (high - low) / 2;
    if (lua_getstack(thread, middle, ar))
      low = middle;
    else
      high = middle;
  }
  return lua_getstack(thread, low, ar);
}

/* It is the first argument of the trampoline at the base of its thread, which
** was not even called if there was no memory for the call. */
void vgL_pushcoroutine(lua_State *L, vgL_state_t *S, vg_coroutine_t *co) {
  lua_State *thread = co->thread;
  lua_Debug ar;

  VG_UNUSED(S);
  /* An error must be raised in L: `thread` may not be running. */
  if (!lua_checkstack(thread, 1)) luaL_error(L, "stack overflow");
  if ((co->flags & VG_CO_STARTED) && get_base(thread, &ar))
    lua_getlocal(thread, &ar, 1);
  else
    lua_pushvalue(thread, 2); /* stack: body, coroutine, ... */
  if (thread != L) lua_xmove(thread, L, 1);
}

void vgL_pushextrasof(lua_State *L, vg_coroutine_t *co, int owner) {
  owner = lua_absindex(L, owner);
  if (co->flags & VG_CO_EXTRAS) {
    lua_getiuservalue(L, owner, EXTRAS);
    return;
  }
  lua_newtable(L);
  lua_pushvalue(L, -1);
  lua_setiuservalue(L, owner, EXTRAS);
  co->flags |= VG_CO_EXTRAS;
}

void vgL_pushextras(lua_State *L, vgL_state_t *S, vg_coroutine_t *co) {
  luaL_checkstack(L, 4, NULL);
  if (co->flags & VG_CO_MAIN) {
    lua_rawgeti(L, LUA_REGISTRYINDEX, S->misc_ref);
    lua_getfield(L, -1, "main");
    lua_remove(L, -2);
    return;
  }
  vgL_pushcoroutine(L, S, co);
  vgL_pushextrasof(L, co, -1);
  lua_remove(L, -2);
}

void vgL_pushname(lua_State *L, vgL_state_t *S, vg_coroutine_t *co) {
  if (!(co->flags & VG_CO_EXTRAS) || vg__coroutine_ended(co)) {
    lua_pushnil(L);
    return;
  }
  vgL_pushextras(L, S, co);
  lua_getfield(L, -1, "name");
  lua_remove(L, -2);
}

/* Its extras keep the text. */
const char *vgL_coname(lua_State *L, vgL_state_t *S, vg_coroutine_t *co) {
  const char *name;
  if (co->flags & VG_CO_MAIN) return NULL;
  vgL_pushname(L, S, co);
  name = lua_tostring(L, -1);
  lua_pop(L, 1);
  return name;
}

void vgL_pushcancellation(lua_State *L, vgL_state_t *S, vg_coroutine_t *co) {
  int own = vg__cancel_active(co);
  vg_block_t *block = own ? NULL : vg__block_active(co);

  vgL_pushextras(L, S, co);
  if (own) {
    lua_getfield(L, -1, "cancel");
  } else {
    lua_rawgetp(L, -1, block);
  }
  if (lua_isnil(L, -1)) { /* nobody has seen it yet */
    lua_pop(L, 1);
    if (own) {
      vgL_pusherror(L, NULL, UV_ECANCELED, "cancelled");
      lua_pushvalue(L, -1);
      lua_setfield(L, -3, "cancel");
    } else {
      vgL_pusherror(L, "timeout", UV_ETIMEDOUT, "timed out");
      lua_pushvalue(L, -1);
      lua_rawsetp(L, -3, block);
    }
  }
  lua_remove(L, -2);
}

/* }================================================================= */


/*
** {== Errors on their way out of the body
*/

/* Both are indexes: gives an error object that has no traceback this one. */
static void add_traceback(lua_State *L, vgL_state_t *S, int index,
                          int traceback) {
  if (vgL_errorkind(L, S, index) == NULL) return;
  lua_getfield(L, index, "traceback");
  if (lua_isnil(L, -1)) {
    lua_pushvalue(L, traceback);
    lua_setfield(L, index, "traceback");
  }
  lua_pop(L, 1);
}

int vgL_keeptraceback(lua_State *L) {
  vgL_state_t *S = vgL_get(L);
  vg_coroutine_t *co = S->sched != NULL ? S->sched->current : NULL;

  lua_settop(L, 1);
  if (co == NULL || (co->flags & VG_CO_CANCEL_ACTIVE)) return 1;
  vgL_pushextras(L, S, co); /* stack: error, extras */
  luaL_traceback(L, L, NULL, 1);
  add_traceback(L, S, 1, 3);
  lua_setfield(L, 2, "inner_traceback");
  lua_pushvalue(L, 1);
  lua_setfield(L, 2, "inner_error");
  lua_settop(L, 1);
  return 1;
}

/* The handler of the body: an error that comes here ends the coroutine.  The
** first one is kept, whatever clean-up raises after it. */
static int body_failed(lua_State *L) {
  vgL_state_t *S = vgL_get(L);
  vg_coroutine_t *co = S->sched != NULL ? S->sched->current : NULL;
  int known;

  lua_settop(L, 1);
  if (co == NULL) return 1;
  vgL_pushextras(L, S, co); /* stack: error, extras */
  lua_getfield(L, 2, "has_first");
  if (lua_toboolean(L, -1)) return lua_settop(L, 1), 1;
  lua_pushboolean(L, 1);
  lua_setfield(L, 2, "has_first");
  lua_pushvalue(L, 1);
  lua_setfield(L, 2, "first");
  lua_getfield(L, 2, "cancel");
  if (lua_rawequal(L, 1, -1) && !lua_isnil(L, -1))
    return lua_settop(L, 1), 1; /* its own cancellation needs none */
  lua_settop(L, 2);
  lua_getfield(L, 2, "inner_error");
  known = lua_rawequal(L, 1, -1);
  lua_settop(L, 2);
  if (known)
    lua_getfield(L, 2, "inner_traceback");
  else
    luaL_traceback(L, L, NULL, 1);
  add_traceback(L, S, 1, 3);
  lua_setfield(L, 2, "traceback");
  lua_settop(L, 1);
  return 1;
}

/* stack: ..., last error.  Leaves the error that the coroutine failed with
** and returns its state.  The first one stays; but an ordinary error wins
** over the coroutine's own cancellation, which becomes its cause. */
static vg_coroutine_state_t choose_error(lua_State *L, vgL_state_t *S,
                                         vg_coroutine_t *co, int owner) {
  int last = lua_gettop(L), extras = last + 1, cancel = last + 2;
  int first = last + 3, chosen = last;

  vgL_pushextrasof(L, co, owner);
  if (co->flags & VG_CO_CANCEL_REQUESTED)
    lua_getfield(L, extras, "cancel");
  else
    lua_pushnil(L);
  lua_getfield(L, extras, "has_first");
  if (lua_toboolean(L, -1)) {
    lua_pop(L, 1);
    lua_getfield(L, extras, "first");
    if (!lua_rawequal(L, first, last)) {
      if (lua_isnil(L, cancel) || !lua_rawequal(L, first, cancel)) {
        chosen = first;
        if (lua_isnil(L, cancel) || !lua_rawequal(L, last, cancel)) {
          lua_pushvalue(L, last);
          vgL_reportunhandled(L, S, "while another error unwound", NULL);
        }
      }
    }
  }
  lua_pushvalue(L, chosen);
  lua_replace(L, last);
  if (lua_isnil(L, cancel)) {
    lua_settop(L, last);
    return VG_COROUTINE_FAILED;
  }
  if (lua_rawequal(L, last, cancel)) {
    lua_settop(L, last);
    return VG_COROUTINE_CANCELLED;
  }
  if (vgL_errorkind(L, S, last) != NULL &&
      lua_getfield(L, last, "cause") == LUA_TNIL) {
    lua_pushvalue(L, cancel);
    lua_setfield(L, last, "cause");
  }
  lua_settop(L, last);
  return VG_COROUTINE_FAILED;
}

/* }================================================================= */


/*
** {== The end of a coroutine
*/

/* `owner`: index of its userdata.  Its finally handlers get a coroutine of
** their own, in front of everybody who is woken now. */
static void end(lua_State *L, vgL_state_t *S, vg_coroutine_t *co, int owner,
                vg_coroutine_state_t how) {
  owner = lua_absindex(L, owner);
  if (co->flags & VG_CO_EXTRAS) {
    lua_getiuservalue(L, owner, EXTRAS);
    if (lua_getfield(L, -1, "finally") != LUA_TNIL) {
      lua_rawgeti(L, LUA_REGISTRYINDEX, S->misc_ref);
      lua_getfield(L, -1, "run_finally");
      lua_replace(L, -2);
      lua_insert(L, -2); /* stack: extras, run_finally, handlers */
      lua_pushvalue(L, owner);
      vgL_spawn(L, S, 2, co->scope, 1)->flags |= VG_CO_CLEANUP;
    }
    lua_pop(L, 2);
  }
  vg_coroutine_finish(co, how);
}

/* The body has returned, or failed.  stack: coroutine, handler, results... or
** coroutine, handler, error. */
static int body_done(lua_State *L, int status, lua_KContext ctx) {
  vg_coroutine_t *co = lua_touserdata(L, 1);
  vgL_state_t *S = state_of(co);
  vg_coroutine_state_t how = VG_COROUTINE_COMPLETED;
  int n = lua_gettop(L) - 2;

  VG_UNUSED(ctx);
  if (status != LUA_OK && status != LUA_YIELD) {
    how = choose_error(L, S, co, 1);
    lua_setiuservalue(L, 1, RESULT);
  } else if (n > 0 && vgL_pack(L, 1, n)) {
    co->flags |= VG_CO_MULTI;
  }
  S->keep_thread = !(co->flags & VG_CO_GOT_HOLD);
  end(L, S, co, 1, how);
  return 0;
}

/* The trampoline.  stack: coroutine, handler, function, arguments... */
static int body(lua_State *L) {
  return body_done(
      L, lua_pcallk(L, lua_gettop(L) - 3, LUA_MULTRET, 2, 0, body_done), 0);
}

/* }================================================================= */


/*
** {== Threads
*/

/* More than this many idle threads are not kept. */
#define MAX_RECYCLED 1024

/* Forgets a thread: its place in the table links to the next free one. */
static void drop_thread(lua_State *L, vgL_state_t *S, uint32_t anchor) {
  lua_rawgeti(L, LUA_REGISTRYINDEX, S->threads_ref);
  lua_pushinteger(L, (lua_Integer)S->free_anchor);
  lua_rawseti(L, -2, (lua_Integer)anchor);
  lua_pop(L, 1);
  S->free_anchor = anchor;
}

void vgL_trimthreads(lua_State *L, vgL_state_t *S, uint32_t keep) {
  while (S->recycled_count > keep)
    drop_thread(L, S, S->recycled[--S->recycled_count].anchor);
}

static int reserve_recycled(vgL_state_t *S) {
  uint32_t size = S->recycled_size > 0 ? 2 * S->recycled_size : 16;
  vgL_thread_t *recycled;

  if (S->recycled_count < S->recycled_size) return 1;
  if (S->recycled_size >= MAX_RECYCLED) return 0;
  recycled =
      vg__realloc(S->sched, S->recycled, S->recycled_size * sizeof *recycled,
                  size * sizeof *recycled);
  if (recycled == NULL) return 0;
  S->recycled = recycled;
  S->recycled_size = size;
  return 1;
}

/* The body has ended: its thread is as new, but for a debug hook that may be
** left.  (A stack that has grown large is the collector's to shrink.) */
static void release_thread(vgL_state_t *S, lua_State *thread, uint32_t anchor,
                           int reusable) {
  if (!reusable || !reserve_recycled(S)) {
    drop_thread(S->aside, S, anchor);
    return;
  }
  if (lua_gethook(thread) != NULL) lua_sethook(thread, NULL, 0, 0);
  S->recycled[S->recycled_count].thread = thread;
  S->recycled[S->recycled_count++].anchor = anchor;
}

/* Makes sure that there is a recycled thread.  Raises. */
static void need_thread(lua_State *L, vgL_state_t *S) {
  uint32_t anchor = S->free_anchor, next = 0;
  lua_State *thread;

  if (!reserve_recycled(S)) luaL_error(L, "not enough memory");
  luaL_checkstack(L, 4, NULL);
  lua_rawgeti(L, LUA_REGISTRYINDEX, S->threads_ref);
  if (anchor != 0) {
    lua_rawgeti(L, -1, (lua_Integer)anchor);
    next = (uint32_t)lua_tointeger(L, -1);
    lua_pop(L, 1);
  } else {
    anchor = S->anchors + 1;
  }
  thread = lua_newthread(L);
  if (lua_gethook(L) != NULL) lua_sethook(thread, NULL, 0, 0);
  lua_rawseti(L, -2, (lua_Integer)anchor);
  lua_pop(L, 1);
  if (anchor == S->free_anchor)
    S->free_anchor = next;
  else
    S->anchors = anchor;
  S->recycled[S->recycled_count].thread = thread;
  S->recycled[S->recycled_count++].anchor = anchor;
}

/* }================================================================= */


/*
** {== Running: the methods that the core calls
*/

/* Ends a coroutine whose thread is lost.  stack of S->aside: error. */
static int fail_lost(lua_State *L) {
  vg_coroutine_t *co = lua_touserdata(L, 1);
  vgL_state_t *S = state_of(co);

  vgL_pushcoroutine(L, S, co); /* stack: light coroutine, error, owner */
  lua_pushvalue(L, 2);
  lua_setiuservalue(L, 3, RESULT);
  end(L, S, co, 3, VG_COROUTINE_FAILED);
  return 0;
}

static void lose(vgL_state_t *S, vg_coroutine_t *co, lua_State *thread) {
  lua_State *L = S->aside;
  uint32_t anchor = co->anchor;
  int top = lua_gettop(L);

  if (!vg__coroutine_ended(co)) {
    lua_pushcfunction(L, fail_lost);
    lua_pushlightuserdata(L, co);
    lua_xmove(thread, L, 1);
    lua_pcall(L, 2, 0, 0);
    if (!vg__coroutine_ended(co)) /* there was no memory for its handlers */
      vg_coroutine_finish(co, VG_COROUTINE_FAILED);
  }
  lua_settop(L, top);
  lua_resetthread(thread);
  release_thread(S, thread, anchor, 0);
}

/* A stray yield or an error outside the body: neither leaves a usable thread. */
static void resume_failed(vgL_state_t *S, vg_coroutine_t *co, lua_State *thread,
                          int status) {
  if (status == LUA_YIELD)
    lua_pushliteral(thread, "coroutine.yield outside of a plain coroutine "
                            "(vigil.suspend lets the others run)");
  lose(S, co, thread);
}

static int coroutine_resume(vg_coroutine_t *co) {
  vg_scheduler_t *s = co->event.scheduler;
  vgL_state_t *S = s->host.data;
  lua_State *before = S->active;
  lua_State *walled = S->walled;
  int handled = co->flags & VG_CO_SWITCH_HANDLERS;
  int status, n, outcome;

  S->walled = NULL;
  do {
    lua_State *thread = co->thread;
    uint32_t anchor = co->anchor;
    n = lua_status(thread) == LUA_YIELD ? 0 : lua_gettop(thread) - 1;
    S->active = thread;
    status = lua_resume(thread, S->from, n, &n);
    if (status == LUA_YIELD && S->parked) {
      S->parked = 0;
      outcome = VG_SUSPENDED;
    } else if (status == LUA_OK) {
      release_thread(S, thread, anchor, S->keep_thread);
      outcome = VG_FINISHED;
    } else {
      resume_failed(S, co, thread, status);
      outcome = VG_FINISHED;
    }
    /* from here on, what was resumed may be gone */
  } while (!handled && S->sched != NULL &&
           (co = vg__next(s, &coroutine_methods)) != NULL);
  S->active = before;
  S->walled = walled;
  return outcome;
}

/* stack: light coroutine */
static int discard(lua_State *L) {
  vg_coroutine_t *co = lua_touserdata(L, 1);
  vgL_state_t *S = state_of(co);

  vgL_pushcoroutine(L, S, co);
  vgL_pushcancellation(L, S, co);
  lua_setiuservalue(L, 2, RESULT);
  end(L, S, co, 2, VG_COROUTINE_CANCELLED);
  return 0;
}

/* It was cancelled before it ran. */
static void coroutine_discard(vg_coroutine_t *co) {
  vgL_state_t *S = state_of(co);
  lua_State *L = S->aside;
  lua_State *thread = co->thread;
  uint32_t anchor = co->anchor;
  int top = lua_gettop(L);

  vg__coroutine_judge(co);
  lua_pushcfunction(L, discard);
  lua_pushlightuserdata(L, co);
  lua_pcall(L, 1, 0, 0);
  if (!vg__coroutine_ended(co)) vg_coroutine_finish(co, VG_COROUTINE_CANCELLED);
  lua_settop(L, top);
  lua_settop(thread, 0); /* body, function, arguments */
  release_thread(S, thread, anchor, 1);
}

/* Where it waits: the innermost Lua function of the waiting thread. */
static int coroutine_where(const vg_coroutine_t *co, char *buffer,
                           size_t size) {
  lua_State *thread = co->waker.thread;
  lua_Debug ar;
  int level;

  if (thread == NULL) return 0;
  for (level = 0; lua_getstack(thread, level, &ar); level++) {
    lua_getinfo(thread, "Sl", &ar);
    if (ar.currentline > 0)
      return snprintf(buffer, size, "%s:%d", ar.short_src, ar.currentline);
  }
  return 0;
}

static void coroutine_dispose(vg_event_t *event) { VG_UNUSED(event); }

static const vg_coroutine_methods_t coroutine_methods = {
    .event = {.name = "coroutine",
              .replay = vg__coroutine_replay,
              .dispose = coroutine_dispose,
              .info = vg__coroutine_info},
    .resume = coroutine_resume,
    .discard = coroutine_discard,
    .where = coroutine_where,
};

/* The main chunk is never resumed: vg_scheduler_run returns to it. */
const vg_coroutine_methods_t vgL_main_methods = {
    .event = {.name = "main chunk",
              .dispose = coroutine_dispose,
              .info = vg__coroutine_info},
    .where = coroutine_where,
};

/* }================================================================= */


/*
** {== Spawning
*/

vg_coroutine_t *vgL_spawn(lua_State *L, vgL_state_t *S, int nargs,
                          vg_scope_t *scope, int high_priority) {
  vg_coroutine_t *co;
  lua_State *thread;
  int err;

  vgL_checkopen(L, S);
  if (S->recycled_count == 0) need_thread(L, S);
  thread = S->recycled[S->recycled_count - 1].thread;
  if (nargs > LUA_MINSTACK - 8) { /* else there is room, here and there */
    luaL_checkstack(L, 6, NULL);
    if (!lua_checkstack(thread, nargs + 5)) luaL_error(L, "too many arguments");
  }
  co = lua_newuserdatauv(L, sizeof *co, USERVALUES);
  vg_coroutine_init(co, S->sched, &coroutine_methods, VG_EVENT_LUA_OBJECT);
  lua_rawgeti(L, LUA_REGISTRYINDEX, S->metatable_refs[VGL_COROUTINE]);
  lua_setmetatable(L, -2); /* stack: function, arguments..., coroutine */
  co->thread = thread;
  co->anchor = S->recycled[S->recycled_count - 1].anchor;
  err = vg_coroutine_spawn(co, scope, high_priority);
  if (err < 0) {
    vgL_pusherror(L, NULL, err, "the scope is closed");
    lua_error(L);
  }
  S->recycled_count--;
  /* stack of the thread: body, coroutine, handler, function, arguments... */
  lua_pushcfunction(thread, body);
  lua_pushvalue(L, -1);
  lua_xmove(L, thread, 1);
  lua_pushcfunction(thread, body_failed);
  lua_insert(L, -(nargs + 2));
  lua_xmove(L, thread, nargs + 1);
  return co;
}

/* vigil.spawn(fn, ...) --> coroutine */
static int l_spawn(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_coroutine_t *co, *current;
  int line;

  luaL_checktype(L, 1, LUA_TFUNCTION);
  vgL_checkopen(L, S);
  current = S->sched->current;
  co = vgL_spawn(L, S, lua_gettop(L) - 1,
                 current != NULL ? current->scope : S->sched->root, 0);
  co->spawn_source = vgL_position(L, S, 1, &line);
  co->spawn_line = line;
  if (co->scope->cancelled) vg_coroutine_cancel(co);
  return 1;
}

/* core.spawn_in(scope, fn, ...) --> coroutine, for the Lua layer */
static int l_spawn_in(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_scope_t *scope = vgL_check(L, S, 1, VGL_SCOPE);
  vg_coroutine_t *co;
  int line;

  luaL_checktype(L, 2, LUA_TFUNCTION);
  co = vgL_spawn(L, S, lua_gettop(L) - 2, scope, 0);
  co->spawn_source = vgL_position(L, S, 2, &line);
  co->spawn_line = line;
  if (scope->cancelled) vg_coroutine_cancel(co);
  return 1;
}

/* vigil.current() --> coroutine | nil */
static int l_current(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  if (S->sched == NULL || S->sched->current == NULL)
    lua_pushnil(L);
  else
    vgL_pushcoroutine(L, S, S->sched->current);
  return 1;
}

/* }================================================================= */

static const luaL_Reg functions[] = {{"spawn", l_spawn},
                                     {"spawn_in", l_spawn_in},
                                     {"current", l_current},
                                     {NULL, NULL}};

void vgL_opencoroutine(lua_State *L, vgL_state_t *S) {
  VG_UNUSED(S);
  vgL_setfuncs(L, functions);
}

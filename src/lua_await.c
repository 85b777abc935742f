/*
** lua_await.c: how Lua code waits.
**
** A suspension point, in order:
**
**   vgL_enter     may one wait here, and is the coroutine cancelled?
**   is it ready   then vgL_ready: no suspension
**   vgL_newwait   the waker is empty; the limit is subscribed
**   subscribe     what is waited for
**   vgL_park      starts it all and yields; nothing after it runs
**   done          the continuation, once the waker has the outcome:
**                 vgL_woken first, then the results
**
** The main chunk goes the same way, but vgL_park drives the loop instead.
*/

#include <string.h>

#include "lua_internal.h"

/*
** {== May one wait here?
*/

/* The name under which package.loaded knows the function on the top. */
static const char *global_name(lua_State *L) {
  int top = lua_gettop(L);
  const char *name = NULL;

  lua_getfield(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  lua_pushnil(L);
  while (name == NULL && lua_next(L, top + 1)) {
    if (lua_type(L, -2) == LUA_TSTRING && lua_istable(L, -1)) {
      lua_pushnil(L);
      while (lua_next(L, -2)) {
        if (lua_type(L, -2) == LUA_TSTRING && lua_rawequal(L, -1, top)) {
          const char *module = lua_tostring(L, top + 2);
          const char *field = lua_tostring(L, -2);
          name = strcmp(module, LUA_GNAME) == 0
                     ? lua_pushstring(L, field)
                     : lua_pushfstring(L, "%s.%s", module, field);
          lua_replace(L, top); /* keeps the text alive */
          break;
        }
        lua_pop(L, 1);
      }
    }
    lua_settop(L, name != NULL ? top : top + 2);
  }
  lua_settop(L, top);
  return name;
}

/* The functions of the standard library that do yield. */
static int yields(const char *name) {
  return name != NULL &&
         (strcmp(name, "pcall") == 0 || strcmp(name, "xpcall") == 0 ||
          strcmp(name, "dofile") == 0 || strcmp(name, "pairs") == 0);
}

/* Whether the function on the top is one of vigil's: those can yield. */
static int is_ours(lua_State *L, vgL_state_t *S) {
  int ours = 0;
  if (lua_getupvalue(L, -1, 1) != NULL) {
    ours = lua_touserdata(L, -1) == S;
    lua_pop(L, 1);
  }
  return ours;
}

/* Raises: a C function on the stack, or a finalizer, cannot yield. */
static int refuse_wall(lua_State *L, vgL_state_t *S, const char *what) {
  lua_State *at = L;
  lua_Debug ar;
  const char *culprit = "a C function";
  int level;

  if (S->walled != NULL) at = S->walled; /* outside the plain coroutine */
  luaL_checkstack(L, 8, NULL);
  for (level = 0; lua_getstack(at, level, &ar); level++) {
    const char *name;
    lua_getinfo(at, "nS", &ar);
    if (ar.namewhat[0] == 'm' && strcmp(ar.name, "__gc") == 0) {
      culprit = "a __gc metamethod";
      break;
    }
    if (ar.what[0] != 'C' || (level == 0 && at == L)) continue;
    if (!lua_checkstack(at, 2)) break;
    lua_getinfo(at, "f", &ar);
    lua_xmove(at, L, 1);
    if (is_ours(L, S)) {
      lua_pop(L, 1);
      continue;
    }
    name = global_name(L);
    if (!yields(name)) {
      culprit = name != NULL ? name : ar.name != NULL ? ar.name : culprit;
      break;
    }
    lua_pop(L, 1);
  }
  return luaL_error(L,
                    "vigil.%s: cannot wait here: %s is in between and "
                    "cannot be suspended",
                    what, culprit);
}

vg_coroutine_t *vgL_enterslow(lua_State *L, vgL_state_t *S, const char *what) {
  vg_coroutine_t *co;

  if (S->sched == NULL) luaL_error(L, "vigil.%s: the loop is closed", what);
  co = S->sched->current;
  if (L != S->active) {
    if (S->sched->running && (co == NULL || L == S->aside))
      luaL_error(L,
                 "vigil.%s: the loop is running, and this is outside of "
                 "every coroutine",
                 what);
    luaL_error(L,
               "vigil.%s: cannot wait in a plain coroutine; make it with "
               "vigil.coroutine (or call vigil.coroutine.install())",
               what);
  }
  if (co == NULL) {
    if (S->sched->running)
      luaL_error(L,
                 "vigil.%s: the loop is already running (a finalizer "
                 "cannot wait)",
                 what);
    if (S->failed) { /* an error that no wait of its own has raised yet */
      vgL_pushexiterror(L, S);
      lua_error(L);
    }
    S->from = L;
    co = &S->main;
  } else if (S->walled != NULL || !lua_isyieldable(L)) {
    refuse_wall(L, S, what);
  }
  if (co->flags & VG_CO_CANCEL_ACTIVE) {
    vgL_pushcancellation(L, S, co);
    lua_error(L);
  }
  return co;
}

/* }================================================================= */


/*
** {== Waiting
*/

/* Gives up control; `k` goes on.  The waker has been parked or queued. */
static int give_up(lua_State *L, vgL_state_t *S, vg_coroutine_t *co,
                   lua_KContext ctx, lua_KFunction k) {
  co->waker.thread = L;
  if (co == &S->main) {
    lua_State *active = S->active;
    vg_scheduler_run(S->sched, co);
    S->active = active;
    return k(L, LUA_YIELD, ctx);
  }
  S->parked = 1;
  if (L == co->thread) return lua_yieldk(L, 0, ctx, k);
  /* In a vigil.coroutine: its resumer sees this value and yields, too. */
  lua_pushlightuserdata(L, S);
  return lua_yieldk(L, 1, ctx, k);
}

int vgL_park(lua_State *L, vgL_state_t *S, vg_coroutine_t *co, lua_KContext ctx,
             lua_KFunction done) {
  co->waker.thread = L;
  if (vg_waker_park(co) <= 0) return done(L, LUA_OK, ctx);
  return give_up(L, S, co, ctx, done);
}

/* Queues the running coroutine behind the others, whatever its priority:
** it is their turn. */
static int take_turns(lua_State *L, vgL_state_t *S, vg_coroutine_t *co,
                      lua_KContext ctx, lua_KFunction k) {
  vg_waker_new(co);
  co->waker.status = VG_WAKER_QUEUED;
  co->state = VG_COROUTINE_QUEUED;
  vg_ring_push(&S->sched->ready, co);
  return give_up(L, S, co, ctx, k);
}

static int ready_done(lua_State *L, int status, lua_KContext ctx) {
  VG_UNUSED(L);
  VG_UNUSED(status);
  return (int)ctx;
}

int vgL_ready(lua_State *L, vgL_state_t *S, vg_coroutine_t *co, int n) {
  if (++co->burst < VG_READY_BURST) return n;
  co->burst = 0;
  return take_turns(L, S, co, n, ready_done);
}

/* Pushes the deadlock error that the report left for this coroutine. */
static void push_deadlock(lua_State *L, vgL_state_t *S, vg_coroutine_t *co) {
  lua_rawgeti(L, LUA_REGISTRYINDEX, S->misc_ref);
  lua_rawgetp(L, -1, co);
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    vgL_pusherror(L, NULL, VG_EDEADLOCK, NULL);
  } else {
    lua_pushnil(L);
    lua_rawsetp(L, -3, co);
  }
  lua_remove(L, -2);
}

int vgL_wokenslow(lua_State *L, vgL_state_t *S) {
  vg_coroutine_t *co = vgL_self(S);
  vg_waker_t *w = &co->waker;

  if (w->error == 0) return 0;
  if (w->ordinal == VG_ORDINAL_NONE) {
    switch (w->error) {
      case UV_ECANCELED:
        if (!(co->flags & VG_CO_CANCEL_ACTIVE)) break;
        vgL_pushcancellation(L, S, co);
        return lua_error(L);
      case VG_EDEADLOCK: push_deadlock(L, S, co); return lua_error(L);
      case VG_EFAILED: /* the main chunk: an error that nobody took */
        if (co != &S->main) break;
        vgL_pushexiterror(L, S);
        return lua_error(L);
      default: break;
    }
  }
  return w->error;
}

/* }================================================================= */


/*
** {== Tokens
*/

void vgL_opttoken(lua_State *L, vgL_state_t *S, int index, vgL_token_t *token) {
  int type;

  token->due_ns = 0;
  token->event = NULL;
  token->index = 0;
  if (lua_isnoneornil(L, index)) return;
  if (lua_type(L, index) == LUA_TNUMBER) {
    double seconds = vgL_checkseconds(L, index, "timeout");
    token->due_ns = vg__deadline(seconds);
    token->index = index;
    return;
  }
  token->event = vgL_toevent(L, S, index, &type);
  if (token->event == NULL || type == VGL_CHANNEL || type == VGL_SENDING)
    luaL_typeerror(L, index, "timeout in seconds or awaitable");
  if (type == VGL_FUTURE) vgL_caught(L, index);
  token->index = index;
}

int vgL_tokenfired(lua_State *L, vgL_state_t *S, const vgL_token_t *token) {
  int type;
  if (token->event == NULL) return 0;
  vgL_toevent(L, S, token->index, &type);
  if (S->types[type]->is_ready != NULL)
    return S->types[type]->is_ready(L, S, token->index, token->event);
  return vg_event_replay(token->event, NULL);
}

void vgL_newwait(lua_State *L, vgL_state_t *S, vg_coroutine_t *co,
                 const vgL_token_t *token) {
  int err = vg_waker_new_with_timeout(co, token->due_ns, token->event);
  VG_UNUSED(S);
  if (err < 0) {
    vgL_pusherror(L, NULL, err, NULL);
    lua_error(L);
  }
}

/* }================================================================= */


/*
** {== Awaitables
*/

vg_event_t *vgL_toawaitable(lua_State *L, vgL_state_t *S, int index,
                            int argument, int *type) {
  vg_event_t *event = vgL_toevent(L, S, index, type);

  if (event != NULL) return event;
  if (luaL_getmetafield(L, index, "__await") == LUA_TNIL)
    luaL_argerror(L, argument,
                  lua_pushfstring(L, "awaitable expected, got %s",
                                  luaL_typename(L, index)));
  vgL_newwaker(L, S); /* stack: ..., __await, waker */
  lua_pushvalue(L, index);
  lua_pushvalue(L, -2);
  lua_replace(L, index);
  lua_insert(L, -2); /* stack: ..., __await, object, waker */
  lua_pushcfunction(L, vgL_keeptraceback);
  lua_insert(L, -4);
  if (lua_pcall(L, 2, 0, -4) != LUA_OK) {
    vgL_abandon(L, S, index);
    lua_remove(L, -2); /* the handler */
    return NULL;
  }
  lua_pop(L, 1);
  *type = VGL_WAKER;
  return vgL_toevent(L, S, index, type);
}

int vgL_isready(lua_State *L, vgL_state_t *S, int index, int type,
                vg_event_t *event) {
  if (S->types[type]->is_ready != NULL)
    return S->types[type]->is_ready(L, S, index, event);
  return event->methods->replay != NULL && event->methods->replay(event, NULL);
}

int vgL_subscribe(lua_State *L, vgL_state_t *S, int index, int type,
                  vg_event_t *event, vg_coroutine_t *co) {
  if (S->types[type]->subscribe != NULL)
    return S->types[type]->subscribe(L, S, index, event, co);
  return vg_resume_when(co, event, 0, NULL, NULL);
}

/* }================================================================= */


/*
** {== await and pawait.  stack: awaitable, token
*/

enum { AWAIT, PAWAIT };

/* Returns n results, or the error on the top, the way the caller asked. */
static int finish(lua_State *L, vgL_state_t *S, lua_KContext how, int n) {
  VG_UNUSED(S);
  if (how == AWAIT) return n == VGL_RAISE ? lua_error(L) : n;
  if (n == VGL_RAISE) {
    lua_pushboolean(L, 0);
    lua_insert(L, -2);
    return 2;
  }
  luaL_checkstack(L, 2, "too many results");
  lua_pushboolean(L, 1);
  lua_insert(L, -(n + 1));
  return n + 1;
}

static int await_done(lua_State *L, int status, lua_KContext how) {
  vgL_state_t *S = VGL_S(L);
  vg_waker_t *w = &vgL_self(S)->waker;
  int type, n;
  vg_event_t *event;

  VG_UNUSED(status);
  if (w->error != 0) {
    vgL_abandon(L, S, 1);
    if (w->ordinal == VG_ORDINAL_NONE && w->error == VG_EDEADLOCK &&
        how == PAWAIT) {
      push_deadlock(L, S, vgL_self(S));
      return finish(L, S, how, VGL_RAISE);
    }
    vgL_woken(L, S);
    if (w->error == VG_ETOKEN ||
        (w->error == UV_ETIMEDOUT && w->ordinal == VG_ORDINAL_NONE)) {
      vgL_pushtokenerror(L, S, w->error, 2);
      return finish(L, S, how, VGL_RAISE);
    }
    if (w->ordinal == VG_ORDINAL_NONE) { /* it could not be started */
      vgL_pusherror(L, NULL, w->error, NULL);
      return finish(L, S, how, VGL_RAISE);
    }
  }
  event = vgL_toevent(L, S, 1, &type);
  n = S->types[type]->collect(L, S, 1, event, w->error, w->value);
  return finish(L, S, how, n);
}

static int await(lua_State *L, lua_KContext how) {
  vgL_state_t *S = VGL_S(L);
  vg_coroutine_t *co;
  vg_event_t *event;
  vgL_token_t token;
  int type, err;

  luaL_checkany(L, 1);
  lua_settop(L, 2);
  co = vgL_enter(L, S, how == AWAIT ? "await" : "pawait");
  vgL_opttoken(L, S, 2, &token);
  event = vgL_toawaitable(L, S, 1, 1, &type);
  if (event == NULL) return finish(L, S, how, VGL_RAISE);
  if (token.event == event) token.event = NULL;
  while (vgL_makeroom(L, 1, type, 1)) continue;
  if (vgL_isready(L, S, 1, type, event)) {
    int n = S->types[type]->collect(L, S, 1, event, 0, 0);
    if (n == VGL_RAISE) return finish(L, S, how, n);
    return vgL_ready(L, S, co, finish(L, S, how, n));
  }
  if (vgL_tokenfired(L, S, &token)) {
    vgL_abandon(L, S, 1);
    vgL_pushtokenerror(L, S, VG_ETOKEN, 2);
    return finish(L, S, how, VGL_RAISE);
  }
  vgL_newwait(L, S, co, &token);
  err = vgL_subscribe(L, S, 1, type, event, co);
  if (err < 0) {
    vg_waker_clean(co);
    vgL_pusherror(L, NULL, err, NULL);
    return finish(L, S, how, VGL_RAISE);
  }
  return vgL_park(L, S, co, how, await_done);
}

/* vigil.await(awaitable [, token]) --> results... */
static int l_await(lua_State *L) { return await(L, AWAIT); }

/* vigil.pawait(awaitable [, token]) --> true, results... | false, error */
static int l_pawait(lua_State *L) { return await(L, PAWAIT); }

/* }================================================================= */


/*
** {== suspend, sleep, checkpoint
*/

static int suspend_done(lua_State *L, int status, lua_KContext ctx) {
  vgL_state_t *S = VGL_S(L);
  VG_UNUSED(status);
  VG_UNUSED(ctx);
  vgL_woken(L, S);
  if (vgL_self(S)->flags & VG_CO_CANCEL_ACTIVE) {
    vgL_pushcancellation(L, S, vgL_self(S));
    return lua_error(L);
  }
  return 0;
}

/* vigil.suspend() */
static int l_suspend(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_coroutine_t *co = vgL_enter(L, S, "suspend");
  lua_settop(L, 0);
  return take_turns(L, S, co, 0, suspend_done);
}

/* vigil.sleep(seconds) */
static int l_sleep(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  double seconds = vgL_checkseconds(L, 1, "seconds");
  vg_coroutine_t *co = vgL_enter(L, S, "sleep");
  int err;

  lua_settop(L, 0);
  if (seconds == 0) return take_turns(L, S, co, 0, suspend_done);
  vg_waker_new(co);
  err = vg__waker_timer(co, vg__deadline(seconds), 1);
  if (err < 0) {
    vgL_pusherror(L, NULL, err, NULL);
    return lua_error(L);
  }
  return vgL_park(L, S, co, 0, suspend_done);
}

/* vigil.checkpoint() */
static int l_checkpoint(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vgL_checkopen(L, S);
  vg__blocks_expire(vgL_self(S)); /* computing does not turn the loop */
  if (vgL_self(S)->flags & VG_CO_CANCEL_ACTIVE) {
    vgL_pushcancellation(L, S, vgL_self(S));
    return lua_error(L);
  }
  return 0;
}

/* }================================================================= */

static const luaL_Reg functions[] = {
    {"await", l_await}, {"pawait", l_pawait},         {"suspend", l_suspend},
    {"sleep", l_sleep}, {"checkpoint", l_checkpoint}, {NULL, NULL}};

void vgL_openawait(lua_State *L, vgL_state_t *S) {
  VG_UNUSED(S);
  vgL_setfuncs(L, functions);
}

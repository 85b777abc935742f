/*
** lua_internal.h: what the files of the Lua binding share.  Private.
**
** Stack rules.  A C function that waits ends with `return vgL_park(...)`, and
** goes on in its continuation, with the same stack (plus what was delivered).
** Every function that may raise says so; what libuv calls never comes here.
**
** Upvalue 1 of every function registered by vgL_newtype or vgL_setfuncs is
** the state's userdata: VGL_S(L).
*/

#ifndef VG_LUA_INTERNAL_H
#define VG_LUA_INTERNAL_H

#include <lauxlib.h>
#include <lua.h>

#include "internal.h"

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

typedef struct vgL_state vgL_state_t;

#define VGL_S(L) ((vgL_state_t *)lua_touserdata(L, lua_upvalueindex(1)))

/* `collect` returns this after pushing an error value. */
#define VGL_RAISE (-1)

/* What the binding knows of one kind of awaitable.  `index` is where the
** userdata is on the stack of L. */
typedef struct vgL_type {
  const char *name; /* its metatable's __name, "vigil.timer" */
  int is_box;       /* the userdata holds a vg_event_t *, or is the event */
  /* Pushes what awaiting it gives after it fired with (status, value), or
  ** after its replay (value 0); returns how many, or VGL_RAISE. */
  int (*collect)(lua_State *L, vgL_state_t *S, int index, vg_event_t *event,
                 int status, intptr_t value);
  /* Adds a subscription to the wait being prepared; NULL: the ordinary one.
  ** A negative result is an error code. */
  int (*subscribe)(lua_State *L, vgL_state_t *S, int index, vg_event_t *event,
                   vg_coroutine_t *co);
  /* Whether collecting now would not wait; NULL: vg_event_replay. */
  int (*is_ready)(lua_State *L, vgL_state_t *S, int index, vg_event_t *event);
} vgL_type_t;

/* The uservalue in which an object keeps its outcome. */
#define VGL_OUTCOME 1
/* And, for some, a table of what few of them have. */
#define VGL_EXTRAS 2

/* Types in the order in which they are looked up. */
enum {
  VGL_COROUTINE,
  VGL_FUTURE,
  VGL_CHANNEL,
  VGL_SENDING,
  VGL_TIMER,
  VGL_WAKER,
  VGL_IO,
  VGL_LISTEN,
  VGL_POLL,
  VGL_SIGNAL,
  VGL_TRIGGER,
  VGL_SCOPE,
  VGL_TYPES
};

/* A Lua thread that no coroutine uses at present. */
typedef struct vgL_thread {
  lua_State *thread; /* its stack is empty */
  uint32_t anchor;
} vgL_thread_t;

/* One for each Lua state; a userdata, anchored in the registry.
**   - threads[i] (a table), i from 1 to `anchors`, is a thread that is in use
**     or recycled, or the number of the next free place.
**   - `active` is the thread that may wait: the running coroutine's, or the
**     innermost vigil.coroutine in it, or the main thread. */
struct vgL_state {
  vg_scheduler_t *sched; /* NULL once the state has been closed */
  lua_State *L;          /* the main thread */
  lua_State *active;
  lua_State *from;     /* who runs the scheduler */
  lua_State *aside;    /* for calls of the scheduler's: when the main chunk
                       ** waits, what it is given lies on the stack of `from` */
  vg_coroutine_t main; /* the main chunk, when it waits */
  int parked;          /* the yield under way is a wait of ours */
  int keep_thread;     /* the thread of the body that just ended is as new */
  lua_State *walled;   /* has a C function that cannot yield: a plain
                       ** coroutine that runs below may not wait */
  const void *metatables[VGL_TYPES];
  int metatable_refs[VGL_TYPES];
  const vgL_type_t *types[VGL_TYPES];
  const void *error_metatable;
  int error_ref;
  int threads_ref;        /* a table, in the registry */
  int misc_ref;           /* another: what is rare, by name or pointer */
  vgL_thread_t *recycled; /* a stack */
  uint32_t recycled_count, recycled_size;
  uint32_t anchors;     /* places in `threads` */
  uint32_t free_anchor; /* the first free one, or 0 */
  uint64_t random;
  int failed;        /* misc.exit_error is set: the run fails with it */
  int in_run;        /* vigil.run is under way */
  int ran;           /* the scheduler has been run at least once */
  int was_shut_down; /* vigil.shutdown was called during this run */
  int quiet;         /* no reports on stderr */
  struct vgL_source *sources[64]; /* chunk names: lua_position.c */
  struct vgL_source *recent[64];
};


/*
** {== lua_util.c: arguments
*/

/* The event behind a userdata of ours, or NULL; `type` may be NULL. */
vg_event_t *vgL_toevent(lua_State *L, vgL_state_t *S, int index, int *type);
/* The object of one type: the box's event or the userdata itself.  Raises
** "vigil.xxx expected, got yyy", naming the argument. */
void *vgL_checkslow(lua_State *L, vgL_state_t *S, int index, int type);
static inline void *vgL_check(lua_State *L, vgL_state_t *S, int index,
                              int type) {
  if (S->sched != NULL && lua_getmetatable(L, index)) {
    const void *mt = lua_topointer(L, -1);
    lua_pop(L, 1);
    if (mt == S->metatables[type]) {
      void *object = lua_touserdata(L, index);
      if (object != NULL && S->types[type]->is_box)
        object = *(vg_event_t **)object;
      if (object != NULL) return object;
    }
  }
  return vgL_checkslow(L, S, index, type);
}
/* Raises when the state has been closed: "vigil: the loop is closed". */
void vgL_checkopen(lua_State *L, vgL_state_t *S);
/* Seconds >= 0, not NaN; inf is allowed. */
double vgL_checkseconds(lua_State *L, int index, const char *what);
/* A new userdata of a registered type, with its metatable; zeroed.  A box is
** NULL until the caller stores its event. */
void *vgL_newobject(lua_State *L, vgL_state_t *S, int type, size_t size,
                    int uservalues);
/* The box of an event; takes over the caller's reference (also when this
** raises).  Pushes it. */
void vgL_pushbox(lua_State *L, vgL_state_t *S, int type, vg_event_t *event,
                 int uservalues);
/* Creates the metatable of a type: __name, __index = methods, and the given
** metamethods; `__gc` and `__tostring` have defaults (boxes; all). */
void vgL_newtype(lua_State *L, vgL_state_t *S, int type, const vgL_type_t *desc,
                 const luaL_Reg *methods, const luaL_Reg *metamethods);
/* luaL_setfuncs with the state's userdata as the only upvalue. */
void vgL_setfuncs(lua_State *L, const luaL_Reg *funcs);
/* Pushes the state's userdata; vgL_get finds it without any upvalue. */
void vgL_pushstate(lua_State *L);
void vgL_setstate(lua_State *L); /* pops it; for luaopen */
vgL_state_t *vgL_get(lua_State *L);
/* The top n values become the outcome that the userdata at `owner` keeps, in
** its first uservalue; pops them.  Returns whether they were packed. */
int vgL_pack(lua_State *L, int owner, int n);
/* Pushes them again; returns how many (none counts as one nil). */
int vgL_unpack(lua_State *L, int owner, int packed);
/* Collects everything, turns the loop once if that is possible here: for
** EMFILE and its like, before a second and last try. */
int vgL_scarce(lua_State *L, vgL_state_t *S, int err);

/* }================================================================= */


/*
** {== lua_error.c: the error object
*/

/* Pushes a new error object.  `kind` NULL: from the code.  `message` NULL:
** from the code.  Raises only for lack of memory. */
void vgL_pusherror(lua_State *L, const char *kind, int err,
                   const char *message);
/* The same with "(operation address)" after the message, as printf. */
void vgL_pushioerror(lua_State *L, int err, const char *format, ...);
/* Pushes nil and an error object; returns 2. */
int vgL_fail(lua_State *L, int err, const char *format, ...);
/* Pushes nil and what a wait that a token ended gives; returns 2.
** `token` is its stack index, 0: none. */
int vgL_failtoken(lua_State *L, vgL_state_t *S, int err, int token);
/* Pushes the error of a token that fired. */
void vgL_pushtokenerror(lua_State *L, vgL_state_t *S, int err, int token);
/* A reason to cancel: nothing, a string, or an error of kind "cancelled".
** Raises; then pushes the error object. */
void vgL_checkreason(lua_State *L, vgL_state_t *S, int index);
void vgL_pushreason(lua_State *L, int index);
/* The kind of the error object at index, or NULL. */
const char *vgL_errorkind(lua_State *L, vgL_state_t *S, int index);

/* }================================================================= */


/*
** {== lua_await.c: waiting
*/

/* A limit given to a call: a number of seconds, or any awaitable. */
typedef struct vgL_token {
  uint64_t due_ns;
  vg_event_t *event;
  int index;
} vgL_token_t;

/* Reads the argument at `index` (nil or none: no limit).  Raises. */
void vgL_opttoken(lua_State *L, vgL_state_t *S, int index, vgL_token_t *tok);
/* Whether the token has fired already. */
int vgL_tokenfired(lua_State *L, vgL_state_t *S, const vgL_token_t *token);

/* Every suspension point begins here.  Raises when this is no place to wait
** (outside a coroutine, in a plain coroutine, below a C function that cannot
** yield; `what` names the call) or the running coroutine is cancelled.  The
** main chunk may wait: then it is S->main.  No wait is prepared yet. */
vg_coroutine_t *vgL_enterslow(lua_State *L, vgL_state_t *S, const char *what);
static inline vg_coroutine_t *vgL_enter(lua_State *L, vgL_state_t *S,
                                        const char *what) {
  vg_coroutine_t *co;
  if (S->sched != NULL && (co = S->sched->current) != NULL && L == S->active &&
      S->walled == NULL && !(co->flags & VG_CO_CANCEL_ACTIVE) &&
      lua_isyieldable(L))
    return co;
  return vgL_enterslow(L, S, what);
}

/* Ends a suspension point that need not wait: returns the top n values, after
** a turn for the others if this happened too often in a row. */
int vgL_ready(lua_State *L, vgL_state_t *S, vg_coroutine_t *co, int n);

/* Begins a wait, with the token's limit.  After it: subscribe (vg_resume_when
** ...), then `return vgL_park(...)`.  Raises for lack of memory.  The token
** is subscription 0 when it is an event (ordinals of the others follow). */
void vgL_newwait(lua_State *L, vgL_state_t *S, vg_coroutine_t *co,
                 const vgL_token_t *token);
/* Starts what was subscribed and waits; goes on in `done`, which also runs
** when the outcome was there at once.  In the main chunk it drives the loop.
** Must be returned. */
int vgL_park(lua_State *L, vgL_state_t *S, vg_coroutine_t *co, lua_KContext ctx,
             lua_KFunction done);
/* First call of every `done`: 0 for a result (see co->waker), a negative code
** for a token (UV_ETIMEDOUT, VG_ETOKEN) or an event that could not start;
** raises cancellation and deadlock. */
int vgL_wokenslow(lua_State *L, vgL_state_t *S);
static inline int vgL_woken(lua_State *L, vgL_state_t *S);
/* The coroutine that waits here: current or main. */
static inline vg_coroutine_t *vgL_self(vgL_state_t *S) {
  vg_coroutine_t *co = S->sched->current;
  return co != NULL ? co : &S->main;
}
static inline int vgL_woken(lua_State *L, vgL_state_t *S) {
  return vgL_self(S)->waker.error == 0 ? 0 : vgL_wokenslow(L, S);
}

/* Makes any awaitable value at index (absolute) an event: a userdata of ours
** as it is, an object with __await replaced on the stack by its waker.
** Raises, naming `argument`, if it is not awaitable.  NULL and the error on
** the stack if __await failed: what was made before must be abandoned. */
vg_event_t *vgL_toawaitable(lua_State *L, vgL_state_t *S, int index,
                            int argument, int *type);

/* Whether collecting it now would not wait. */
int vgL_isready(lua_State *L, vgL_state_t *S, int index, int type,
                vg_event_t *event);
/* Room in the channel behind a case, for n cases of one wait.  Making it may
** run finalizers, so it is done before the last look (vgL_isready).  True when
** there was none: look again.  lua_channel.c. */
int vgL_makeroom(lua_State *L, int index, int type, int n);
/* Adds it to the wait being prepared; a negative result is an error code. */
int vgL_subscribe(lua_State *L, vgL_state_t *S, int index, int type,
                  vg_event_t *event, vg_coroutine_t *co);
/* Somebody will see the failure of the future at index: lua_future.c. */
void vgL_caught(lua_State *L, int index);
/* Pushes the waker object that __await is given: lua_future.c. */
void vgL_newwaker(lua_State *L, vgL_state_t *S);
/* Calls what a user-defined awaitable registered for its cancellation, if the
** object at index is one whose wait ended without it: lua_future.c. */
void vgL_abandon(lua_State *L, vgL_state_t *S, int index);

/* }================================================================= */


/*
** {== lua_coroutine.c
*/

/* Spawns function and arguments: the top 1 + nargs values, which it takes.
** Pushes the coroutine.  Raises. */
vg_coroutine_t *vgL_spawn(lua_State *L, vgL_state_t *S, int nargs,
                          vg_scope_t *scope, int high_priority);
/* The userdata of a coroutine that has not ended. */
void vgL_pushcoroutine(lua_State *L, vgL_state_t *S, vg_coroutine_t *co);
/* Its table of rare things, made when it is not there; `co` may be S->main. */
void vgL_pushextras(lua_State *L, vgL_state_t *S, vg_coroutine_t *co);
/* Pushes the name of a coroutine that has not ended, or nil. */
void vgL_pushname(lua_State *L, vgL_state_t *S, vg_coroutine_t *co);
/* The same as text, or NULL; NULL for the main chunk. */
const char *vgL_coname(lua_State *L, vgL_state_t *S, vg_coroutine_t *co);
/* The extras of one that may have ended; its userdata is at `owner`. */
void vgL_pushextrasof(lua_State *L, vg_coroutine_t *co, int owner);
/* Pushes what its next suspension point raises: CANCEL_ACTIVE. */
void vgL_pushcancellation(lua_State *L, vgL_state_t *S, vg_coroutine_t *co);
/* Message handler for code that runs below a wait of ours: keeps the error's
** traceback. */
int vgL_keeptraceback(lua_State *L);
/* Frees all but `keep` threads that no coroutine uses. */
void vgL_trimthreads(lua_State *L, vgL_state_t *S, uint32_t keep);
extern const vg_coroutine_methods_t vgL_main_methods;

/* }================================================================= */


/*
** {== lua_run.c: what the core asks of its host; lua_position.c: places
*/

void vgL_inithost(vgL_state_t *S, vg_host_t *host);
/* An error that nobody took: to vigil.on_unhandled's function, or stderr.
** stack top: the error; pops it.  Does not raise. */
void vgL_reportunhandled(lua_State *L, vgL_state_t *S, const char *what,
                         const char *traceback);
/* Pushes the error that the run fails with; it is taken. */
void vgL_pushexiterror(lua_State *L, vgL_state_t *S);

/* File and line of the first Lua function from `level` up; NULL and 0: none.
** The text lives as long as the state. */
const char *vgL_position(lua_State *L, vgL_state_t *S, int level, int *line);
void vgL_freepositions(vgL_state_t *S);

/* }================================================================= */

/* The openers: each registers its types and sets its functions in the module
** table on top of the stack. */
void vgL_openerror(lua_State *L, vgL_state_t *S);
void vgL_openawait(lua_State *L, vgL_state_t *S);
void vgL_opencoroutine(lua_State *L, vgL_state_t *S);
void vgL_opencotype(lua_State *L, vgL_state_t *S);
void vgL_openaware(lua_State *L, vgL_state_t *S);
void vgL_openblocks(lua_State *L, vgL_state_t *S);
void vgL_openfuture(lua_State *L, vgL_state_t *S);
void vgL_openchannel(lua_State *L, vgL_state_t *S);
void vgL_openselect(lua_State *L, vgL_state_t *S);
void vgL_openscope(lua_State *L, vgL_state_t *S);
void vgL_openreport(lua_State *L, vgL_state_t *S);
void vgL_openrun(lua_State *L, vgL_state_t *S);
void vgL_opengather(lua_State *L, vgL_state_t *S);
void vgL_opentimer(lua_State *L, vgL_state_t *S);
void vgL_openpoll(lua_State *L, vgL_state_t *S);
void vgL_opensignal(lua_State *L, vgL_state_t *S);
void vgL_opentrigger(lua_State *L, vgL_state_t *S);
void vgL_openio(lua_State *L, vgL_state_t *S);
void vgL_openlisten(lua_State *L, vgL_state_t *S);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif

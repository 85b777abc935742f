/*
** vigil.h: the core of vigil, for C.  It knows libuv and nothing of Lua.
**
** An event is anything that can be waited for.  A callback subscribes to it.
** A coroutine waits through its waker, which holds the subscriptions of one
** wait and what ended it.  The scheduler runs the coroutines that can run;
** the reactor owns the libuv loop behind the events that live there.
**
** Conventions, for every function here unless it says otherwise:
**   - it belongs to the thread of its scheduler (vg_trigger_fire is the only
**     exception);
**   - an int result is 0 or positive for success, negative for failure: a
**     libuv code (UV_ECANCELED...) or one of the VG_E codes below;
**   - nothing raises, nothing longjmps, nothing calls back into user code
**     except the callbacks of an event, microtasks and switch handlers;
**   - times are nanoseconds of uv_hrtime(), and their names end in _ns.
*/

#ifndef VIGIL_H
#define VIGIL_H

#include <stddef.h>
#include <stdint.h>

#include <uv.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VIGIL_VERSION_MAJOR 0
#define VIGIL_VERSION_MINOR 1
#define VIGIL_VERSION_PATCH 0
#define VIGIL_VERSION "0.1.0"

#if UV_VERSION_HEX < 0x012c00
#error "vigil needs libuv 1.44 or later"
#endif

/* The version this library was built as, to compare with VIGIL_VERSION. */
const char *vg_version(void);


/*
** Errors.  libuv's codes lie above -5000; these lie below.
*/
enum {
  VG_EFAILED = -20001,   /* the event failed; its owner holds the reason */
  VG_EDEADLOCK = -20002, /* nothing left could have ended this wait */
  VG_ECLOSED = -20003,   /* the object has been closed */
  VG_ENESTED = -20004,   /* fired from inside its own notification */
  VG_ESTATE = -20005,    /* not possible in the state this object is in */
  VG_EMSGSIZE = -20006,  /* longer than the limit given; nothing consumed */
  VG_ETOKEN = -20007     /* the token given to this wait fired first */
};

/* A symbolic name ("ECANCELED") and a sentence, for codes of both kinds. */
const char *vg_error_name(int err);
const char *vg_error_message(int err);


/*
** Memory.  What only vigil holds comes from the allocator of the scheduler,
** which has the contract of lua_Alloc.  What libuv may still hold when the
** owner of that allocator has gone comes from malloc and is counted.
*/
typedef void *(*vg_alloc_t)(void *data, void *ptr, size_t old_size,
                            size_t new_size);


typedef struct vg_event vg_event_t;
typedef struct vg_event_methods vg_event_methods_t;
typedef struct vg_callback vg_callback_t;
typedef struct vg_coroutine_callback vg_wait_t;
typedef struct vg_coroutine vg_coroutine_t;
typedef struct vg_scheduler vg_scheduler_t;
typedef struct vg_scope vg_scope_t;


/*
** Callbacks.
*/

/* status: 0, or how the event failed.  value: what the event delivers with
** this notification (a mask, a count), its type says which. */
typedef void (*vg_notify_t)(vg_callback_t *callback, vg_event_t *event,
                            int status, intptr_t value);

/* A subscriber.  The vector that holds it and the waker that made it are two
** owners; `dispose` runs when the last one lets go (NULL: nothing to free).
** `index` is its place in the vector, which is how it leaves in O(1). */
struct vg_callback {
  vg_notify_t notify;
  void (*dispose)(vg_callback_t *callback);
  uint32_t index;
  uint32_t ref_count;
};

/* A growing array of subscribers that may change while it is walked.  One
** subscriber needs no memory of its own.  While `walking`, the scheduler's
** stack of walks has the iterator. */
typedef struct vg_callbacks {
  union {
    vg_callback_t *one;
    vg_callback_t **many; /* when capacity > 0 */
  } items;
  uint32_t length;
  uint32_t capacity : 31;
  uint32_t walking : 1;
} vg_callbacks_t;


/*
** Events.
*/
enum {
  VG_EVENT_CLOSED = 1 << 0,        /* will not fire again, cannot start */
  VG_EVENT_RESULT_USED = 1 << 1,   /* somebody took or will take the result */
  VG_EVENT_ERROR_CAUGHT = 1 << 2,  /* somebody will see its failure (stays) */
  VG_EVENT_ERROR_HANDLED = 1 << 3, /* this notification was dealt with */
  VG_EVENT_LUA_OBJECT = 1 << 4,    /* lives in a userdata: see ref_count */
  VG_EVENT_REFERENCE = 1 << 5,     /* a userdata points at it */
  VG_EVENT_NO_FREE = 1 << 6,       /* dispose does not free the memory */
  VG_EVENT_CLOSE_FD = 1 << 7,      /* owns its descriptor */
  VG_EVENT_HIDDEN = 1 << 8,        /* keeps nothing alive, masks no deadlock */
  VG_EVENT_DISPOSED = 1 << 9,      /* dispose has been called */
  VG_EVENT_COMPOSITE = 1 << 10     /* starts others, which count; not itself */
};

/* The base of every event, and its first field.
**
** ref_count counts owners in C; the last vg_event_release disposes.  With
** LUA_OBJECT the collector owns the memory, and a count above 0 asks the host
** (vg_host_t) to pin the userdata.
** loop_ref_count counts who started it; only 0 -> 1 and 1 -> 0 reach the
** type's methods. */
struct vg_event {
  const vg_event_methods_t *methods;
  vg_scheduler_t *scheduler;
  uint32_t flags;
  uint32_t ref_count;
  uint32_t loop_ref_count;
  uint32_t extra_offset; /* an extension's own data, from the event; 0: none */
  vg_callbacks_t callbacks;
};

/* One constant table per type.  NULL stands for the default named beside. */
struct vg_event_methods {
  const char *name;
  /* default: into / out of the vector */
  int (*add_callback)(vg_event_t *event, vg_callback_t *callback);
  void (*del_callback)(vg_event_t *event, vg_callback_t *callback);
  /* arm and disarm; default: the event does not live in the reactor */
  int (*start)(vg_event_t *event);
  void (*stop)(vg_event_t *event);
  /* 1 and the stored outcome when there is one; default: never one.  The
  ** callback, if given, is notified before this returns. */
  int (*replay)(vg_event_t *event, vg_callback_t *callback);
  /* the last reference has gone: close, then free; never NULL */
  void (*dispose)(vg_event_t *event);
  /* one readable line, as snprintf; default: the name */
  int (*info)(const vg_event_t *event, char *buffer, size_t size);
  /* sees each notification first, and may change it; a negative result stops
  ** it there.  default: it passes */
  int (*notify_handler)(vg_event_t *event, int *status, intptr_t *value);
  /* a waiter was woken by this event with something that only one can have
  ** (a value, a slot) and will not take it: unlink it, give to the next */
  void (*revoke)(vg_event_t *event, vg_wait_t *wait);
};

/* Prepares the base of an event of the caller's: one reference, no
** subscriber.  Its memory is the caller's and `methods->dispose` frees it. */
void vg_event_init(vg_event_t *event, vg_scheduler_t *scheduler,
                   const vg_event_methods_t *methods, uint32_t flags);

void vg_event_add_ref(vg_event_t *event);
void vg_event_release(vg_event_t *event);

/* Subscribing to a closed event is an error, VG_ECLOSED.  The vector takes a
** reference to the callback; deleting gives it back. */
int vg_event_add_callback(vg_event_t *event, vg_callback_t *callback);
void vg_event_del_callback(vg_event_t *event, vg_callback_t *callback);

/* Nest.  Starting a closed event succeeds and does nothing. */
int vg_event_start(vg_event_t *event);
void vg_event_stop(vg_event_t *event);

/* Whether an outcome is stored; `callback` (may be NULL) is notified of it. */
int vg_event_replay(vg_event_t *event, vg_callback_t *callback);

/* Tells every subscriber once.  VG_ENESTED from inside its own notification.
** The event outlives the call even if its last owner lets go inside. */
int vg_event_notify(vg_event_t *event, int status, intptr_t value);

/* The same, closed and stopped before anybody is told. */
int vg_event_notify_and_close(vg_event_t *event, int status, intptr_t value);

/* From here on it neither keeps the program going nor masks a deadlock. */
void vg_event_hide(vg_event_t *event);

int vg_event_info(const vg_event_t *event, char *buffer, size_t size);


/*
** Schedulers.
*/

/* What the language above the core does for it.  Any may be NULL. */
typedef struct vg_host {
  void *data;
  /* keep, and no longer keep, the userdata that a LUA_OBJECT lives in */
  void (*pin)(void *data, vg_event_t *event);
  void (*unpin)(void *data, vg_event_t *event);
  /* a coroutine ended with an error and nobody waited for it */
  void (*unhandled)(void *data, vg_coroutine_t *coroutine);
  /* a coroutine is about to be woken from a wait that nothing can end */
  void (*stuck)(void *data, vg_coroutine_t *coroutine);
  /* a verdict of deadlock: `count` coroutines are stuck, none woken yet */
  void (*deadlock)(void *data, size_t count);
  /* every coroutine has ended, and the run is about to wait for what is sent
  ** in the background: let go of what nobody refers to any more */
  void (*collect)(void *data);
} vg_host_t;

/* `loop` NULL: the scheduler makes and closes one of its own.  `alloc` NULL:
** the C library's.  NULL when there is no memory or no loop. */
vg_scheduler_t *vg_scheduler_new(uv_loop_t *loop, vg_alloc_t alloc,
                                 void *alloc_data, const vg_host_t *host);

/* Drops every coroutine without running it, closes every event that libuv
** knows, turns its own loop until they are closed, and frees everything but
** what a worker thread still uses after `budget_ms`: that is left to it. */
void vg_scheduler_free(vg_scheduler_t *scheduler, unsigned budget_ms);

uv_loop_t *vg_scheduler_loop(vg_scheduler_t *scheduler);

/* Runs until `until` has been woken or has ended; NULL: until every coroutine
** has ended.  0, or VG_ESTATE when it runs already. */
int vg_scheduler_run(vg_scheduler_t *scheduler, vg_coroutine_t *until);

/* Cancels every coroutine.  The run goes on until they have ended. */
void vg_scheduler_shutdown(vg_scheduler_t *scheduler);

/* The coroutine that runs now, or NULL. */
vg_coroutine_t *vg_scheduler_current(vg_scheduler_t *scheduler);

/* A C function that runs once, before the next switch, in order.  A negative
** result stops the drain: the rest stay queued and the scheduler shuts down.
** A cancelled one is released without being called. */
typedef struct vg_microtask vg_microtask_t;
struct vg_microtask {
  int (*run)(vg_microtask_t *task);
  void (*dispose)(vg_microtask_t *task); /* may be NULL */
  vg_microtask_t *next;
  uint32_t ref_count; /* the caller's 1; the queue adds its own */
  unsigned queued : 1, cancelled : 1;
};

void vg_microtask_add(vg_scheduler_t *scheduler, vg_microtask_t *task);
void vg_microtask_cancel(vg_microtask_t *task);
void vg_microtask_release(vg_microtask_t *task);


/*
** Coroutines, from C.
*/
enum { VG_SUSPENDED = 1, VG_FINISHED = 0 };

typedef enum vg_coroutine_state {
  VG_COROUTINE_QUEUED,
  VG_COROUTINE_RUNNING,
  VG_COROUTINE_SUSPENDED,
  VG_COROUTINE_COMPLETED,
  VG_COROUTINE_FAILED,
  VG_COROUTINE_CANCELLED
} vg_coroutine_state_t;

/* A coroutine's type: an event's methods, and how to run it. */
typedef struct vg_coroutine_methods {
  vg_event_methods_t event;
  /* Go on from the last suspension.  VG_SUSPENDED after a wait was parked;
  ** VG_FINISHED after vg_coroutine_finish. */
  int (*resume)(vg_coroutine_t *coroutine);
  /* It was cancelled before it started: end it, with vg_coroutine_finish. */
  void (*discard)(vg_coroutine_t *coroutine);
  /* Where it waits now, "file:line"; as snprintf.  May be NULL. */
  int (*where)(const vg_coroutine_t *coroutine, char *buffer, size_t size);
} vg_coroutine_methods_t;

/* Called on each switch of one coroutine; false removes it.  One added in a
** call of another waits for the next switch; one that a running coroutine
** adds to itself, for its next VG_SWITCH_ENTER. */
typedef enum vg_switch {
  VG_SWITCH_ENTER,
  VG_SWITCH_LEAVE,
  VG_SWITCH_FINISH
} vg_switch_t;
typedef int (*vg_switch_handler_t)(vg_coroutine_t *coroutine, vg_switch_t what,
                                   void *data);

int vg_coroutine_on_switch(vg_coroutine_t *coroutine,
                           vg_switch_handler_t handler, void *data);

/* Queues a prepared coroutine that has never run. */
int vg_coroutine_spawn(vg_coroutine_t *coroutine, vg_scope_t *scope,
                       int high_priority);

/* The request is kept until the coroutine ends; it takes effect at once where
** the coroutine waits unprotected.  1 if it had an effect, 0 if the coroutine
** has ended or was cancelled before. */
int vg_coroutine_cancel(vg_coroutine_t *coroutine);

/* Ends the running (or discarded) coroutine and tells who waits for it. */
void vg_coroutine_finish(vg_coroutine_t *coroutine, vg_coroutine_state_t how);

vg_coroutine_state_t vg_coroutine_state(const vg_coroutine_t *coroutine);


/*
** Triggers: wake-ups from any thread.
*/
typedef struct vg_trigger vg_trigger_t;

int vg_trigger_new(vg_scheduler_t *scheduler, vg_trigger_t **trigger);

/* From any thread, as long as the caller owns a reference or excludes the
** disposal by a lock of its own.  Firings may merge into one notification;
** its value is how many. */
int vg_trigger_fire(vg_trigger_t *trigger);


#ifdef __cplusplus
}
#endif

#endif

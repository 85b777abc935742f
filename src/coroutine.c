/*
** coroutine.c: a coroutine as an event: its states, its cancellation, its end.
**
** How it runs is a pointer in its methods: a Lua thread, or C.
**
** Cancellation is a state.  Three sources can make the next suspension point
** raise, and the innermost protection hides all that lies outside it:
**
**     own request      vg_coroutine_cancel; for the rest of its life
**     a timeout block  while the code inside it runs; the outermost one wins
**     protect block    hides the own request and the blocks around it, until
**                      it is left or its own time has run out
**
** CANCEL_ACTIVE caches the verdict, so that a suspension point tests one bit.
*/

#include <stdio.h>
#include <string.h>

#include "internal.h"

typedef struct vg_switch_entry {
  vg_coroutine_t *coroutine;
  vg_switch_handler_t handler;
  void *data;
  struct vg_switch_entry *next;
} vg_switch_entry_t;

void vg_coroutine_init(vg_coroutine_t *co, vg_scheduler_t *s,
                       const vg_coroutine_methods_t *methods,
                       uint32_t event_flags) {
  memset(co, 0, sizeof *co);
  co->event.methods = &methods->event;
  co->event.scheduler = s;
  co->event.flags = event_flags;
  co->event.ref_count = (event_flags & VG_EVENT_LUA_OBJECT) ? 0 : 1;
  co->waker.ordinal = VG_ORDINAL_NONE; /* the rest of vg_waker_define: 0 */
  co->id = ++s->next_id;
  co->state = VG_COROUTINE_QUEUED;
}

int vg_coroutine_spawn(vg_coroutine_t *co, vg_scope_t *scope,
                       int high_priority) {
  vg_scheduler_t *s = co->event.scheduler;
  int err;

  if (s->closed || scope->closed) return VG_ECLOSED;
  err = vg__ring_reserve(s, s->live + 2); /* and the main chunk's */
  if (err < 0) return err;
  if (high_priority) co->flags |= VG_CO_HIGH_PRIORITY;
  s->live++;
  if (!(co->event.flags & VG_EVENT_LUA_OBJECT)) /* a host anchors its own */
    vg_event_add_ref(&co->event);
  vg__scope_enter(scope, co);
  co->waker.status = VG_WAKER_QUEUED;
  vg__enqueue(co);
  return 0;
}

vg_coroutine_state_t vg_coroutine_state(const vg_coroutine_t *co) {
  return (vg_coroutine_state_t)co->state;
}


/*
** {== Cancellation
*/

vg_block_t *vg__block_active(const vg_coroutine_t *co) {
  vg_block_t *found = NULL, *block;
  for (block = co->blocks; block != NULL; block = block->outer) {
    if (block->kind == VG_BLOCK_TIMEOUT) {
      if (block->fired) found = block;
    } else if (!block->fired) {
      break;
    }
  }
  return found;
}

int vg__cancel_active(const vg_coroutine_t *co) {
  const vg_block_t *block;
  if (!(co->flags & VG_CO_CANCEL_REQUESTED)) return 0;
  for (block = co->blocks; block != NULL; block = block->outer)
    if (block->kind == VG_BLOCK_PROTECT && !block->fired) return 0;
  return 1;
}

void vg__coroutine_judge(vg_coroutine_t *co) {
  if (vg__cancel_active(co) || vg__block_active(co) != NULL)
    co->flags |= VG_CO_CANCEL_ACTIVE;
  else
    co->flags &= (uint16_t)~VG_CO_CANCEL_ACTIVE;
}

/* Something changed: if it counts now, a wait ends with it. */
static void interrupt(vg_coroutine_t *co) {
  vg__coroutine_judge(co);
  if ((co->flags & VG_CO_CANCEL_ACTIVE) &&
      co->waker.status == VG_WAKER_WAITING &&
      co->state == VG_COROUTINE_SUSPENDED)
    vg_waker_wake(co, NULL, UV_ECANCELED, 0);
}

int vg_coroutine_cancel(vg_coroutine_t *co) {
  vg_waker_t *w = &co->waker;

  if (vg__coroutine_ended(co) || (co->flags & VG_CO_CANCEL_REQUESTED)) return 0;
  co->flags |= VG_CO_CANCEL_REQUESTED;
  if (!(co->flags & VG_CO_STARTED)) {
    w->status = VG_WAKER_IGNORED; /* ended when its turn comes */
    return 1;
  }
  interrupt(co);
  if (w->status == VG_WAKER_QUEUED && (co->flags & VG_CO_CANCEL_ACTIVE))
    vg__waker_replace(co, UV_ECANCELED); /* it has not run: this wins */
  return 1;
}

void vg__block_enter(vg_coroutine_t *co, vg_block_t *block, int kind) {
  memset(block, 0, sizeof *block);
  block->coroutine = co;
  block->kind = (uint8_t)kind;
  block->timer.kind = VG_NODE_BLOCK;
  block->outer = co->blocks;
  co->blocks = block;
  if (kind == VG_BLOCK_PROTECT) vg__coroutine_judge(co);
}

int vg__block_limit(vg_block_t *block, uint64_t due_ns) {
  return vg__timer_arm(block->coroutine->event.scheduler, &block->timer,
                       due_ns);
}

/* Not always the innermost: a generator may be dropped with one inside. */
void vg__block_leave(vg_block_t *block) {
  vg_coroutine_t *co = block->coroutine;
  vg_block_t **place;

  if (co == NULL) return;
  vg__timer_disarm(co->event.scheduler, &block->timer);
  for (place = &co->blocks; *place != block; place = &(*place)->outer) continue;
  *place = block->outer;
  block->coroutine = NULL;
  vg__coroutine_judge(co);
}

void vg__block_expired(vg_block_t *block) {
  block->fired = 1;
  interrupt(block->coroutine);
}

void vg__blocks_expire(vg_coroutine_t *co) {
  uint64_t now = co->blocks != NULL ? uv_hrtime() : 0;
  vg_block_t *block;

  for (block = co->blocks; block != NULL; block = block->outer) {
    if (block->timer.index == 0 || block->timer.due_ns > now) continue;
    vg__timer_disarm(co->event.scheduler, &block->timer);
    vg__block_expired(block);
  }
}

/* }================================================================= */


/*
** {== Switch handlers.  Few coroutines have one; a flag says which.
*/

int vg_coroutine_on_switch(vg_coroutine_t *co, vg_switch_handler_t handler,
                           void *data) {
  vg_scheduler_t *s = co->event.scheduler;
  vg_switch_entry_t *entry, **last = &s->switches;

  if (vg__coroutine_ended(co)) return VG_ESTATE;
  entry = vg__alloc(s, sizeof *entry);
  if (entry == NULL) return UV_ENOMEM;
  entry->coroutine = co;
  entry->handler = handler;
  entry->data = data;
  entry->next = NULL;
  while (*last != NULL) last = &(*last)->next;
  *last = entry;
  co->flags |= VG_CO_SWITCH_HANDLERS;
  return 0;
}

void vg__coroutine_switched(vg_coroutine_t *co, vg_switch_t what) {
  vg_scheduler_t *s = co->event.scheduler;
  vg_switch_entry_t **place = &s->switches, *entry;
  size_t count = 0;
  int left = 0;

  for (entry = s->switches; entry != NULL; entry = entry->next) count++;
  for (; count > 0; count--) { /* those added meanwhile wait for the next */
    entry = *place;
    if (entry->coroutine == co) {
      int keep = entry->handler(co, what, entry->data);
      if (!keep || what == VG_SWITCH_FINISH) {
        /* A handler may have added others, at the end: find it again. */
        for (place = &s->switches; *place != entry; place = &(*place)->next)
          continue;
        *place = entry->next;
        vg__free(s, entry, sizeof *entry);
        continue;
      }
      left = 1;
    }
    place = &entry->next;
  }
  for (entry = *place; entry != NULL; entry = entry->next)
    if (entry->coroutine == co) left = 1;
  if (!left) co->flags &= (uint16_t)~VG_CO_SWITCH_HANDLERS;
}

void vg__coroutine_forget_switches(vg_scheduler_t *s) {
  while (s->switches != NULL) {
    vg_switch_entry_t *entry = s->switches;
    s->switches = entry->next;
    vg__free(s, entry, sizeof *entry);
  }
}

/* }================================================================= */


void vg_coroutine_finish(vg_coroutine_t *co, vg_coroutine_state_t how) {
  vg_scheduler_t *s = co->event.scheduler;
  vg_scope_t *scope = co->scope;
  int waited = co->event.callbacks.length > 0;
  int status = how == VG_COROUTINE_COMPLETED ? 0 : VG_EFAILED;

  vg_waker_new(co);
  while (co->blocks != NULL) vg__block_leave(co->blocks); /* abandoned ones */
  co->state = (uint8_t)how;
  if (co->flags & VG_CO_SWITCH_HANDLERS)
    vg__coroutine_switched(co, VG_SWITCH_FINISH);
  vg_event_notify_and_close(&co->event, status, 0);
  if (how == VG_COROUTINE_FAILED && !waited) {
    co->flags |= VG_CO_UNHANDLED;
    if (s->host.unhandled != NULL) s->host.unhandled(s->host.data, co);
  }
  if (--s->live == 0) { /* whatever was shut down is down */
    s->shutting_down = 0;
    s->root->cancelled = 0;
  }
  vg__scope_leave(scope, co);
  if (!(co->event.flags & VG_EVENT_LUA_OBJECT)) vg_event_release(&co->event);
}

/* An ended coroutine has its outcome for ever. */
int vg__coroutine_replay(vg_event_t *event, vg_callback_t *callback) {
  vg_coroutine_t *co = (vg_coroutine_t *)event;
  if (!vg__coroutine_ended(co)) return 0;
  if (callback != NULL)
    callback->notify(callback, event,
                     co->state == VG_COROUTINE_COMPLETED ? 0 : VG_EFAILED, 0);
  return 1;
}

int vg__coroutine_info(const vg_event_t *event, char *buffer, size_t size) {
  return vg__identify((const vg_coroutine_t *)event, NULL, buffer, size);
}

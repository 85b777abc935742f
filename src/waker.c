/*
** waker.c: what a coroutine waits for, and with what it wakes.
**
** One wait, step by step:
**
**   1. vg_waker_new            the waker is empty again; nothing allocated
**   2. vg_resume_when, ...     each event gets a callback; nothing is armed
**   3. vg_waker_park           every event is started.  If one delivers
**                              already now, the wait is over without a switch
**   4. an event fires          its callback (vg_wake_resolve, or the caller's
**                              own) calls vg_waker_wake: every subscription
**                              of this wait is dropped, the outcome is kept,
**                              the coroutine goes into the ready queue
**   5. the scheduler resumes   status RESULT; the binding reads the outcome
**
** Because step 4 drops all subscriptions at once, whoever fires later finds
** no trace of this wait: a late completion cannot wake the next one.
*/

#include <string.h>

#include "internal.h"

void vg_waker_define(vg_waker_t *waker) {
  memset(waker, 0, sizeof *waker);
  waker->ordinal = VG_ORDINAL_NONE;
  waker->timer.kind = VG_NODE_WAKER;
}

/* A subscription's memory: the waker's own, or one of the scheduler's. */
static vg_wait_t *new_wait(vg_coroutine_t *co) {
  vg_scheduler_t *s = co->event.scheduler;
  vg_waker_t *w = &co->waker;
  vg_wait_t *wait, *last;

  if (w->count == VG_ORDINAL_NONE) return NULL;
  if (!(w->first.flags & VG_WAIT_USED)) {
    wait = &w->first;
  } else {
    wait = s->free_waits;
    if (wait != NULL) {
      s->free_waits = wait->next;
    } else {
      wait = vg__alloc(s, sizeof *wait);
      if (wait == NULL) return NULL;
    }
  }
  memset(wait, 0, sizeof *wait);
  if (wait != &w->first) { /* in order of subscription */
    for (last = &w->first; last->next != NULL; last = last->next) continue;
    last->next = wait;
  }
  wait->base.ref_count = 1;
  wait->coroutine = co;
  wait->ordinal = w->count++;
  wait->flags = VG_WAIT_USED;
  return wait;
}

static void free_wait(vg_waker_t *w, vg_scheduler_t *s, vg_wait_t *wait) {
  if (wait == &w->first) {
    wait->flags = 0;
    return;
  }
  wait->next = s->free_waits;
  s->free_waits = wait;
}

/* Drops every subscription.  May run below the notification of one of the
** events: the vector allows for it. */
static void detach(vg_coroutine_t *co) {
  vg_scheduler_t *s = co->event.scheduler;
  vg_waker_t *w = &co->waker;
  vg_wait_t *wait, *next;

  if (w->timer.index != 0) vg__timer_disarm(s, &w->timer);
  if (!(w->first.flags & VG_WAIT_USED)) return;
  for (wait = &w->first; wait != NULL; wait = next) {
    vg_event_t *event = wait->event;
    uint8_t flags = wait->flags;
    next = wait->next;
    vg_event_del_callback(event, &wait->base);
    if (flags & VG_WAIT_STARTED) vg_event_stop(event);
    free_wait(w, s, wait);
    if (flags & VG_WAIT_OWNED) vg_event_release(event);
  }
  w->first.next = NULL;
}

void vg_waker_clean(vg_coroutine_t *co) {
  vg_waker_t *w = &co->waker;
  if (w->flags & VG_WAKER_F_GRANTED) vg_list_remove(&w->first.link);
  detach(co);
  w->status = VG_WAKER_NO_STATUS;
  w->flags = 0;
}

void vg_waker_new(vg_coroutine_t *co) {
  vg_waker_t *w = &co->waker;
  /* An error may have thrown away a wait that was being prepared. */
  if ((w->first.flags & VG_WAIT_USED) || w->timer.index != 0)
    vg_waker_clean(co);
  w->status = VG_WAKER_NO_STATUS;
  w->flags = 0;
  w->ordinal = VG_ORDINAL_NONE;
  w->error = 0;
  w->value = 0;
  w->count = 0;
}

int vg__waker_timer(vg_coroutine_t *co, uint64_t due_ns, int is_result) {
  co->waker.timer.due_ns = due_ns;
  co->waker.timer.hidden = 0;
  if (is_result) co->waker.flags |= VG_WAKER_F_SLEEP;
  return vg__timer_arm(co->event.scheduler, &co->waker.timer, due_ns);
}

int vg_waker_new_with_timeout(vg_coroutine_t *co, uint64_t due_ns,
                              vg_event_t *cancellation) {
  int err = 0;
  vg_waker_new(co);
  if (cancellation != NULL)
    err = vg_resume_when(co, cancellation, 0, vg_wake_cancel, NULL);
  if (err == 0 && due_ns != 0 && co->waker.status != VG_WAKER_RESULT)
    err = vg__waker_timer(co, due_ns, 0);
  if (err < 0) vg_waker_clean(co);
  return err;
}

int vg_resume_when(vg_coroutine_t *co, vg_event_t *event, int take_ownership,
                   vg_notify_t notify, vg_wait_t **result) {
  vg_wait_t *wait;
  int err;

  if (co->waker.status == VG_WAKER_RESULT) { /* an earlier one had replayed */
    if (take_ownership) vg_event_release(event);
    return 0;
  }
  wait = new_wait(co);
  if (wait == NULL) {
    if (take_ownership) vg_event_release(event);
    return UV_ENOMEM;
  }
  wait->event = event;
  wait->base.notify = notify != NULL ? notify : vg_wake_resolve;
  if (take_ownership) wait->flags |= VG_WAIT_OWNED;
  co->waker.status = VG_WAKER_WAITING;
  err = vg_event_add_callback(event, &wait->base);
  if (err < 0) {
    vg_wait_t *last = &co->waker.first;
    while (last->next != NULL && last->next != wait) last = last->next;
    if (last != wait) last->next = NULL;
    free_wait(&co->waker, co->event.scheduler, wait);
    if (take_ownership) vg_event_release(event);
    return err;
  }
  if (result != NULL) /* gone again where the event replayed its outcome */
    *result = co->waker.status == VG_WAKER_WAITING ? wait : NULL;
  return 0;
}

vg_wait_t *vg__waker_wait(vg_coroutine_t *co, vg_event_t *event) {
  vg_wait_t *wait = new_wait(co);
  if (wait == NULL) return NULL;
  wait->event = event;
  wait->link.prev = wait->link.next = NULL;
  return wait;
}

int vg_waker_park(vg_coroutine_t *co) {
  vg_waker_t *w = &co->waker;
  vg_wait_t *wait;

  if (w->status == VG_WAKER_RESULT) return 0; /* while subscribing */
  w->status = VG_WAKER_WAITING;
  if (w->first.flags & VG_WAIT_USED) {
    for (wait = &w->first; wait != NULL; wait = wait->next) {
      vg_event_t *event = wait->event;
      int owned = wait->flags & VG_WAIT_OWNED;
      int err;
      if (event->methods->start == NULL) continue;
      if (owned) vg_event_add_ref(event); /* it may drop this wait's */
      err = vg_event_start(event);
      if (err == 0 && w->status == VG_WAKER_RESULT) {
        vg_event_stop(event); /* it delivered; all is dropped */
        if (owned) vg_event_release(event);
        return 0;
      }
      if (owned) vg_event_release(event);
      if (err < 0) {
        vg_waker_clean(co);
        w->error = err;
        return err;
      }
      wait->flags |= VG_WAIT_STARTED;
    }
  }
  co->state = VG_COROUTINE_SUSPENDED;
  return 1;
}

/* The outcome is in the waker: to the ready queue, unless the coroutine has
** not even given up control. */
static void deliver(vg_coroutine_t *co) {
  if (co->state == VG_COROUTINE_SUSPENDED) {
    co->waker.status = VG_WAKER_QUEUED;
    vg__enqueue(co);
  } else {
    co->waker.status = VG_WAKER_RESULT;
  }
}

int vg_waker_wake(vg_coroutine_t *co, vg_wait_t *wait, int error,
                  intptr_t value) {
  vg_waker_t *w = &co->waker;

  if (w->status != VG_WAKER_WAITING) return VG_ESTATE;
  w->ordinal = wait != NULL ? wait->ordinal : VG_ORDINAL_NONE;
  w->error = error;
  w->value = value;
  detach(co);
  deliver(co);
  return 0;
}

int vg__waker_grant(vg_coroutine_t *co, vg_wait_t *wait, intptr_t value,
                    vg_link_t *granted) {
  vg_waker_t *w = &co->waker;
  vg_event_t *event = wait->event;
  int32_t index = wait->index;
  uint8_t kind = wait->kind;

  if (w->status != VG_WAKER_WAITING) return VG_ESTATE;
  w->ordinal = wait->ordinal;
  w->error = 0;
  w->value = value;
  detach(co);
  w->flags |= VG_WAKER_F_GRANTED;
  w->first.coroutine = co;
  w->first.event = event;
  w->first.index = index;
  w->first.kind = kind;
  vg_list_append(granted, &w->first.link);
  deliver(co);
  return 0;
}

void vg__waker_replace(vg_coroutine_t *co, int error) {
  vg_waker_t *w = &co->waker;

  if (w->flags & VG_WAKER_F_GRANTED) {
    vg_event_t *event = w->first.event;
    w->flags &= (uint8_t)~VG_WAKER_F_GRANTED;
    event->methods->revoke(event, &w->first);
  }
  w->error = error;
  w->ordinal = VG_ORDINAL_NONE;
}

/* status: what the event failed with is the event's to tell; the waker only
** says that this wait ended with a failure. */
void vg_wake_resolve(vg_callback_t *cb, vg_event_t *ev, int status,
                     intptr_t value) {
  vg_wait_t *wait = (vg_wait_t *)cb;
  ev->flags |= VG_EVENT_RESULT_USED;
  if (status < 0) ev->flags |= VG_EVENT_ERROR_HANDLED;
  vg_waker_wake(wait->coroutine, wait, status, value);
}

void vg_wake_cancel(vg_callback_t *cb, vg_event_t *ev, int status,
                    intptr_t value) {
  vg_wait_t *wait = (vg_wait_t *)cb;
  VG_UNUSED(status);
  ev->flags |= VG_EVENT_RESULT_USED | VG_EVENT_ERROR_HANDLED;
  vg_waker_wake(wait->coroutine, wait, VG_ETOKEN, value);
}

void vg_wake_timeout(vg_coroutine_t *co) {
  int is_result = co->waker.flags & VG_WAKER_F_SLEEP;
  vg_waker_wake(co, NULL, is_result ? 0 : UV_ETIMEDOUT, 0);
}

int vg__waker_is_idle(const vg_coroutine_t *co) {
  const vg_waker_t *w = &co->waker;
  const vg_wait_t *wait;

  if (w->timer.index != 0) return w->timer.hidden;
  if (!(w->first.flags & VG_WAIT_USED)) return 0;
  for (wait = &w->first; wait != NULL; wait = wait->next)
    if (!(wait->event->flags & VG_EVENT_HIDDEN)) return 0;
  return 1;
}

/*
** channel.c: a FIFO of values between coroutines.
**
** A value moves as far as it can at once.  To a receiver that waits: straight
** onto its stack.  Into the buffer, if there is a free slot.  Else the sender
** waits, with the value on its own stack.
**
** What was handed to a coroutine that has not run yet can still be taken back
** when that coroutine is cancelled (revoke):
**
**   - a receiver's value goes to the receiver that was granted after it, that
**     one's value to the next, ..., and the last one's to a receiver that
**     waits or back to the front of the channel.  So values keep their order
**     and each is delivered once.
**   - a sender's slot goes to the next sender that waits.
*/

#include <stdio.h>

#include "internal.h"

static const vg_event_methods_t channel_methods;

void vg_channel_init(vg_channel_t *ch, vg_scheduler_t *s, uint32_t capacity,
                     const vg_channel_values_t *values, uint32_t flags) {
  vg_event_init(&ch->event, s, &channel_methods, flags);
  ch->values = values;
  ch->capacity = capacity;
  ch->size = ch->head = ch->count = 0;
  ch->promised = ch->receiving = 0;
  vg_list_init(&ch->receivers);
  vg_list_init(&ch->senders);
  vg_list_init(&ch->granted);
  vg_list_init(&ch->promises);
}

static vg_wait_t *wait_of(vg_link_t *link) {
  return VG_CONTAINER(link, vg_wait_t, link);
}

/* The value that was handed to a receiver: the top of its stack. */
static vg_place_t top_of(const vg_coroutine_t *co) {
  vg_place_t place = {co->waker.thread, 0};
  return place;
}

static void hand_to_first_receiver(vg_channel_t *ch, vg_place_t from) {
  vg_wait_t *wait = wait_of(ch->receivers.next);
  vg_coroutine_t *co = wait->coroutine;

  ch->values->move(ch, from, top_of(co));
  vg__waker_grant(co, wait, VG_CHANNEL_RECV, &ch->granted);
  ch->receiving++; /* leaving `receivers` took one off */
}

static void store_last(vg_channel_t *ch, vg_place_t object, vg_place_t from) {
  uint32_t slot = ch->head + ch->count;
  if (slot >= ch->size) slot -= ch->size;
  ch->values->store(ch, object, slot, from);
  ch->count++;
}

/* A slot may have become free: it is promised to the sender in front. */
static void promise(vg_channel_t *ch) {
  if (vg_list_empty(&ch->senders) || ch->count + ch->promised >= ch->capacity)
    return;
  ch->promised++;
  vg__waker_grant(wait_of(ch->senders.next)->coroutine,
                  wait_of(ch->senders.next), VG_CHANNEL_SEND, &ch->promises);
}

int vg_channel_try_send(vg_channel_t *ch, vg_place_t object, vg_place_t from) {
  if (ch->event.flags & VG_EVENT_CLOSED) return VG_ECLOSED;
  if (!vg_list_empty(&ch->receivers)) {
    hand_to_first_receiver(ch, from);
    return 1;
  }
  if (ch->count + ch->promised < ch->capacity) {
    store_last(ch, object, from);
    return 1;
  }
  return 0;
}

/* The sender in front that was woken for a slot and has not run: its value is
** taken where it lies, or a newcomer's would be first.  Its slot is free. */
static void take_promised(vg_channel_t *ch, vg_place_t to) {
  vg_wait_t *wait = wait_of(ch->promises.next);
  vg_waker_t *w = &wait->coroutine->waker;
  vg_place_t from = {w->thread, wait->index};

  ch->values->move(ch, from, to);
  vg_list_remove(&wait->link);
  w->flags &= (uint8_t)~VG_WAKER_F_GRANTED;
  w->value = VG_CHANNEL_TAKEN;
  ch->promised--;
  promise(ch);
}

int vg_channel_is_ready(const vg_channel_t *ch) {
  return ch->count > 0 || (ch->event.flags & VG_EVENT_CLOSED) ||
         !vg_list_empty(&ch->promises) ||
         (ch->capacity == 0 && !vg_list_empty(&ch->senders));
}

int vg_channel_try_recv(vg_channel_t *ch, vg_place_t object, vg_place_t to) {
  if (ch->count > 0) {
    ch->values->load(ch, object, ch->head, to);
    if (++ch->head == ch->size) ch->head = 0;
    ch->count--;
    promise(ch);
    return 1;
  }
  if (ch->event.flags & VG_EVENT_CLOSED) return VG_ECLOSED;
  if (!vg_list_empty(&ch->promises)) {
    take_promised(ch, to);
    return 1;
  }
  if (ch->capacity == 0 && !vg_list_empty(&ch->senders)) {
    vg_wait_t *wait = wait_of(ch->senders.next);
    vg_place_t from = {wait->coroutine->waker.thread, wait->index};
    ch->values->move(ch, from, to);
    vg_waker_wake(wait->coroutine, wait, 0, VG_CHANNEL_TAKEN);
    return 1;
  }
  return 0;
}

uint32_t vg_channel_slots_needed(const vg_channel_t *ch, uint32_t more) {
  return ch->count + ch->receiving + more;
}

void vg_channel_resized(vg_channel_t *ch, uint32_t size) {
  ch->size = size;
  ch->head = 0;
}

int vg_channel_wait(vg_channel_t *ch, vg_coroutine_t *co, int kind, int index) {
  vg_wait_t *wait = vg__waker_wait(co, &ch->event);

  if (wait == NULL) return UV_ENOMEM;
  wait->kind = (uint8_t)kind;
  wait->index = index;
  if (kind == VG_CHANNEL_RECV) {
    ch->receiving++;
    vg_list_append(&ch->receivers, &wait->link);
  } else {
    vg_list_append(&ch->senders, &wait->link);
  }
  return 0;
}

static void channel_del_callback(vg_event_t *event, vg_callback_t *cb) {
  vg_wait_t *wait = (vg_wait_t *)cb;
  if (!vg_linked(&wait->link)) return;
  vg_list_remove(&wait->link);
  if (wait->kind == VG_CHANNEL_RECV) ((vg_channel_t *)event)->receiving--;
}

int vg_channel_fulfil(vg_channel_t *ch, vg_place_t object, vg_place_t from) {
  int closed = (ch->event.flags & VG_EVENT_CLOSED) != 0;

  ch->promised--;
  if (closed) return VG_ECLOSED;
  if (!vg_list_empty(&ch->receivers))
    hand_to_first_receiver(ch, from);
  else
    store_last(ch, object, from);
  promise(ch); /* a value that went past the buffer leaves the slot free */
  return 0;
}

void vg_channel_received(vg_channel_t *ch) { ch->receiving--; }

static void revoke_value(vg_channel_t *ch, vg_wait_t *wait) {
  vg_link_t *link = ch->granted.prev;
  vg_coroutine_t *last = wait_of(link)->coroutine;

  if (!vg_list_empty(&ch->receivers)) {
    hand_to_first_receiver(ch, top_of(last));
  } else {
    vg_place_t object = {last->waker.thread, wait_of(link)->index};
    ch->head = ch->head == 0 ? ch->size - 1 : ch->head - 1;
    ch->values->store(ch, object, ch->head, top_of(last));
    ch->count++;
  }
  for (; link != &wait->link; link = link->prev)
    ch->values->move(ch, top_of(wait_of(link->prev)->coroutine),
                     top_of(wait_of(link)->coroutine));
  vg_list_remove(&wait->link);
  ch->receiving--;
}

static void channel_revoke(vg_event_t *event, vg_wait_t *wait) {
  vg_channel_t *ch = (vg_channel_t *)event;
  if (wait->kind == VG_CHANNEL_RECV) {
    revoke_value(ch, wait);
  } else {
    vg_list_remove(&wait->link);
    ch->promised--;
    promise(ch);
  }
}

/* Receivers fail once the buffer is empty, and it is while they wait.  A
** sender whose value was taken has succeeded: it waits no more. */
void vg_channel_close(vg_channel_t *ch) {
  if (ch->event.flags & VG_EVENT_CLOSED) return;
  ch->event.flags |= VG_EVENT_CLOSED;
  while (!vg_list_empty(&ch->receivers)) {
    vg_wait_t *wait = wait_of(ch->receivers.next);
    vg_waker_wake(wait->coroutine, wait, VG_ECLOSED, 0);
  }
  while (!vg_list_empty(&ch->senders)) {
    vg_wait_t *wait = wait_of(ch->senders.next);
    vg_waker_wake(wait->coroutine, wait, VG_ECLOSED, 0);
  }
}

static size_t length(const vg_link_t *head) {
  size_t n = 0;
  const vg_link_t *link;
  for (link = head->next; link != head; link = link->next) n++;
  return n;
}

static int channel_info(const vg_event_t *event, char *buffer, size_t size) {
  const vg_channel_t *ch = (const vg_channel_t *)event;
  return snprintf(buffer, size,
                  "channel (%u of %u, %zu receiving, %zu sending, "
                  "%u promised%s)",
                  ch->count, ch->capacity, length(&ch->receivers),
                  length(&ch->senders), ch->promised,
                  (event->flags & VG_EVENT_CLOSED) ? ", closed" : "");
}

static void channel_dispose(vg_event_t *event) {
  vg_channel_close((vg_channel_t *)event);
  if (!(event->flags & (VG_EVENT_NO_FREE | VG_EVENT_LUA_OBJECT)))
    vg__free(event->scheduler, event, sizeof(vg_channel_t));
}

static const vg_event_methods_t channel_methods = {
    .name = "channel",
    .del_callback = channel_del_callback,
    .dispose = channel_dispose,
    .info = channel_info,
    .revoke = channel_revoke,
};

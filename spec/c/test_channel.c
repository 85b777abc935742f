/*
** test_channel.c: values between coroutines, and back again (CH).
**
** A Lua stack is an array of numbers here: element 1 marks the channel's
** object, element 2 is the value to send, the top is what was handed over.
*/

#include "support.h"

enum { MARK = -77, EMPTY = -1, SLOTS = 128 };

typedef struct pile {
  int top; /* elements 1 .. top */
  int values[16];
} pile_t;

typedef struct queue {
  vg_channel_t ch;
  int slots[SLOTS];
} queue_t;

typedef struct peer {
  routine_t routine;
  pile_t stack;
  queue_t *queue;
  int value;  /* to send, or received */
  int done;   /* it was sent, or received */
  int number; /* which receiver */
} peer_t;

static int pop(vg_place_t from) {
  pile_t *stack = from.thread;
  if (from.index != 0) {
    assert_in_range(from.index, 1, stack->top);
    return stack->values[from.index];
  }
  assert_true(stack->top >= 1);
  return stack->values[stack->top--];
}

static void push(vg_place_t to, int value) {
  pile_t *stack = to.thread;
  assert_int_equal(to.index, 0);
  assert_true(stack->top < 15);
  stack->values[++stack->top] = value;
}

/* The core must name a place where the channel's object is. */
static void check_object(vg_place_t object) {
  const pile_t *stack = object.thread;
  assert_in_range(object.index, 1, stack->top);
  assert_int_equal(stack->values[object.index], MARK);
}

static void move_value(vg_channel_t *ch, vg_place_t from, vg_place_t to) {
  VG_UNUSED(ch);
  push(to, pop(from));
}

static void store_value(vg_channel_t *ch, vg_place_t object, uint32_t slot,
                        vg_place_t from) {
  queue_t *queue = (queue_t *)ch;
  int value = pop(from);
  check_object(object);
  assert_true(slot < ch->size);
  assert_int_equal(queue->slots[slot], EMPTY);
  queue->slots[slot] = value;
}

static void load_value(vg_channel_t *ch, vg_place_t object, uint32_t slot,
                       vg_place_t to) {
  queue_t *queue = (queue_t *)ch;
  check_object(object);
  assert_int_not_equal(queue->slots[slot], EMPTY);
  push(to, queue->slots[slot]);
  queue->slots[slot] = EMPTY;
}

static const vg_channel_values_t values = {move_value, store_value, load_value};

static void queue_init(world_t *w, queue_t *queue, uint32_t capacity) {
  size_t i;
  memset(queue, 0, sizeof *queue);
  for (i = 0; i < SLOTS; i++) queue->slots[i] = EMPTY;
  vg_channel_init(&queue->ch, w->s, capacity, &values, VG_EVENT_NO_FREE);
}

static uint32_t length(const vg_link_t *list) {
  uint32_t n = 0;
  const vg_link_t *link;
  for (link = list->next; link != list; link = link->next) {
    assert_ptr_equal(link->next->prev, link);
    n++;
  }
  return n;
}

/* What internal.h says must hold, while no peer is running. */
static void check(const queue_t *queue) {
  const vg_channel_t *ch = &queue->ch;
  uint32_t i, full = 0;
  assert_int_equal(ch->promised, length(&ch->promises));
  assert_int_equal(ch->receiving,
                   length(&ch->receivers) + length(&ch->granted));
  assert_true(ch->size >= ch->count + ch->receiving);
  for (i = 0; i < SLOTS; i++) full += queue->slots[i] != EMPTY;
  assert_int_equal(full, ch->count);
  for (i = 0; i < ch->count; i++)
    assert_int_not_equal(queue->slots[(ch->head + i) % ch->size], EMPTY);
  if (!vg_list_empty(&ch->receivers)) {
    assert_int_equal(ch->count, 0);
    assert_true(vg_list_empty(&ch->senders));
    assert_true(vg_list_empty(&ch->promises));
  }
  if (ch->event.flags & VG_EVENT_CLOSED) {
    assert_true(vg_list_empty(&ch->receivers));
    assert_true(vg_list_empty(&ch->senders));
  }
}

/* As the binding does it: new slots, the values from 0 on. */
static void reserve(queue_t *queue) {
  vg_channel_t *ch = &queue->ch;
  uint32_t size = vg_channel_slots_needed(ch, 1), i;
  int moved[SLOTS];
  if (size <= ch->size) return;
  if (size < 2 * ch->size) size = 2 * ch->size;
  assert_true(size <= SLOTS);
  for (i = 0; i < SLOTS; i++)
    moved[i] = i < ch->count ? queue->slots[(ch->head + i) % ch->size] : EMPTY;
  memcpy(queue->slots, moved, sizeof moved);
  vg_channel_resized(ch, size);
}

static vg_place_t at(pile_t *stack, int index) {
  vg_place_t place = {stack, index};
  return place;
}

static peer_t *peer_of(routine_t *r) {
  return VG_CONTAINER(r, peer_t, routine);
}

static void prepare(peer_t *peer) {
  peer->stack.values[1] = MARK;
  peer->stack.values[2] = peer->value;
  peer->stack.top = 2;
  peer->routine.co.waker.thread = &peer->stack;
}

static int end(peer_t *peer, const char *what, int err) {
  routine_t *r = &peer->routine;
  peer->done = err >= 0;
  if (err < 0)
    world_log(r->world, "%s:%s", r->name, vg_error_name(err));
  else if (what[0] == '=')
    world_log(r->world, "%s=%d", r->name, peer->value);
  else
    world_log(r->world, "%s%s", r->name, what);
  return routine_end(
      r, err == UV_ECANCELED ? VG_COROUTINE_CANCELLED : VG_COROUTINE_COMPLETED);
}

/* ch:send(value); logs "name" when it had not to wait, "name!" when its value
** was taken meanwhile, "name." when it put it in itself. */
static int body_sends(routine_t *r) {
  peer_t *peer = peer_of(r);
  vg_channel_t *ch = &peer->queue->ch;
  int err;

  if (r->step++ == 0) {
    prepare(peer);
    reserve(peer->queue);
    err = vg_channel_try_send(ch, at(&peer->stack, 1), at(&peer->stack, 2));
    if (err != 0) return end(peer, "", err);
    vg_waker_new(&r->co);
    assert_int_equal(vg_channel_wait(ch, &r->co, VG_CHANNEL_SEND, 2), 0);
    return routine_park(r);
  }
  if (r->error < 0) return end(peer, NULL, r->error);
  if (r->value == VG_CHANNEL_TAKEN) return end(peer, "!", 0);
  assert_int_equal(r->value, VG_CHANNEL_SEND);
  reserve(peer->queue);
  err = vg_channel_fulfil(ch, at(&peer->stack, 1), at(&peer->stack, 2));
  return end(peer, ".", err);
}

/* ch:recv(); logs "name=value". */
static int body_receives(routine_t *r) {
  peer_t *peer = peer_of(r);
  vg_channel_t *ch = &peer->queue->ch;
  int err;

  if (r->step++ == 0) {
    int ready = vg_channel_is_ready(ch);
    prepare(peer);
    err = vg_channel_try_recv(ch, at(&peer->stack, 1), at(&peer->stack, 0));
    assert_int_equal(err != 0, ready);
    if (err < 0) return end(peer, NULL, err);
    if (err == 0) {
      reserve(peer->queue);
      vg_waker_new(&r->co);
      assert_int_equal(vg_channel_wait(ch, &r->co, VG_CHANNEL_RECV, 1), 0);
      return routine_park(r);
    }
  } else {
    if (r->error < 0) return end(peer, NULL, r->error);
    assert_int_equal(r->value, VG_CHANNEL_RECV);
    vg_channel_received(ch);
  }
  assert_int_equal(peer->stack.top, 3); /* the value, and nothing else */
  peer->value = pop(at(&peer->stack, 0));
  return end(peer, "=", 0);
}


/* The cast of one test: a queue, and peers by name. */
static queue_t queue;
static peer_t peers[32];
static size_t peer_count;
static world_t *world;

static void begin(void **state, uint32_t capacity) {
  world = *state;
  peer_count = 0;
  queue_init(world, &queue, capacity);
}

static void spawn(peer_t *peer, const char *name, body_t body, int value) {
  memset(peer, 0, sizeof *peer);
  peer->queue = &queue;
  peer->value = value;
  routine_spawn(world, &peer->routine, name, body, NULL);
}

/* One pass: it sends, or waits. */
static peer_t *sender(const char *name, int value) {
  peer_t *peer = &peers[peer_count++];
  spawn(peer, name, body_sends, value);
  vg__drain(world->s);
  check(&queue);
  return peer;
}

static peer_t *receiver(const char *name) {
  peer_t *peer = &peers[peer_count++];
  spawn(peer, name, body_receives, 0);
  vg__drain(world->s);
  check(&queue);
  return peer;
}

/* As try_send and try_recv are called by one that does not wait: nobody who
** was woken runs in between. */
static int try_send(int value) {
  pile_t stack = {2, {0, MARK, value}};
  int result;
  reserve(&queue);
  result = vg_channel_try_send(&queue.ch, at(&stack, 1), at(&stack, 2));
  check(&queue);
  return result;
}

static int try_recv(void) {
  pile_t stack = {1, {0, MARK}};
  int ready = vg_channel_is_ready(&queue.ch);
  int result = vg_channel_try_recv(&queue.ch, at(&stack, 1), at(&stack, 0));
  check(&queue);
  assert_int_equal(ready, result != 0);
  return result == 1 ? pop(at(&stack, 0)) : result;
}

static void cancel(peer_t *peer) {
  assert_int_equal(vg_coroutine_cancel(&peer->routine.co), 1);
  check(&queue);
}

static void close_queue(void) {
  vg_channel_close(&queue.ch);
  check(&queue);
}

static void run(const char *log) {
  vg__drain(world->s);
  vg__drain(world->s);
  check(&queue);
  assert_log(world, log);
}

static int is_waiting(const peer_t *peer) {
  return peer->routine.co.state == VG_COROUTINE_SUSPENDED;
}


/*
** {== Unbuffered
*/

static void test_sender_waits_for_its_receiver(void **state) {
  peer_t *s;
  begin(state, 0); /* CH-01 */
  s = sender("s", 5);
  assert_true(is_waiting(s));
  receiver("r");
  run("r=5 s!");
}

static void test_receiver_waits_for_its_sender(void **state) {
  peer_t *r;
  begin(state, 0);
  r = receiver("r");
  assert_true(is_waiting(r));
  sender("s", 5); /* returns at once */
  run("s r=5");
}

static void test_waiters_are_fifo(void **state) {
  begin(state, 0);
  sender("a", 1);
  sender("b", 2);
  sender("c", 3);
  receiver("x");
  receiver("y");
  receiver("z");
  run("x=1 a! y=2 b! z=3 c!");
  receiver("x");
  receiver("y");
  sender("a", 4);
  sender("b", 5);
  run("a x=4 b y=5");
}

static void test_try_without_a_partner(void **state) {
  begin(state, 0);
  assert_int_equal(try_send(1), 0);
  assert_int_equal(try_recv(), 0);
  assert_int_equal(queue.ch.count, 0);
  sender("s", 2);
  assert_int_equal(try_send(1), 0); /* it does not jump the queue */
  assert_int_equal(try_recv(), 2);
  run("s!");
  receiver("r");
  assert_int_equal(try_send(3), 1);
  assert_int_equal(try_send(4), 0);
  run("r=3");
}

static void test_taken_then_closed(void **state) {
  begin(state, 0); /* CH-12 */
  sender("s", 5);
  assert_int_equal(try_recv(), 5);
  close_queue();
  run("s!");
}

static void test_taken_then_cancelled(void **state) {
  peer_t *s;
  begin(state, 0); /* CH-13 */
  s = sender("s", 5);
  assert_int_equal(try_recv(), 5);
  cancel(s);
  run("s:ECANCELED"); /* though it went through */
  assert_int_equal(try_recv(), 0);
}

static void test_closed_with_a_waiting_sender(void **state) {
  begin(state, 0); /* CH-14 */
  sender("s", 5);
  close_queue();
  assert_int_equal(try_recv(), VG_ECLOSED); /* withdrawn */
  run("s:ECLOSED");
}

static void test_matched_then_closed(void **state) {
  begin(state, 0); /* CH-15 */
  receiver("r");
  assert_int_equal(try_send(5), 1);
  close_queue();
  run("r=5");
}

static void test_cancelled_sender_leaves(void **state) {
  peer_t *a;
  begin(state, 0);
  a = sender("a", 1);
  sender("b", 2);
  cancel(a);
  assert_int_equal(try_recv(), 2);
  assert_int_equal(try_recv(), 0);
  run("a:ECANCELED b!");
}

/* }================================================================= */


/*
** {== Buffered
*/

static void test_buffer(void **state) {
  begin(state, 2); /* CH-02 */
  sender("a", 1);
  sender("b", 2);
  run("a b");
  assert_true(is_waiting(sender("c", 3)));
  assert_int_equal(try_send(9), 0);
  receiver("x");
  run("x=1 c.");
  receiver("y");
  receiver("z");
  run("y=2 z=3");
  assert_true(is_waiting(receiver("w")));
  assert_int_equal(try_send(4), 1); /* past the buffer */
  assert_int_equal(queue.ch.count, 0);
  run("w=4");
}

static void test_ring_wraps_and_grows(void **state) {
  int next = 0, expected = 0, i, round;
  begin(state, 40);
  for (round = 1; round <= 12; round++) {
    for (i = 0; i < 3 * round; i++) {
      if (queue.ch.count == 40) break;
      assert_int_equal(try_send(next++), 1);
    }
    for (i = 0; i < 2 * round && expected < next; i++)
      assert_int_equal(try_recv(), expected++);
  }
  while (expected < next) assert_int_equal(try_recv(), expected++);
  assert_int_equal(try_recv(), 0);
}

static void test_drained_after_close(void **state) {
  begin(state, 2); /* CH-04 */
  sender("a", 1);
  sender("b", 2);
  sender("c", 3);
  close_queue();
  sender("d", 4);
  run("a b c:ECLOSED d:ECLOSED");
  receiver("x");
  receiver("y");
  receiver("z");
  run("x=1 y=2 z:ECLOSED");
  assert_int_equal(try_send(1), VG_ECLOSED);
}

static void test_close_wakes_everyone(void **state) {
  begin(state, 0); /* CH-05 */
  receiver("x");
  receiver("y");
  close_queue();
  close_queue(); /* twice is harmless */
  run("x:ECLOSED y:ECLOSED");
  begin(state, 1);
  try_send(0);
  sender("a", 1);
  sender("b", 2);
  close_queue();
  run("a:ECLOSED b:ECLOSED");
  assert_int_equal(try_recv(), 0);
  assert_int_equal(try_recv(), VG_ECLOSED);
}

static void test_sent_then_closed(void **state) {
  begin(state, 1); /* CH-16 */
  receiver("x");
  receiver("y");
  assert_int_equal(try_send(5), 1);
  close_queue();
  run("x=5 y:ECLOSED");
}

static void test_slot_is_owed_to_whom_it_woke(void **state) {
  begin(state, 1); /* CH-07 */
  try_send(1);
  sender("s", 2);
  assert_int_equal(try_recv(), 1);
  assert_int_equal(queue.ch.promised, 1);
  assert_int_equal(try_send(9), 0);
  run("s.");
  assert_int_equal(try_recv(), 2);
  assert_int_equal(queue.ch.promised, 0);
}

static void test_every_free_slot_is_promised(void **state) {
  begin(state, 2);
  try_send(1);
  try_send(2);
  sender("a", 3);
  sender("b", 4);
  sender("c", 5);
  assert_int_equal(try_recv(), 1);
  assert_int_equal(try_recv(), 2);
  assert_int_equal(queue.ch.promised, 2);
  run("a. b.");
  assert_int_equal(try_recv(), 3);
  run("c.");
  assert_int_equal(try_recv(), 4);
  assert_int_equal(try_recv(), 5);
}

/* A receiver need not wait for the promised sender to run. */
static void test_promised_value_is_taken(void **state) {
  begin(state, 1);
  try_send(1);
  sender("a", 2);
  sender("b", 3);
  assert_int_equal(try_recv(), 1);
  assert_true(vg_channel_is_ready(&queue.ch));
  assert_int_equal(try_recv(), 2); /* from a's stack; b is promised now */
  assert_int_equal(queue.ch.promised, 1);
  assert_int_equal(try_recv(), 3);
  assert_int_equal(try_recv(), 0);
  run("a! b!");
}

static void test_taken_promise_then_cancelled(void **state) {
  peer_t *a;
  begin(state, 1);
  try_send(1);
  a = sender("a", 2);
  assert_int_equal(try_recv(), 1);
  assert_int_equal(try_recv(), 2);
  cancel(a); /* nothing to take back */
  run("a:ECANCELED");
  assert_int_equal(try_recv(), 0);
}

static void test_promised_then_cancelled(void **state) {
  peer_t *a;
  begin(state, 1); /* CH-09 */
  try_send(1);
  a = sender("a", 2);
  sender("b", 3);
  assert_int_equal(try_recv(), 1);
  cancel(a);
  assert_int_equal(queue.ch.promised, 1); /* b's now */
  assert_int_equal(try_send(9), 0);
  run("a:ECANCELED b.");
  assert_int_equal(try_recv(), 3);
}

static void test_promised_then_cancelled_alone(void **state) {
  peer_t *a;
  begin(state, 1);
  try_send(1);
  a = sender("a", 2);
  assert_int_equal(try_recv(), 1);
  cancel(a);
  assert_int_equal(queue.ch.promised, 0);
  assert_int_equal(try_send(9), 1); /* the slot is free again */
  run("a:ECANCELED");
  assert_int_equal(try_recv(), 9);
}

static void test_promised_then_closed(void **state) {
  begin(state, 1);
  try_send(1);
  sender("a", 2);
  assert_int_equal(try_recv(), 1);
  close_queue();
  assert_int_equal(try_recv(), VG_ECLOSED);
  run("a:ECLOSED"); /* its value had not gone in */
}

/* }================================================================= */


/*
** {== Values that come back (ruling 25)
*/

static void test_back_to_the_front(void **state) {
  peer_t *r;
  begin(state, 0);
  r = receiver("r");
  assert_int_equal(try_send(5), 1);
  cancel(r);
  assert_int_equal(queue.ch.count, 1);
  assert_int_equal(try_send(6), 0); /* a rendezvous channel all the same */
  run("r:ECANCELED");
  receiver("x");
  run("x=5");
}

static void test_back_to_a_waiting_receiver(void **state) {
  peer_t *r;
  begin(state, 0);
  r = receiver("r");
  receiver("x");
  assert_int_equal(try_send(5), 1);
  cancel(r);
  assert_int_equal(queue.ch.count, 0);
  run("r:ECANCELED x=5");
}

/* Of three that were handed 1, 2, 3 one is cancelled: the others keep the
** order of the values, and the last of them is free again. */
static void test_chain(void **state) {
  static const char *const logs[] = {
      "a:ECANCELED b=1 c=2", "a=1 b:ECANCELED c=2", "a=1 b=2 c:ECANCELED"};
  size_t who;
  int waiting;

  for (waiting = 0; waiting < 2; waiting++)
    for (who = 0; who < 3; who++) {
      peer_t *p[3];
      begin(state, 3);
      p[0] = receiver("a");
      p[1] = receiver("b");
      p[2] = receiver("c");
      if (waiting) receiver("d");
      try_send(1);
      try_send(2);
      try_send(3);
      cancel(p[who]);
      vg__drain(world->s);
      if (waiting) {
        char text[64];
        snprintf(text, sizeof text, "%s d=3", logs[who]);
        assert_log(world, text);
        assert_int_equal(try_recv(), 0);
      } else {
        assert_log(world, logs[who]);
        assert_int_equal(try_recv(), 3);
      }
      check(&queue);
    }
}

static void test_all_come_back_in_order(void **state) {
  static const size_t orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  size_t i, k;

  for (i = 0; i < LENGTH(orders); i++) {
    peer_t *p[3];
    begin(state, 0);
    p[0] = receiver("a");
    p[1] = receiver("b");
    p[2] = receiver("c");
    try_send(1);
    try_send(2);
    try_send(3);
    for (k = 0; k < 3; k++) cancel(p[orders[i][k]]);
    assert_int_equal(queue.ch.count, 3);
    run("a:ECANCELED b:ECANCELED c:ECANCELED");
    assert_int_equal(try_recv(), 1);
    assert_int_equal(try_recv(), 2);
    assert_int_equal(try_recv(), 3);
    assert_int_equal(try_recv(), 0);
  }
}

static void test_back_into_a_closed_channel(void **state) {
  peer_t *r;
  begin(state, 0);
  r = receiver("r");
  try_send(5);
  close_queue();
  cancel(r);
  run("r:ECANCELED");
  assert_int_equal(try_recv(), 5); /* drained like any other */
  assert_int_equal(try_recv(), VG_ECLOSED);
}

/* A value that came back stands before the senders that wait. */
static void test_back_before_waiting_senders(void **state) {
  peer_t *r;
  begin(state, 0);
  r = receiver("r");
  try_send(5);
  sender("s", 6); /* runs r, too, in the same pass */
  assert_log(world, "r=5");
  r = receiver("r");
  run("r=6 s!");
  r = receiver("r");
  try_send(7);
  cancel(r);
  sender("t", 8);
  assert_int_equal(try_recv(), 7);
  assert_int_equal(try_recv(), 8);
  run("r:ECANCELED t!");
}

static void test_waiting_then_cancelled(void **state) {
  peer_t *r;
  begin(state, 0);
  r = receiver("r");
  receiver("x");
  cancel(r); /* nothing was handed over */
  assert_int_equal(queue.ch.receiving, 1);
  assert_int_equal(try_send(5), 1);
  run("r:ECANCELED x=5");
}

/* More may come back than the capacity. */
static void test_more_than_the_capacity(void **state) {
  peer_t *p[4];
  size_t i;
  begin(state, 1);
  for (i = 0; i < 4; i++) p[i] = receiver("r");
  for (i = 0; i < 4; i++) assert_int_equal(try_send((int)i), 1);
  assert_int_equal(try_send(4), 1); /* the buffer's own place */
  sender("s", 5);
  assert_log(world, "r=0 r=1 r=2 r=3");
  assert_int_equal(try_recv(), 4);
  run("s.");
  assert_int_equal(try_recv(), 5);
  for (i = 0; i < 4; i++) p[i] = receiver("r");
  for (i = 0; i < 4; i++) try_send((int)i);
  try_send(4);
  for (i = 0; i < 4; i++) cancel(p[i]);
  assert_int_equal(queue.ch.count, 5);
  assert_int_equal(try_send(9), 0);
  for (i = 0; i < 5; i++) assert_int_equal(try_recv(), i);
  assert_int_equal(try_send(9), 1);
  run("r:ECANCELED r:ECANCELED r:ECANCELED r:ECANCELED");
}

/* }================================================================= */


/*
** {== One wait on several channels
*/

static queue_t other;

static int body_selects(routine_t *r) {
  peer_t *peer = peer_of(r);
  if (r->step++ == 0) {
    prepare(peer);
    reserve(&queue);
    vg_waker_new(&r->co);
    vg_channel_wait(&queue.ch, &r->co, VG_CHANNEL_RECV, 1);
    vg_channel_wait(&other.ch, &r->co, VG_CHANNEL_SEND, 2);
    return routine_park(r);
  }
  if (r->error == 0 && r->ordinal == 0) {
    vg_channel_received(&queue.ch);
    peer->value = pop(at(&peer->stack, 0));
    return end(peer, "=", 0);
  }
  return end(peer, "!", r->error);
}

static void test_select_receives(void **state) {
  begin(state, 0);
  queue_init(world, &other, 0);
  spawn(&peers[0], "p", body_selects, 3);
  vg__drain(world->s);
  check(&queue);
  check(&other);
  assert_int_equal(try_send(8), 1);
  check(&other);
  assert_true(vg_list_empty(&other.ch.senders)); /* it does not send, too */
  run("p=8");
}

static void test_select_sends(void **state) {
  pile_t stack = {1, {0, MARK}};
  begin(state, 0);
  queue_init(world, &other, 0);
  spawn(&peers[0], "p", body_selects, 3);
  vg__drain(world->s);
  assert_int_equal(vg_channel_try_recv(&other.ch, at(&stack, 1), at(&stack, 0)),
                   1);
  assert_int_equal(stack.values[2], 3);
  check(&other);
  check(&queue);
  assert_int_equal(queue.ch.receiving, 0); /* it does not receive, too */
  assert_int_equal(try_send(8), 0);
  run("p!");
}

/* Handed a value by the second of two: it is revoked from there. */
static int body_selects_twice(routine_t *r) {
  peer_t *peer = peer_of(r);
  if (r->step++ == 0) {
    prepare(peer);
    reserve(&queue);
    reserve(&other);
    vg_waker_new(&r->co);
    vg_channel_wait(&other.ch, &r->co, VG_CHANNEL_RECV, 1);
    vg_channel_wait(&queue.ch, &r->co, VG_CHANNEL_RECV, 1);
    return routine_park(r);
  }
  return end(peer, NULL, r->error);
}

static void test_select_cancelled(void **state) {
  begin(state, 0);
  queue_init(world, &other, 0);
  spawn(&peers[0], "p", body_selects_twice, 3);
  vg__drain(world->s);
  assert_int_equal(try_send(8), 1);
  check(&other);
  assert_int_equal(other.ch.receiving, 0);
  assert_ptr_equal(peers[0].routine.co.waker.first.event, &queue.ch.event);
  cancel(&peers[0]);
  check(&other);
  run("p:ECANCELED");
  assert_int_equal(try_recv(), 8);
}

/* }================================================================= */


static void test_main_chunk(void **state) {
  peer_t main, *r;
  int i;
  begin(state, 1);
  memset(&main, 0, sizeof main);
  routine_main(world, &main.routine);
  for (i = 1; i <= 3; i++) { /* each time its grant is taken off the list */
    prepare(&main);
    reserve(&queue);
    vg_waker_new(&main.routine.co);
    vg_channel_wait(&queue.ch, &main.routine.co, VG_CHANNEL_RECV, 1);
    spawn(&peers[0], "s", body_sends, i);
    assert_int_equal(main_park(&main.routine), 0);
    vg_channel_received(&queue.ch);
    assert_int_equal(pop(at(&main.stack, 0)), i);
    check(&queue);
    assert_log(world, "s");
  }
  r = receiver("r");
  try_send(9);
  cancel(r);
  run("r:ECANCELED");
  assert_int_equal(try_recv(), 9);
}

static void test_token_ends_a_wait(void **state) {
  routine_t main;
  fake_t token;
  begin(state, 0); /* CH-21 */
  fake_init(world, &token, "token", FAKE_PASSIVE, 0);
  routine_main(world, &main);
  vg_waker_new_with_timeout(&main.co, 0, &token.event);
  vg_channel_wait(&queue.ch, &main.co, VG_CHANNEL_SEND, 2);
  assert_int_equal(vg_waker_park(&main.co), 1);
  assert_int_equal(length(&queue.ch.senders), 1);
  fake_fire(&token, 0, 0);
  assert_int_equal(length(&queue.ch.senders), 0);
  assert_int_equal(vg_scheduler_run(world->s, &main.co), 0);
  assert_int_equal(main.co.waker.error, VG_ETOKEN);
  assert_int_equal(try_recv(), 0);
}

static void test_wait_without_memory(void **state) {
  routine_t main;
  begin(state, 0);
  routine_main(world, &main);
  reserve(&queue);
  vg_waker_new(&main.co);
  assert_int_equal(vg_channel_wait(&queue.ch, &main.co, VG_CHANNEL_RECV, 1),
                   0); /* the first lies in the waker */
  memory_fail_at(&world->memory, 1);
  assert_int_equal(vg_channel_wait(&queue.ch, &main.co, VG_CHANNEL_SEND, 2),
                   UV_ENOMEM);
  assert_true(vg_list_empty(&queue.ch.senders));
  vg_waker_clean(&main.co);
  check(&queue);
  assert_int_equal(queue.ch.receiving, 0);
}

static void test_info(void **state) {
  char text[128];
  begin(state, 2); /* EV-12 */
  try_send(1);
  try_send(2);
  sender("s", 3);
  vg_event_info(&queue.ch.event, text, sizeof text);
  assert_string_equal(text,
                      "channel (2 of 2, 0 receiving, 1 sending, 0 promised)");
  try_recv();
  close_queue();
  vg_event_info(&queue.ch.event, text, sizeof text);
  assert_string_equal(
      text, "channel (1 of 2, 0 receiving, 0 sending, 1 promised, closed)");
  run("s:ECLOSED");
}

static void test_dispose_closes(void **state) {
  vg_channel_t *ch;
  begin(state, 0);
  ch = vg__alloc(world->s, sizeof *ch);
  assert_non_null(ch);
  vg_channel_init(ch, world->s, 0, &values, 0);
  vg_event_release(&ch->event); /* frees it */
  receiver("r");
  vg_event_release(&queue.ch.event);
  run("r:ECLOSED");
}

/* With everybody in a wait, the scheduler goes first. */
static void test_freed_while_waited_for(void **state) {
  begin(state, 1);
  receiver("a");
  receiver("b");
  try_send(1); /* a has it, and never runs */
  world_free(world);
  assert_true(vg_list_empty(&queue.ch.receivers));
  assert_true(vg_list_empty(&queue.ch.granted));
}


/*
** {== Random: nothing lost, nothing twice, order kept
*/

enum { CROWD = 24, ROUNDS = 5000 };

static struct {
  uint8_t sent[ROUNDS + 1];   /* by value: its send succeeded */
  int received[ROUNDS + 1];   /* by value: how often */
  int by_arrival[ROUNDS + 1]; /* what the n-th receiver got */
} ledger;

static void settle(const peer_t *peer) {
  if (!peer->done) return;
  assert_in_range(peer->value, 1, ROUNDS);
  if (peer->routine.body == body_sends) {
    ledger.sent[peer->value] = 1;
  } else {
    ledger.received[peer->value]++;
    ledger.by_arrival[peer->number] = peer->value;
  }
}

static void play(void **state, uint32_t capacity, int cancel_receivers) {
  static peer_t crowd[CROWD];
  static uint8_t used[CROWD];
  uint32_t seed = 77 + capacity;
  int sends = 0, receivers = 0, round, last = 0, value;
  size_t i;

  begin(state, capacity);
  memset(&ledger, 0, sizeof ledger);
  memset(used, 0, sizeof used);
  for (round = 0; round < ROUNDS; round++) {
    peer_t *peer = &crowd[dice(&seed) % CROWD];
    i = (size_t)(peer - crowd);
    if (!used[i]) {
      used[i] = 1;
      if (dice(&seed) % 2 == 0) {
        spawn(peer, "s", body_sends, ++sends);
      } else {
        spawn(peer, "r", body_receives, 0);
        peer->number = ++receivers;
      }
    } else if (vg__coroutine_ended(&peer->routine.co)) {
      settle(peer);
      used[i] = 0;
    } else if (dice(&seed) % 3 == 0 &&
               (cancel_receivers || peer->routine.body == body_sends)) {
      vg_coroutine_cancel(&peer->routine.co);
    }
    if (dice(&seed) % 2 == 0) vg__drain(world->s);
    check(&queue);
    world->log_used = 0;
  }
  close_queue();
  world_run(world);
  for (i = 0; i < CROWD; i++)
    if (used[i]) settle(&crowd[i]);
  world->log_used = 0;
  while ((value = try_recv()) > 0) ledger.received[value]++;
  assert_int_equal(value, VG_ECLOSED);
  for (value = 1; value <= sends; value++) {
    assert_true(ledger.received[value] <= 1);
    if (ledger.sent[value]) assert_int_equal(ledger.received[value], 1);
  }
  if (capacity > 0 || cancel_receivers) return;
  for (i = 1; i <= (size_t)receivers; i++) { /* FIFO on both sides */
    if (ledger.by_arrival[i] == 0) continue;
    assert_true(ledger.by_arrival[i] > last);
    last = ledger.by_arrival[i];
  }
  assert_true(last > 0);
}

static void test_random_unbuffered(void **state) { play(state, 0, 1); }
static void test_random_in_order(void **state) { play(state, 0, 0); }
static void test_random_one_slot(void **state) { play(state, 1, 1); }
static void test_random_buffered(void **state) { play(state, 5, 1); }

/* }================================================================= */


int main(void) {
  const struct CMUnitTest tests[] = {
      world_test(test_sender_waits_for_its_receiver),
      world_test(test_receiver_waits_for_its_sender),
      world_test(test_waiters_are_fifo),
      world_test(test_try_without_a_partner),
      world_test(test_taken_then_closed),
      world_test(test_taken_then_cancelled),
      world_test(test_closed_with_a_waiting_sender),
      world_test(test_matched_then_closed),
      world_test(test_cancelled_sender_leaves),
      world_test(test_buffer),
      world_test(test_ring_wraps_and_grows),
      world_test(test_drained_after_close),
      world_test(test_close_wakes_everyone),
      world_test(test_sent_then_closed),
      world_test(test_slot_is_owed_to_whom_it_woke),
      world_test(test_every_free_slot_is_promised),
      world_test(test_promised_value_is_taken),
      world_test(test_taken_promise_then_cancelled),
      world_test(test_promised_then_cancelled),
      world_test(test_promised_then_cancelled_alone),
      world_test(test_promised_then_closed),
      world_test(test_back_to_the_front),
      world_test(test_back_to_a_waiting_receiver),
      world_test(test_chain),
      world_test(test_all_come_back_in_order),
      world_test(test_back_into_a_closed_channel),
      world_test(test_back_before_waiting_senders),
      world_test(test_waiting_then_cancelled),
      world_test(test_more_than_the_capacity),
      world_test(test_select_receives),
      world_test(test_select_sends),
      world_test(test_select_cancelled),
      world_test(test_main_chunk),
      world_test(test_token_ends_a_wait),
      world_test(test_wait_without_memory),
      world_test(test_info),
      world_test(test_dispose_closes),
      world_test(test_freed_while_waited_for),
      world_test(test_random_unbuffered),
      world_test(test_random_in_order),
      world_test(test_random_one_slot),
      world_test(test_random_buffered),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

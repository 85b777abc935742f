# vigil: `make help` lists what can be made.

# Settings.
LUA     ?= lua5.4
LUA_VER ?= 5.4
PREFIX  ?= /usr/local
BUILD   ?= build
JOBS    ?= $(shell getconf _NPROCESSORS_ONLN)

LUA_CFLAGS := $(shell pkg-config --cflags lua$(LUA_VER) 2>/dev/null || \
                      pkg-config --cflags lua 2>/dev/null)
UV_CFLAGS  := $(shell pkg-config --cflags libuv 2>/dev/null)
UV_LIBS    := $(shell pkg-config --libs libuv 2>/dev/null || echo -luv)

# uv.h needs the POSIX types that plain -std=c11 hides.
STANDARD  = -std=c11 -D_GNU_SOURCE
WARNINGS  = -Wall \
            -Wextra \
            -Wpedantic \
            -Wshadow \
            -Wconversion
OPTIMIZE ?= -O2
override CFLAGS += $(STANDARD) $(WARNINGS) $(OPTIMIZE) -fPIC -MMD -Isrc \
                   $(LUA_CFLAGS) $(UV_CFLAGS)

SHARED = -shared
ifeq ($(shell uname -s),Darwin)
SHARED = -bundle -undefined dynamic_lookup
endif

# Sources.
SOURCES = $(wildcard src/*.c)
OBJECTS = $(SOURCES:src/%.c=$(BUILD)/obj/%.o)
CORE    = $(filter-out $(BUILD)/obj/lua_%,$(OBJECTS))
MODULE  = $(BUILD)/vigil/core.so
C_TESTS = $(patsubst spec/c/%.c,$(BUILD)/test/%,$(wildcard spec/c/test_*.c))
SUPPORT = $(patsubst spec/c/%.c,$(BUILD)/test/%.o,$(wildcard spec/c/support*.c))
FORMAT  = $(wildcard src/*.[ch] spec/c/*.[ch] examples/*.[ch] bench/*.[ch])

# The tree in use, without installing.
# (The _5_4 variables win over those without; the user's own paths stay behind.)
ENV    = LUA_PATH_5_4="./lua/?.lua;./lua/?/init.lua;$${LUA_PATH_5_4-$${LUA_PATH-;}}" \
         LUA_CPATH_5_4="./$(BUILD)/?.so;$${LUA_CPATH_5_4-$${LUA_CPATH-;}}" \
         VIGIL_BUILD='$(BUILD)' LUA='$(LUA)'
BUSTED = $(LUA) -e 'require "busted.runner" { standalone = false }' /dev/null
# 1,000 clients and their servers in one process are more than the usual 1,024.
FILES  = ulimit -S -n 65536 2>/dev/null || ulimit -S -n $$(ulimit -H -n);
MAKE  += --no-print-directory
BUILD_ALL = $(MAKE) -j$(JOBS)

.PHONY: all c-tests run test test-c test-lua lint asan valgrind gc bench \
        install clean help
.SECONDARY:

all: $(MODULE)
	@:

$(MODULE): $(OBJECTS)
	@mkdir -p $(@D)
	$(CC) $(SHARED) $(LDFLAGS) -o $@ $(OBJECTS) $(UV_LIBS)

$(BUILD)/obj/%.o: src/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c -o $@ $<

c-tests: $(C_TESTS)
	@:

$(BUILD)/test/%.o: spec/c/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c -o $@ $<

$(BUILD)/test/%: $(BUILD)/test/%.o $(SUPPORT) $(CORE)
	$(CC) $(LDFLAGS) -o $@ $^ $(UV_LIBS) -lcmocka

# The hook of `make gc`, a Lua module.
$(BUILD)/gcstress.so: $(BUILD)/test/gcstress.o
	$(CC) $(SHARED) $(LDFLAGS) -o $@ $^

-include $(wildcard $(BUILD)/obj/*.d $(BUILD)/test/*.d)

# What people call.  The second make sees what the first step installed.
run:
	@sh .ci/need run
	@$(BUILD_ALL) all
	@$(FILES) $(ENV) $(LUA) examples/tour.lua $(ARGS)

test:
	@sh .ci/need test
	@$(BUILD_ALL) all c-tests
	@failed=0; $(MAKE) test-c || failed=1; $(MAKE) test-lua || failed=1; \
	  [ $$failed -eq 0 ] || echo 'test: FAILED, see above'; exit $$failed

test-c:
	@RUNNER='$(RUNNER)' sh .ci/ctests $(C_TESTS)

test-lua:
	@$(FILES) $(ENV) $(BUSTED) $(ARGS)

lint:
	@sh .ci/need all
	luacheck -q --no-color lua spec examples bench .ci .busted
	clang-format --dry-run -Werror $(FORMAT)
	$(LUA) .ci/rockspec.lua
	$(BUILD_ALL) all c-tests CC=gcc   BUILD=build/gcc   WARNINGS='$(WARNINGS) -Werror'
	$(BUILD_ALL) all c-tests CC=clang BUILD=build/clang WARNINGS='$(WARNINGS) -Werror'

# The interpreter is not instrumented, so the sanitizer's library is loaded ahead
# of it; alone.so keeps that from the programs it runs.  nodelete: the module
# stays mapped after lua_close, so that what leaks has a stack.  Reports go to
# files, because a spec may run a program and look at what that prints.
ASAN_LUA = env LD_PRELOAD=$$(gcc -print-file-name=libasan.so):$(CURDIR)/build/asan/alone.so $(LUA)
asan: export ASAN_OPTIONS  = detect_leaks=1:allow_user_segv_handler=0:exitcode=99:log_path=$(CURDIR)/build/asan/report
asan: export UBSAN_OPTIONS = print_stacktrace=1:exitcode=99:log_path=$(CURDIR)/build/asan/report
asan: build/asan/alone.so
	@sh .ci/need test
	@rm -f build/asan/report.*
	@failed=0; \
	$(MAKE) test CC=gcc BUILD=build/asan LUA="$(ASAN_LUA)" \
	  OPTIMIZE='-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all' \
	  LDFLAGS='-fsanitize=address,undefined -Wl,-z,nodelete' || failed=1; \
	for report in build/asan/report.*; do \
	  [ ! -e $$report ] || { cat $$report; failed=1; }; \
	done; exit $$failed

build/asan/alone.so:
	@mkdir -p $(@D)
	@echo '#include <stdlib.h>'\
	'\n__attribute__((constructor)) static void f(void) { unsetenv("LD_PRELOAD"); }' | \
	  gcc -shared -fPIC -x c - -o $@

valgrind:
	@sh .ci/need all
	@$(BUILD_ALL) c-tests BUILD=build/valgrind OPTIMIZE='-O1 -g'
	@$(MAKE) test-c BUILD=build/valgrind \
	  RUNNER='valgrind -q --fair-sched=try --leak-check=full --error-exitcode=99'

# The specs with a full collection every GC_EVERY instructions: some minutes.
GC_EVERY ?= 100
gc:
	@sh .ci/need test
	@$(BUILD_ALL) all $(BUILD)/gcstress.so
	@VIGIL_GC_EVERY=$(GC_EVERY) $(MAKE) test-lua

bench:
	@sh .ci/need run
	@$(BUILD_ALL) all
	@$(FILES) $(ENV) $(LUA) bench/run.lua $(ARGS)

LUA_DIR = $(DESTDIR)$(PREFIX)/share/lua/$(LUA_VER)/vigil
LIB_DIR = $(DESTDIR)$(PREFIX)/lib/lua/$(LUA_VER)/vigil
INC_DIR = $(DESTDIR)$(PREFIX)/include
install: all
	install -d $(LUA_DIR) $(LIB_DIR) $(INC_DIR)
	install -m 644 lua/vigil/*.lua $(LUA_DIR)
	install -m 755 $(MODULE) $(LIB_DIR)
	install -m 644 $(wildcard src/vigil.h src/vigil_lua.h) $(INC_DIR)

clean:
	rm -rf build

help:
	@echo 'make run       install what is missing, build, run examples/tour.lua (ARGS=...)'
	@echo 'make test      the same for the test tools, then every test (ARGS=spec/x_spec.lua)'
	@echo 'make           build the module into build/'
	@echo 'make lint      luacheck, clang-format, the rockspec, gcc and clang without a warning'
	@echo 'make asan      every test under the address, leak and undefined behaviour sanitizers'
	@echo 'make valgrind  the C tests under valgrind'
	@echo 'make gc        the specs with a collection every GC_EVERY instructions'
	@echo 'make bench     measure'
	@echo 'make install   under PREFIX (/usr/local), in DESTDIR'
	@echo 'make clean     remove build/'

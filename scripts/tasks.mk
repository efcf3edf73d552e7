# The targets besides the build. Every target works alone, with -j, and with config=.

JOBS ?= $(shell nproc 2>/dev/null || echo 1)
# A build inside a task is a second make: before `deps`, the first one may not have found a compiler or Lua's headers. It shares the
# jobs of a make called with -j.
REMAKE = --no-print-directory $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(JOBS))

MODEL_CACHE = $${ANE_MODEL_CACHE:-models-cache}
DEMO_MODEL = $(MODEL_CACHE)/SmolLM2-135M-Instruct.Q4_1.gguf

help:
	@echo "make             build/ane/core.so and build/bin/ane"
	@echo "make deps        install the Debian packages that building, testing and the demo need (as root or with sudo; over the network)"
	@echo "make demo        deps, build, fetch a small real model (98 MB), ask it one question"
	@echo "make model       fetch only the model of the demo, into models-cache/ or the folder named by ANE_MODEL_CACHE"
	@echo "make test        deps, build, all specs and luacheck; only deps needs a network; SPECS='spec/ane ...' selects specs, TEST_JOBS=N runs N at once"
	@echo "make check       test, the specs under the address and undefined-behaviour sanitizers, a -O0 build, clang-tidy, dist"
	@echo "make coverage    the specs, and which lines of C and Lua they run, by folder; fails below FLOOR_C, FLOOR_LUA percent"
	@echo "make tidy        clang-tidy over the C files; CLANG_TIDY names one"
	@echo "make analyse     clang-tidy, cppcheck, and the analysers of gcc and clang over the C files but the kernels"
	@echo "make format      clang-format over the C files, in place (version 14; CLANG_FORMAT names one); format-check changes nothing"
	@echo "make faults      fails every allocation, system call and thread start in turn, once or from then on (SAMPLE=N: about N of each kind)"
	@echo "make faults-ranks  the same in each of two ranks of mpirun, SAMPLE (25) of each kind; needs mpirun and mpicc"
	@echo "make race        specs of threads under the thread sanitizer, with random sleeps in the thread pool"
	@echo "make kills       SIGKILL at KILLS (200) random moments each of quantise, export, save, pull and batch"
	@echo "make fuzz        TARGET=name SECONDS=n: libFuzzer on one target of fuzz/targets, with clang; without TARGET it lists them"
	@echo "make audit       AUDIT (600) seconds of random models, graphs, numbers and texts: bits, round trips, shards (PROPERTY names one; SEED)"
	@echo "make machines    ROWS: one program by other compilers, Luas, systems, environments; the same bits everywhere (scripts/machines/run)"
	@echo "make soak        LOADS (10,000) loads, TOKENS (1,000,000) tokens, SOAK (10,000) requests of several kinds to ane serve: right answers, no"
	@echo "                 growth of memory and files; the requests need python3"
	@echo "make schema-suite  ane grammar on a copy of JSON-Schema-Test-Suite in the folder SUITE: no invalid value may be accepted; needs python3"
	@echo "make chat-page   use the chat page in headless Chromium; needs Playwright for Python (PYTHON names one that has it)"
	@echo "make valgrind    the specs under valgrind, except those of real models"
	@echo "make arm         specs under an ARM Lua run by qemu (gcc-aarch64-linux-gnu, qemu-user): kernels, executor and goldens, or those of SPECS;"
	@echo "                 CPU names one that qemu knows"
	@echo "make musl        specs with musl (musl-tools) instead of glibc; the libraries are built from Debian's sources"
	@echo "make mpi         build/<config>/ane/mpi.so, for models and batches under mpirun; needs mpicc (MPICC names one)"
	@echo "make doc         docs/reference.md from types/; lists functions without a description"
	@echo "make bench       build the programs of bench/ into build/<config>/bench/"
	@echo "make install     to PREFIX (/usr/local), below DESTDIR; or to INST_LIBDIR, INST_LUADIR, INST_BINDIR"
	@echo "make uninstall   remove what install has written"
	@echo "make dist        build/dist/: a tarball and a rock of the last commit; installs each into an empty prefix and runs a model"
	@echo "make clean       remove build/"
	@echo "config=release (default), debug, sanitize, tsan, coverage, faults or fuzz chooses flags and the folder build/<config>/"

deps:
	@scripts/deps build demo test

model:
	@scripts/deps demo
	@scripts/fetch-model "$(MODEL_CACHE)"

demo:
	@scripts/deps build demo
	@$(MAKE) $(REMAKE) all
	@scripts/fetch-model "$(MODEL_CACHE)"
	@echo "> What is the Moon made of? Answer in two sentences."
	@$(BUILD)/bin/ane chat "$(DEMO_MODEL)" --prompt "What is the Moon made of? Answer in two sentences." --max-tokens 100 --timings
	@echo "continue with: $(BUILD:build/release=build)/bin/ane chat $(DEMO_MODEL)"

# ---- Tests -----------------------------------------------------------------------------------------------------------

SPECS ?= spec
TEST = LUA=$(LUA) scripts/test

test:
	@scripts/deps build test
	@$(MAKE) $(REMAKE) all
	@$(TEST) $(config) $(SPECS)

check:
	@scripts/deps build test
	@$(MAKE) $(REMAKE) config=release WERROR=1 all
	@$(MAKE) $(REMAKE) config=debug WERROR=1 all
	@$(MAKE) $(REMAKE) config=sanitize WERROR=1 all
	@$(TEST) release $(SPECS) scripts/checks -- debug scripts/checks/smoke_spec.lua -- sanitize $(SPECS)

# Runs all specs that run code (scripts/test lists the exceptions), in a few minutes. With SPECS= there is no floor.
FLOOR_C ?= 93
FLOOR_LUA ?= 92
coverage:
	@scripts/deps build test
	@$(MAKE) $(REMAKE) config=coverage all
	@find build/coverage -name '*.gcda' -delete; rm -f build/coverage/lines.txt
	@$(CC) -O2 -Wall -shared -fPIC -I$(LUA_INCDIR) -Wl,-z,nodelete -o build/coverage/lines.so scripts/coverage/lines.c
	@status=0; GCOV_ERROR_FILE=$(CURDIR)/build/coverage/gcov.log $(TEST) coverage $(SPECS) || status=1; \
	  $(LUA) scripts/coverage/report.lua build/coverage $(if $(filter spec,$(SPECS)),$(FLOOR_C) $(FLOOR_LUA),0 0) && exit $$status

# clang-tidy checks a file with the flags of its compiler. A file that passed is checked again only after a change.
CLANG_TIDY ?= $(eval CLANG_TIDY := $(firstword $(foreach v,. -19. -18. -17. -16. -15. -14.,$(shell command -v clang-tidy$(v:.=)))))$(CLANG_TIDY)
tidy:
	@test -n "$(CLANG_TIDY)" || { echo "clang-tidy is not installed" >&2; exit 1; }
	@$(MAKE) $(REMAKE) -k $(SOURCES:%.c=$(BUILD)/%.tidy)

$(BUILD)/%.tidy: %.c $(BUILD)/%.o .clang-tidy
	@echo "  TIDY  $<"
	@$(CLANG_TIDY) --quiet $< -- $(filter-out -fno-math-errno,$(ALL_CFLAGS)) $(ISA_CFLAGS) 2>$@.log || { cat $@.log; exit 1; }
	@touch $@

analyse: tidy
	@$(MAKE) $(REMAKE) all
	@scripts/analyse $(BUILD) $(LUA_INCDIR) $(JOBS)

# .clang-format is for version 14, as in Debian 12. Other versions break lines differently.
CLANG_FORMAT ?= $(firstword $(foreach p,clang-format-14 clang-format,$(shell $(p) --version 2>/dev/null | grep -q 'version 14\.' && echo $(p))))
FORMATTED = $(shell find csrc bench fuzz -name '*.[ch]' | LC_ALL=C sort)
NEED_FORMAT = test -n "$(CLANG_FORMAT)" || { echo "clang-format 14 is not installed" >&2; exit 3; }
format-check:
	@$(NEED_FORMAT)
	@$(CLANG_FORMAT) --dry-run -Werror $(FORMATTED)

format:
	@$(NEED_FORMAT)
	@$(CLANG_FORMAT) -i $(FORMATTED)

# A program whose allocations and system calls fail on demand: scripts/faults/driver.c. It counts calls of all libraries.
$(BUILD)/bin/faults: scripts/faults/driver.c
	@mkdir -p $(@D)
	@echo "  CC    $<"
	@$(CC) -std=gnu11 -O1 -g $(WARN) -Wno-missing-prototypes -rdynamic -I$(LUA_INCDIR) -o $@ $< -l$(LUA) -ldl -lpthread

faults: override config = faults
faults:
	@scripts/deps build test
	@$(MAKE) $(REMAKE) config=faults all build/faults/bin/faults
	@scripts/faults/run build/faults $(if $(SAMPLE),--sample $(SAMPLE)) $(SCENARIOS)

faults-ranks: override config = faults
faults-ranks:
	@scripts/deps build test
	@$(MAKE) $(REMAKE) config=faults all mpi build/faults/bin/faults
	@ANE_BUILD=build/faults build/faults/bin/faults scripts/faults/ranks.lua --sample $(or $(SAMPLE),25)

RACE_SPECS = spec/csrc/platform/pool_spec.lua spec/csrc/exec/program_spec.lua spec/ane/generate/session_spec.lua spec/ane/pool spec/ane/serve
race:
	@scripts/deps build test
	@$(MAKE) $(REMAKE) config=tsan all
	@$(TEST) tsan $(if $(filter spec,$(SPECS)),$(RACE_SPECS),$(SPECS))

KILLS ?= 200
kills:
	@scripts/deps build test
	@$(MAKE) $(REMAKE) all
	@ANE_BUILD=$(BUILD) LUA=$(LUA) $(LUA) scripts/faults/kills.lua --kills $(KILLS)

# The objects of config=fuzz, linked into the program of all targets. libFuzzer needs clang and its run-time libraries.
$(BUILD)/bin/fuzz: fuzz/driver.c $(OBJECTS) $(BUILD)/objects
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	@$(CC) $(filter-out -fsanitize=%,$(ALL_CFLAGS)) -fsanitize=address,undefined,fuzzer -rdynamic -o $@ $< $(OBJECTS) -l$(LUA) $(LIBS) -ldl

SECONDS ?= 60
fuzz: override config = fuzz
fuzz:
	@scripts/deps build fuzz
	@$(MAKE) $(REMAKE) config=fuzz build/fuzz/bin/fuzz
	@fuzz/run "$(TARGET)" $(SECONDS) $(OPTIONS)

AUDIT ?= 600
audit:
	@$(MAKE) $(REMAKE) all
	@ANE_BUILD=$(BUILD) PYTHON=$(PYTHON) $(LUA) scripts/audit.lua --seconds $(AUDIT) $(if $(PROPERTY),--property $(PROPERTY)) $(if $(SEED),--seed $(SEED))

machines:
	@$(MAKE) $(REMAKE) config=release all
	@LUA=$(LUA) JOBS=$(JOBS) scripts/machines/run $(ROWS)

# The requests of soak and the chat page are for a server of a tiny model, in a process of its own.
PYTHON ?= python3
SOAK ?= 10000
LOADS ?= 10000
TOKENS ?= 1000000
SERVED = $(BUILD)/bin/ane spec/fixtures/gguf/llama-q8_0.gguf
soak:
	@$(MAKE) $(REMAKE) all
	@ANE_BUILD=$(BUILD) MALLOC_TRIM_THRESHOLD_=131072 MALLOC_ARENA_MAX=1 $(LUA) scripts/soak.lua --loads $(LOADS) --tokens $(TOKENS)
	@$(PYTHON) scripts/serve/soak.py $(SERVED) --requests $(SOAK)

schema-suite:
	@[ -n "$(SUITE)" ] || { echo "schema-suite: SUITE must name a copy of JSON-Schema-Test-Suite" >&2; exit 2; }
	@$(MAKE) $(REMAKE) all
	@$(PYTHON) scripts/grammar/suite.py $(BUILD)/bin/ane "$(SUITE)"

chat-page:
	@$(MAKE) $(REMAKE) all
	@$(PYTHON) scripts/serve/page.py $(SERVED) $(if $(PICTURES),--pictures $(PICTURES))

valgrind:
	@$(MAKE) $(REMAKE) all
	@$(TEST) valgrind $(SPECS)

# spec/csrc/kernels takes five minutes, because qemu emulates each float operation. All of spec/ takes hours, so it runs by folders.
arm: ARM_SPECS = $(if $(filter spec,$(SPECS)),spec/csrc/kernels spec/csrc/exec/program_spec.lua spec/models/golden_spec.lua,$(SPECS))
arm:
	@scripts/arm64 build
	@$(TEST) arm $(ARM_SPECS)

musl:
	@scripts/machines/musl build
	@$(TEST) musl $(SPECS)

# ---- Documents -------------------------------------------------------------------------------------------------------

doc:
	@$(LUA) scripts/reference.lua types/ane.lua $(filter-out types/ane.lua,$(sort $(wildcard types/*.lua))) > docs/reference.md.tmp && mv docs/reference.md.tmp docs/reference.md

# ---- Benchmarks ------------------------------------------------------------------------------------------------------

# All objects except the binding, which needs Lua.
BENCHES := $(patsubst %.c,$(BUILD)/%,$(wildcard bench/*.c))
bench: $(BENCHES)
	@echo "built: $(BENCHES)"

$(BUILD)/bench/%: $(BUILD)/bench/%.o $(filter-out $(BUILD)/csrc/binding/%,$(OBJECTS))
	@echo "  LINK  $@"
	@$(CC) $(filter-out -shared,$(LDFLAGS_SO)) $(LDFLAGS) -o $@ $^ $(LIBS)

-include $(BENCHES:=.d)
.SECONDARY: $(BENCHES:=.o)

# ---- Installing ------------------------------------------------------------------------------------------------------

# Files that only the build reads are not installed.
LUA_FILES := $(patsubst lua/%,%,$(shell find lua/ane -name '*.lua' -o -name '*.html'))
MODEL_FILES := $(wildcard models/*.lua)
LIBDIR = $(DESTDIR)$(INST_LIBDIR)
LUADIR = $(DESTDIR)$(INST_LUADIR)
BINDIR = $(DESTDIR)$(INST_BINDIR)

# The command searches Lua's paths, then the paths of its installation, so any PREFIX works.
install: $(BUILD)/ane/core.so
	@mkdir -p "$(LIBDIR)/ane" "$(LUADIR)/ane/models" "$(BINDIR)"
	@install -m 755 $< "$(LIBDIR)/ane/core.so"
	@if [ -f $(BUILD)/ane/mpi.so ]; then install -m 755 $(BUILD)/ane/mpi.so "$(LIBDIR)/ane/mpi.so"; fi
	@for f in $(LUA_FILES); do mkdir -p "$(LUADIR)/$${f%/*}" && install -m 644 "lua/$$f" "$(LUADIR)/$$f" || exit 1; done
	@install -m 644 $(MODEL_FILES) "$(LUADIR)/ane/models/"
	@sed -e 's|@LUA@|$(shell command -v $(LUA) || echo /usr/bin/$(LUA))|' -e 's|@MODE@|installed|' \
	  -e '1a package.path = package.path .. ";$(INST_LUADIR)/?.lua;$(INST_LUADIR)/?/init.lua"' \
	  -e '1a package.cpath = package.cpath .. ";$(INST_LIBDIR)/?.so"' lua/ane/cli/ane.in > "$(BINDIR)/ane"
	@chmod 755 "$(BINDIR)/ane"
	@echo "installed $(BINDIR)/ane, $(LUADIR)/ane, $(LIBDIR)/ane"

uninstall:
	rm -rf "$(LIBDIR)/ane" "$(LUADIR)/ane"
	rm -f "$(BINDIR)/ane"

dist:
	@scripts/deps build test
	@scripts/dist pack build/dist
	@scripts/dist smoke build/dist

.PHONY: faults-ranks musl machines analyse audit race schema-suite soak chat-page faults fuzz kills dist help deps model demo test check tidy format format-check valgrind arm bench install uninstall doc coverage

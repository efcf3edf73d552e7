# make             builds build/ane/core.so and build/bin/ane
# make help        lists the other targets (scripts/tasks.mk)
# config=release|debug|sanitize|tsan|coverage|faults|fuzz   each in its own folder build/<config>/

config ?= release
LUA ?= lua5.4
LUA_INCDIR ?= $(firstword $(patsubst %/lua.h,%,$(wildcard /usr/include/lua5.4/lua.h /usr/local/include/lua5.4/lua.h /usr/local/include/lua.h)) /usr/include/lua5.4)
PREFIX ?= /usr/local
INST_LIBDIR ?= $(PREFIX)/lib/lua/5.4
INST_LUADIR ?= $(PREFIX)/share/lua/5.4
INST_BINDIR ?= $(PREFIX)/bin

ifeq ($(origin CC),default)
  CC := $(if $(filter fuzz,$(config)),$(firstword $(foreach c,clang clang-19 clang-18 clang-17 clang-16 clang-15 clang-14,$(if $(shell command -v $(c)),$(c))) clang),gcc)
endif
BUILD := build/$(config)
CFLAGS ?= -O2 -g
WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wno-missing-field-initializers
ALL_CFLAGS = -std=c11 -D_GNU_SOURCE -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno -fno-trapping-math -Icsrc -I$(BUILD)/gen -I$(LUA_INCDIR) $(WARN) $(HARDEN) $(CFLAGS) $(SANITIZER) $(STRESS)
LIBS := -lpcre2-8 -lutf8proc -ljansson -lprotobuf-c -lz -lm -lpthread
LDFLAGS_SO := -shared

ifeq ($(config),debug)
  override CFLAGS += -O0
  # Kernels are inlined once for each layout: without optimisation one file takes 7 GB and minutes to compile.
  $(BUILD)/csrc/kernels/%.o: override CFLAGS += -O1
else ifeq ($(config),sanitize)
  override CFLAGS += -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined
  # Numbers beyond an integer's range: gcc does not count them as undefined behaviour. Not in kernels, see below.
  SANITIZER := -fsanitize=float-cast-overflow -fno-sanitize-recover=float-cast-overflow
  LDFLAGS_SO += -fsanitize=address,undefined
else ifeq ($(config),tsan)
  override CFLAGS += -O1 -fno-omit-frame-pointer -Wno-maybe-uninitialized
  SANITIZER := -fsanitize=thread
  $(BUILD)/csrc/platform/%.o: STRESS := -DANE_POOL_STRESS
  LDFLAGS_SO += -fsanitize=thread
else ifeq ($(config),coverage)
  # The counters are not atomic, which would be ten times slower. So GCC must not use one as the index of a loop (ivopts): another
  # thread changes it meanwhile.
  override CFLAGS += -O1 --coverage -fno-ivopts -fno-tree-loop-im -Wno-maybe-uninitialized
  LDFLAGS_SO += --coverage
else ifeq ($(config),faults)
  override CFLAGS += -U_FORTIFY_SOURCE
else ifeq ($(config),fuzz)
  # scripts/tasks.mk links the objects into the program of fuzz/.
  override CFLAGS += -O1 -fno-omit-frame-pointer
  SANITIZER := -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=undefined
  KERNEL_SANITIZER := -fsanitize=address
else ifneq ($(config),release)
  $(error config=$(config): choose release, debug, sanitize, tsan, coverage, faults or fuzz)
endif
# Checks of buffers and of the stack in all code but the kernels, which keep no strings and are called with checked sizes.
ifeq ($(config)$(findstring -O0,$(CFLAGS)),release)
  HARDEN := -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -fstack-protector-strong
endif
ifdef WERROR
  override CFLAGS += -Werror
endif

# uname if there is no compiler yet: `make deps` installs it.
ARCH := $(firstword $(shell { $(CC) -dumpmachine || uname -m; } 2>/dev/null | cut -d- -f1))
SOURCES := $(filter-out csrc/coreml/% csrc/binding/mpi/% csrc/kernels/x86/% csrc/kernels/arm/%,$(wildcard csrc/*/*.c csrc/*/*/*.c))
# Files that take longest come first: with -j, the last ones would be compiled while other cores wait.
LONGEST := csrc/kernels/x86/matmul_avx512vnni.c csrc/kernels/x86/matmul_avx512.c csrc/kernels/arm/matmul_dotprod.c
ifneq ($(filter x86_64 i%86,$(ARCH)),)
  SOURCES := $(wildcard csrc/kernels/x86/*.c) $(SOURCES)
else ifneq ($(filter aarch64 arm64,$(ARCH)),)
  SOURCES := $(wildcard csrc/kernels/arm/*.c) $(SOURCES)
endif
SOURCES := $(filter $(LONGEST),$(SOURCES)) $(filter-out $(LONGEST),$(SOURCES))
ifneq ($(findstring darwin,$(shell $(CC) -dumpmachine 2>/dev/null)),)
  SOURCES += $(wildcard csrc/coreml/*.m)
  LIBS += -framework CoreML -framework CoreVideo -framework Foundation
  LDFLAGS_SO += -undefined dynamic_lookup
else
  SOURCES += csrc/coreml/coreml_none.c
  # Addresses of functions are resolved when the module is loaded and then read-only, and the stack is not executable.
  LDFLAGS_SO += -Wl,-z,relro,-z,now,-z,noexecstack
endif
# `ane serve` opens libmicrohttpd when it starts, so the build needs only the headers. Without them the server is left out.
ifeq ($(shell printf '\043include <microhttpd.h>\n' | $(CC) $(CPPFLAGS) $(CFLAGS) -E - >/dev/null 2>&1 && echo yes),yes)
  SOURCES := $(filter-out csrc/http/http_none.c,$(SOURCES))
else
  SOURCES := $(filter-out csrc/http/%,$(SOURCES)) csrc/http/http_none.c
endif
# `ane pull` opens libcurl when it runs, so the build needs only the headers. Without them downloads are left out.
ifeq ($(shell printf '\043include <curl/curl.h>\n' | $(CC) $(CPPFLAGS) $(CFLAGS) -E - >/dev/null 2>&1 && echo yes),yes)
  SOURCES := $(filter-out csrc/fetch/fetch_none.c,$(SOURCES))
else
  SOURCES := $(filter-out csrc/fetch/fetch.c,$(SOURCES))
endif
# X.proto becomes gen/.../X.pb-c.c and .h.
PROTOS := $(patsubst csrc/%.proto,$(BUILD)/gen/%.pb-c,$(wildcard csrc/*/proto/*.proto))
OBJECTS := $(addprefix $(BUILD)/,$(addsuffix .o,$(basename $(SOURCES)))) $(PROTOS:=.o)

.DEFAULT_GOAL := all
# ane.mpi is built again where it has been built: its Lua files need the module of the same source.
all: $(BUILD)/ane/core.so $(BUILD)/bin/ane links $(wildcard $(BUILD)/ane/mpi.so)

# Flags by file name. Only such files may use these instructions; the dispatch at run time selects them.
AVX2 := -mavx2 -mfma -mf16c
AVX512 := $(AVX2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
$(BUILD)/%_avx2.o $(BUILD)/%_avx2.tidy: ISA_CFLAGS := $(AVX2)
$(BUILD)/%_avxvnni.o $(BUILD)/%_avxvnni.tidy: ISA_CFLAGS := $(AVX2) -mavxvnni
$(BUILD)/%_avx512.o $(BUILD)/%_avx512.tidy: ISA_CFLAGS := $(AVX512)
$(BUILD)/%_avx512vnni.o $(BUILD)/%_avx512vnni.tidy: ISA_CFLAGS := $(AVX512) -mavx512vnni
$(BUILD)/%_avx512bf16.o $(BUILD)/%_avx512bf16.tidy: ISA_CFLAGS := $(AVX512) -mavx512bf16
$(BUILD)/%_dotprod.o $(BUILD)/%_dotprod.tidy: ISA_CFLAGS := -march=armv8.2-a+dotprod+fp16
$(BUILD)/%_i8mm.o $(BUILD)/%_i8mm.tidy: ISA_CFLAGS := -march=armv8.2-a+dotprod+i8mm+fp16
$(BUILD)/%_bf16dot.o $(BUILD)/%_bf16dot.tidy: ISA_CFLAGS := -march=armv8.2-a+dotprod+bf16+fp16

# Kernels are large functions with much inlined code. They have lines but no variables to debug by: without variable tracking, which
# clang lacks, they compile in half the time, and with -g1 in three quarters of that.
ifeq ($(shell $(CC) -fno-var-tracking-assignments -E -x c /dev/null >/dev/null 2>&1 && echo yes),yes)
  NO_TRACKING := -fno-var-tracking -fno-var-tracking-assignments
endif
$(BUILD)/csrc/kernels/%.o: DEBUG_CFLAGS = $(NO_TRACKING) $(if $(filter -g,$(CFLAGS)),-g1)
# They see only what their callers pass, so the callers alone are checked for races. Fuzz targets run half of the inputs with the
# reference kernels, and only those are checked there: clang takes minutes for each of the others with a sanitizer.
$(BUILD)/csrc/kernels/%.o: SANITIZER := $(KERNEL_SANITIZER)
$(BUILD)/csrc/kernels/x86/%.o $(BUILD)/csrc/kernels/arm/%.o: SANITIZER :=
$(BUILD)/csrc/kernels/%.o: HARDEN :=

$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  CC    $<"
	@$(CC) $(ALL_CFLAGS) $(ISA_CFLAGS) $(DEBUG_CFLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/%.o: %.m $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  OBJC  $<"
	@$(CC) $(ALL_CFLAGS) -fobjc-arc -MMD -MP -c -o $@ $<

$(BUILD)/gen/%.pb-c.c $(BUILD)/gen/%.pb-c.h &: csrc/%.proto
	@mkdir -p $(@D)
	@echo "  PROTO $<"
	@protoc-c --proto_path=csrc --c_out=$(BUILD)/gen $(<:csrc/%=%)

$(BUILD)/gen/%.o: $(BUILD)/gen/%.c $(BUILD)/flags
	@$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

$(OBJECTS): | $(PROTOS:=.h)

-include $(OBJECTS:.o=.d)

$(BUILD)/ane/core.so: $(OBJECTS) $(BUILD)/objects
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	@$(CC) $(LDFLAGS_SO) $(LDFLAGS) -o $@.tmp $(OBJECTS) $(LIBS) && mv $@.tmp $@

# The optional module ane.mpi, by the compiler of Open MPI or MPICH.
MPICC ?= mpicc
mpi: $(BUILD)/ane/mpi.so
$(BUILD)/ane/mpi.so: csrc/binding/mpi/lua_mpi.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  MPICC $<"
	@$(MPICC) $(ALL_CFLAGS) $(LDFLAGS_SO) $(LDFLAGS) -o $@.tmp $< && mv $@.tmp $@

# Files with the flags and the list of objects. They change only if what depends on them must be rebuilt. The flags are
# expanded here (:=): later they would take the variables of the first object that needs them, such as a kernel without HARDEN.
$(BUILD)/flags: STAMP := $(CC) $(filter-out -Werror,$(ALL_CFLAGS)) $(AVX512)
$(BUILD)/objects: STAMP = $(LDFLAGS_SO) $(LDFLAGS) $(OBJECTS)
$(BUILD)/flags $(BUILD)/objects: FORCE
	@mkdir -p $(@D)
	@echo '$(STAMP)' | cmp -s - $@ || echo '$(STAMP)' > $@

# The command that runs from the tree. It finds its Lua files and core.so by its own path.
$(BUILD)/bin/ane: lua/ane/cli/ane.in
	@mkdir -p $(@D)
	@sed -e 's|@LUA@|$(shell command -v $(LUA) || echo /usr/bin/$(LUA))|' -e 's|@MODE@|tree|' $< > $@ && chmod +x $@

# The release build is also reachable as build/ane and build/bin.
links: $(BUILD)/ane/core.so $(BUILD)/bin/ane
ifeq ($(config),release)
	@ln -sfn release/ane build/ane; ln -sfn release/bin build/bin
endif

include scripts/tasks.mk

clean:
	rm -rf build

.PHONY: all links mpi clean FORCE
.DELETE_ON_ERROR:

# make             builds build/ane/core.so and build/bin/ane
# make deps        installs what building and testing need (Debian packages, as root or with sudo)
# make demo        deps, build, fetches a small real model, asks it one question
# make test        deps, build, all specs, luacheck; last line: N passed, N failed
# make check       test, then the specs under the sanitizers, clang-tidy
# make install     PREFIX=/usr/local (or INST_LIBDIR, INST_LUADIR, INST_BINDIR, as luarocks passes them)
# config=release|debug|sanitize   each in its own folder build/<config>/

config ?= release
LUA ?= lua5.4
LUA_INCDIR ?= $(firstword $(patsubst %/lua.h,%,$(wildcard /usr/include/lua5.4/lua.h /usr/local/include/lua5.4/lua.h /usr/local/include/lua.h)) /usr/include/lua5.4)
PREFIX ?= /usr/local
INST_LIBDIR ?= $(PREFIX)/lib/lua/5.4
INST_LUADIR ?= $(PREFIX)/share/lua/5.4
INST_BINDIR ?= $(PREFIX)/bin

ifeq ($(origin CC),default)
  CC := gcc
endif
BUILD := build/$(config)
CFLAGS ?= -O2 -g
WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wno-missing-field-initializers
ALL_CFLAGS = -std=c11 -D_GNU_SOURCE -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno -Icsrc -I$(LUA_INCDIR) $(WARN) $(CFLAGS)
LIBS := -lpcre2-8 -lutf8proc -ljansson -lz -lm -lpthread
LDFLAGS_SO := -shared

ifeq ($(config),debug)
  override CFLAGS += -O0
else ifeq ($(config),sanitize)
  override CFLAGS += -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined
  LDFLAGS_SO += -fsanitize=address,undefined
else ifneq ($(config),release)
  $(error config=$(config): choose release, debug or sanitize)
endif
ifdef WERROR
  override CFLAGS += -Werror
endif

ARCH := $(shell $(CC) -dumpmachine | cut -d- -f1)
SOURCES := $(filter-out csrc/coreml/% csrc/kernels/x86/% csrc/kernels/arm/%,$(wildcard csrc/*/*.c csrc/*/*/*.c))
ifneq ($(filter x86_64 i%86,$(ARCH)),)
  SOURCES += $(wildcard csrc/kernels/x86/*.c)
else ifneq ($(filter aarch64 arm64,$(ARCH)),)
  SOURCES += $(wildcard csrc/kernels/arm/*.c)
endif
OBJECTS := $(SOURCES:%.c=$(BUILD)/%.o)
LUA_FILES := $(shell find lua models -name '*.lua' 2>/dev/null)

all: $(BUILD)/ane/core.so $(BUILD)/bin/ane links

$(BUILD)/ane/core.so: $(OBJECTS)
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	@$(CC) $(LDFLAGS_SO) $(LDFLAGS) -o $@.tmp $^ $(LIBS) && mv $@.tmp $@

# Flags by file name: only such files may use the instructions, the dispatch decides at run time (style.md, rule 6).
$(BUILD)/%_avx2.o: ISA_CFLAGS := -mavx2 -mfma -mf16c
$(BUILD)/%_avx512.o: ISA_CFLAGS := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c -mprefer-vector-width=512
$(BUILD)/%_avx512vnni.o: ISA_CFLAGS := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx2 -mfma -mf16c -mprefer-vector-width=512
$(BUILD)/%_avx512bf16.o: ISA_CFLAGS := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mavx2 -mfma -mf16c -mprefer-vector-width=512
$(BUILD)/%_dotprod.o: ISA_CFLAGS := -march=armv8.2-a+dotprod+fp16
$(BUILD)/%_i8mm.o: ISA_CFLAGS := -march=armv8.2-a+dotprod+i8mm+fp16

$(BUILD)/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo "  CC    $<"
	@$(CC) $(ALL_CFLAGS) $(ISA_CFLAGS) -MMD -MP -c -o $@ $<

-include $(OBJECTS:.o=.d)

# The command as it runs from the tree: it finds its Lua files and core.so beside itself.
$(BUILD)/bin/ane: lua/ane/cli/ane.in Makefile
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

.PHONY: all links clean
.DELETE_ON_ERROR:

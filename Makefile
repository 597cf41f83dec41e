# make            builds ./train
# make test       builds and runs the test suite        make test DEBUG=1   under ASan and UBSan
# make demo       a small GPT on English text           make bench          speed beside PyTorch's
# make test-portable, test-valgrind                     the suite without AMX, AVX-512, AVX2; under valgrind
# make test-kill  saves killed and failing at every system call; four ranks, each killed at every site (7 minutes)
# make test-layouts          every layout of up to 8 ranks beside one rank (minutes)
# make test-slurm     scripts/slurm.sbatch on a Slurm of its own (4 to 10 minutes; as root, Debian's packages)
# make test-seeds             bugs planted one by one, each caught by the test that tests/seeds names (minutes)
# make test-huggingface                               import and export against transformers (PYTHON has it)
# make docs       rewrites configs/OPTIONS.md           make size           lines per file
#
# Each directory compiles with its own -I list: an upward include does not compile.

CC      ?= gcc
DEBUG   ?= 0
PYTHON  ?= python3
ARCH    := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine)))

ifeq ($(DEBUG),1)
BUILD   := build/debug
OPT     := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
HOOKS   := $(BUILD)/tests/sanitizer.o
else
BUILD   := build/cpu
OPT     := -O3
endif

CFLAGS  += -std=gnu11 $(OPT) -g -MMD -MP -pthread -Wall -Wextra -Werror -Wno-missing-field-initializers \
           -fno-math-errno -fno-trapping-math -Wvla -fstack-protector-strong
LDLIBS  += -lyaml -ljansson -lxxhash -lm

# Open MPI (or another MPI whose compiler wrapper knows --showme): MPICC names the wrapper.
MPICC   ?= mpicc
MPI_CFLAGS := $(shell $(MPICC) --showme:compile 2>/dev/null)
MPI_LIBS   := $(shell $(MPICC) --showme:link 2>/dev/null)
ifeq ($(strip $(MPI_LIBS)),)
ifneq ($(filter-out clean size,$(or $(MAKECMDGOALS),all)),)
$(error no MPI: `$(MPICC) --showme:link` gives nothing; change: install libopenmpi-dev, or make MPICC=PATH_OF_MPICC)
endif
endif
EXTRA_parallel/comm_mpi := $(MPI_CFLAGS)
# only programs that open groups of several ranks carry MPI
LDLIBS  += -Wl,--as-needed $(MPI_LIBS)

INC_kernels  := -Ikernels -Ikernels/cpu
INC_parallel := -Iparallel -Ikernels
INC_src      := -Isrc $(INC_parallel)
INC_tests    := -Itests $(INC_src) -Ikernels/cpu

# Vector code: one source, an object for each instruction set and each real type.
ISA_generic := -DVBYTES=16
ifeq ($(ARCH),x86_64)
ISAS        := generic avx2 avx512
ISA_avx2    := -DVBYTES=32 -mavx2 -mfma -mf16c
ISA_avx512  := -DVBYTES=64 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mprefer-vector-width=512
else
ISAS        := generic
endif
ISA_SRC  := $(wildcard kernels/cpu/isa/*.c)
ISA_OBJ  := $(foreach i,$(ISAS),$(foreach r,f32 f64,$(ISA_SRC:%.c=$(BUILD)/%.$(i).$(r).o)))

# Files that use instructions beyond their directory's set, behind run-time detection.
ifeq ($(ARCH),x86_64)
EXTRA_kernels/cpu/amx     := $(filter-out -D%,$(ISA_avx512)) -mavx512bf16 -mamx-tile -mamx-bf16
EXTRA_kernels/cpu/bf16dot := $(filter-out -D%,$(ISA_avx512)) -mavx512bf16
else
X86_ONLY := kernels/cpu/amx.c kernels/cpu/bf16dot.c
endif

# What was built: git's description of the commit, in a header that changes only when it does.
BUILD_ID := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
EXTRA_src/config_help := -include $(BUILD)/build_id.h

LIB_SRC  := $(filter-out $(X86_ONLY),$(wildcard kernels/*.c kernels/cpu/*.c parallel/*.c src/*.c))
LIB_OBJ  := $(LIB_SRC:%.c=$(BUILD)/%.o) $(ISA_OBJ)
LIB      := $(BUILD)/gridiron.a
TEST_SRC := $(wildcard tests/test_*.c)
TEST_BIN := $(TEST_SRC:tests/%.c=$(BUILD)/%)

all: train

train: $(BUILD)/train
	@cp -f $< $@

# an archive, so that a test links the rooms that it enters and no others
$(LIB): $(LIB_OBJ)
	@rm -f $@
	@ar rcs $@ $^

$(BUILD)/train: $(BUILD)/train.o $(HOOKS) $(LIB)
	@echo "  link $@"; $(CC) $(CFLAGS) $^ -o $@ $(LDLIBS)

$(BUILD)/test_%: $(BUILD)/tests/test_%.o $(HOOKS) $(LIB)
	@echo "  link $@"; $(CC) $(CFLAGS) $^ -o $@ $(LDLIBS)

# the executable with a hook where it says what it does
$(BUILD)/test_faults: $(BUILD)/tests/test_faults.o $(BUILD)/train.o $(HOOKS) $(LIB)
	@echo "  link $@"; $(CC) $(CFLAGS) $^ -Wl,--wrap=comm_note -o $@ $(LDLIBS)

$(BUILD)/bench_%: $(BUILD)/tests/bench_%.o $(HOOKS) $(LIB_OBJ)
	@echo "  link $@"; $(CC) $(CFLAGS) $^ -o $@ $(LDLIBS)

$(BUILD)/train.o: train.c
	@mkdir -p $(@D)
	@echo "  cc $@"; $(CC) $(CFLAGS) $(INC_src) -c $< -o $@

define LAYER_RULE
$(BUILD)/$(1)/%.o: $(1)/%.c
	@mkdir -p $$(@D)
	@echo "  cc $$@"; $$(CC) $$(CFLAGS) $$(INC_$(1)) $$(EXTRA_$(1)/$$*) -c $$< -o $$@
endef
EXTRA_tests/bench_comm := $(MPI_CFLAGS)
$(foreach l,kernels parallel src tests,$(eval $(call LAYER_RULE,$(l))))

define ISA_RULE
$(BUILD)/kernels/cpu/isa/%.$(1).$(2).o: kernels/cpu/isa/%.c
	@mkdir -p $$(@D)
	@echo "  cc $$@"; $$(CC) $$(CFLAGS) $$(INC_kernels) -Ikernels/cpu/isa -DISA=$(1) -DISA_$(1) -DREAL_$(2) $$(ISA_$(1)) -c $$< -o $$@
endef
$(foreach i,$(ISAS),$(foreach r,f32 f64,$(eval $(call ISA_RULE,$(i),$(r)))))

$(BUILD)/src/config_help.o: $(BUILD)/build_id.h
$(BUILD)/build_id.h: FORCE
	@mkdir -p $(@D)
	@echo '#define BUILD_ID "$(BUILD_ID)"' | cmp -s - $@ || echo '#define BUILD_ID "$(BUILD_ID)"' > $@

docs: $(BUILD)/test_config
	$< --docs > configs/OPTIONS.md

$(BUILD)/src/report_page.o: src/report.css src/report.js

tests: $(TEST_BIN) $(BUILD)/train

test: tests train
	BUILD=$(BUILD) tests/run

demo bench:
	scripts/$@

test-kill: $(BUILD)/test_checkpoint $(BUILD)/test_faults train
	BUILD=$(BUILD) tests/kill_save.sh long
	BUILD=$(BUILD) tests/faults.sh long

test-layouts: tests train
	BUILD=$(BUILD) tests/layouts.sh long

test-slurm: train
	tests/slurm.sh

test-seeds:
	BUILD=$(BUILD) tests/seeds.sh

test-huggingface: train
	$(PYTHON) tests/check_huggingface.py

test-portable test-valgrind:
	scripts/$(subst -,_,$@)

size:
	@wc -l train.c $$(git ls-files kernels parallel src) | sort -n

clean:
	rm -rf build/cpu build/debug build/valgrind build/bench train

-include $(LIB_OBJ:.o=.d) $(BUILD)/train.d $(TEST_SRC:%.c=$(BUILD)/%.d)
.PHONY: all tests test docs demo bench test-kill test-layouts test-slurm test-seeds test-huggingface test-portable \
        test-valgrind size clean FORCE
.SECONDARY:

# make            builds ./train
# make test       builds and runs the test suite        make test DEBUG=1   under ASan and UBSan
# make demo       a small GPT on English text           make bench          speed beside PyTorch's
# make test-X     what is too long for the suite, or needs more than it has; tests/README.md says what each shows:
#                 layouts resident kill power failures allocations goodput leaks hangs calm stragglers restarts launch hosts network slurm kubernetes seeds threads same readme bare emulation
#                 huggingface portable valgrind pack sass
# make fuzz MINUTES=n      every reader of files under libFuzzer (needs clang)
# make CUDA=1     with the device `cuda` (needs nvcc; runs without a driver, on the CPU)     ARCHS=90a: for one kind
#                 attention through cuDNN where the headers of cuDNN 9 and cudnn-frontend are (scripts/setup gpu gets
#                 them; CUDNN_INC=PATH and CUDNN_FRONTEND_INC=PATH: other folders). CUDNN=0: without; 1: or stop
# make bench-schedules        processor time of making and checking the largest lists of instructions
# make bench-search           layers, order and recomputation chosen together, for 19 models
# make gpu-roofline           MFU of one H200 by a model of each kernel, beside the planner's
# make docs       rewrites configs/OPTIONS.md           make size           lines per file
#
# Each directory compiles with its own -I list: an upward include does not compile.

CC      ?= gcc
CXX     := $(if $(filter default,$(origin CXX)),g++,$(CXX))
DEBUG   ?= 0
CUDA    ?= 0
CUDNN   ?= auto
PYTHON  ?= python3
ARCH    := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine)))
# a compiler for another kind of processor builds only the tests of operations, which need no library: op-tests
CROSS   := $(filter-out $(shell uname -m),$(ARCH))
# "1 4": clang; "__clang__ 12": gcc 12
COMPILER := $(shell echo __clang__ __GNUC__ | $(CC) -E -P -x c - 2>/dev/null)

# -Werror: continuous integration. A compiler that is newer than ours may warn of more, and still builds.
STRICT  ?=
ifeq ($(FUZZ),1)
CPU     := build/fuzz
OPT     := -O2 -g1 -fsanitize=address,undefined,float-cast-overflow,fuzzer-no-link \
           -fno-sanitize-recover=all
# clang has other warnings
STRICT  := -w
else ifeq ($(firstword $(COMPILER)),1)
$(error CC=$(CC) is clang, which lacks a builtin of gcc that the kernels use; change: make CC=gcc)
else ifneq ($(filter 4 5 6 7 8 9 10,$(lastword $(COMPILER))),)
$(error CC=$(CC) is gcc $(lastword $(COMPILER)), which does not know all instructions of the kernels (AMX); \
  change: make CC=gcc-11, or a newer one (in RHEL 8: gcc-toolset))
else ifeq ($(DEBUG),1)
CPU     := build/debug
OPT     := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
HOOKS   := $(CPU)/tests/sanitizer.o
else ifeq ($(DEBUG),thread)
CPU     := build/thread
OPT     := -O1 -g -fsanitize=thread -fno-omit-frame-pointer
HOOKS   := $(CPU)/tests/sanitizer.o
else
CPU     := build/$(if $(CROSS),$(ARCH),cpu)
# -g1: functions and lines for backtraces and perf, for a seventh less of the compiler's time than -g
OPT     := -O2 -g1
# what computes: kernels, but not in F64, which is for checking, and the sums of messages
FAST_kernels := -O3
FAST_parallel/comm := -O3
FAST_f32 := -O3
FAST_pairs := -O3
FAST_tiles := -O3
endif

COMMON  := $(OPT) -MMD -MP -pthread -Wall -Wextra $(STRICT) -Wno-missing-field-initializers \
           -fno-math-errno -fno-trapping-math -Wvla -fstack-protector-strong
CFLAGS  += -std=gnu11 $(COMMON)
LDLIBS  += -lyaml -ljansson -lxxhash -lm

# Open MPI (or another MPI whose compiler wrapper knows --showme): MPICC names the wrapper.
MPICC   ?= mpicc
MPI_CFLAGS := $(shell $(MPICC) --showme:compile 2>/dev/null)
MPI_LIBS   := $(shell $(MPICC) --showme:link 2>/dev/null)
ifneq ($(CROSS),)
LDLIBS   := -lm
MPI_LIBS :=
else ifeq ($(strip $(MPI_LIBS)),)
ifneq ($(filter-out clean size,$(or $(MAKECMDGOALS),all)),)
$(error no MPI: `$(MPICC) --showme:link` gives nothing; change: install libopenmpi-dev, or make MPICC=PATH_OF_MPICC)
endif
endif
EXTRA_parallel/comm/comm_mpi := $(MPI_CFLAGS)
EXTRA_parallel/comm/wire     := $(MPI_CFLAGS)
# only programs that open groups of several ranks carry MPI
LDLIBS  += -Wl,--as-needed $(MPI_LIBS)

# The rooms, bottom to top: each sees itself and what its list names, so that an include of a room above it does not compile.
ROOMS        := io config corpus model checkpoint report run plan bubble commands
INC_kernels  := -Ikernels -Ikernels/cpu
INC_parallel/comm     := -Iparallel/comm -Ikernels
INC_parallel/schedule := -Iparallel/schedule -Ikernels
INC_parallel := -Iparallel -Iparallel/schedule $(INC_parallel/comm)
below         = $(if $(filter $(1),$(firstword $(2))),,$(firstword $(2)) $(call below,$(1),$(wordlist 2,99,$(2))))
$(foreach r,$(ROOMS),$(eval INC_src/$(r) := -Isrc/$(r) $(patsubst %,-Isrc/%,$(call below,$(r),$(ROOMS))) $(INC_parallel)))
INC_src/report := -Isrc/report -Isrc/config -Isrc/io $(INC_parallel)
INC_src      := $(patsubst %,-Isrc/%,$(ROOMS)) $(INC_parallel)
INC_tests    := -Itests $(INC_src) -Ikernels/cpu

# CUDA: 0 without; 1 with nvcc; emulated: the same sources for the host, on tests/emulation. What knows of CUDA
# lies in kernels/cuda and parallel/comm/comm_{device,nccl,staged}.c, compiled into a folder of its own; other
# objects are shared.
# Files X_none.c say, with CUDA=0, that there is none.
CUDA_C   := $(wildcard kernels/cuda/*.c kernels/cuda/attention/*.c $(addprefix parallel/comm/comm_,$(addsuffix .c,device nccl staged)))
CUDA_CU  := $(wildcard kernels/cuda/*.cu kernels/cuda/attention/*.cu)
NONE     := $(wildcard kernels/*_none.c parallel/comm/*_none.c)
CUDA_TESTS := $(wildcard tests/cuda/test_cuda_*.c)
NVCC     ?= nvcc
ARCHS    ?= 80 90a 100
ifeq ($(CUDA),0)
BUILD    := $(CPU)
CUDA_SRC :=
CUDA_TESTS :=
else
CUDA_SRC := $(CUDA_C) $(CUDA_CU)
CUDNN_ON  := kernels/cuda/attention/attention_cudnn.cpp
CUDNN_OFF := kernels/cuda/attention/attention_none.c
INC_cuda := -Ikernels -Ikernels/cuda -Ikernels/cuda/attention
# in the programs: a machine with a GPU has another release of it, whose users (PyTorch) would get ours
CXX_LIB  := $(if $(filter 1,$(DEBUG)),-lstdc++,-l:libstdc++.a -static-libgcc)
ifeq ($(CUDA),1)
BUILD    := $(CPU:build/cpu=build)$(if $(filter build/cpu,$(CPU)),/cuda,-cuda)
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(shell command -v $(NVCC)))
ifeq ($(wildcard $(CUDA_HOME)/include/cuda_runtime.h),)
$(error no nvcc; change: set NVCC=PATH/bin/nvcc or CUDA_HOME=PATH, or CUDA=0)
endif
INC_cuda += -Ikernels/cuda/ptx -isystem $(CUDA_HOME)/include
CUDA_CXX  = $(NVCC) -std=c++17 -O3 -lineinfo -MMD -MP -Xptxas -v $(foreach a,$(ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
            $(if $(STRICT),-Werror all-warnings) -Xcompiler -Wall,-Wextra,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics
LDLIBS   += -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt $(filter -static%,$(CXX_LIB))
ifeq ($(filter 0 1 auto,$(CUDNN)),)
$(error CUDNN=$(CUDNN); change: CUDNN=auto, 0 or 1)
endif
# scripts/setup gpu unpacks headers in CUDNN_GOT
CUDNN_GOT   ?= build/cudnn
CUDNN_PATHS := $(CUDNN_INC) $(CUDNN_FRONTEND_INC) $(CUDA_HOME)/include /usr/local/include /usr/include \
               $(CUDNN_GOT)/include $(CUDNN_GOT)/nvidia/cudnn/include
CUDNN_LACKS := $(strip $(foreach h,cudnn.h cudnn_frontend.h nvrtc.h,$(if $(wildcard $(CUDNN_PATHS:=/$(h))),,$(h))))
CUDNN_SAYS  := our own kernels (CUDNN=0)
ifneq ($(and $(filter 1,$(CUDNN)),$(CUDNN_LACKS)),)
$(error no $(CUDNN_LACKS); change: scripts/setup gpu, or set CUDNN_INC and CUDNN_FRONTEND_INC to the folders of \
the headers, or CUDNN=0)
endif
ifneq ($(CUDNN),0)
ifeq ($(CUDNN_LACKS),)
CUDNN_SAYS  := cuDNN where it can, our own kernels elsewhere
CUDA_SRC := $(filter-out $(CUDNN_OFF),$(CUDA_SRC)) $(CUDNN_ON)
LDLIBS   += $(CXX_LIB)
else
CUDNN_SAYS  := our own kernels, no cuDNN: no $(CUDNN_LACKS) (scripts/setup gpu)
endif
endif
else ifeq ($(CUDA),emulated)
BUILD    := $(CPU:build/cpu=build)$(if $(filter build/cpu,$(CPU)),/emulated,-emulated)
INC_cuda := -Itests/emulation/include $(INC_cuda)
# a GPU contracts a * b + c, and so does the emulation where the CPU can
CUDA_FMA := $(if $(shell grep -m1 -ow fma /proc/cpuinfo 2> /dev/null),-mfma -fexpensive-optimizations)
CUDA_CXX  = $(CXX) -x c++ -std=gnu++17 $(COMMON) -O1 $(CUDA_FMA) -fno-exceptions -fno-rtti -Wno-unknown-pragmas \
            -Wno-sign-compare -Wno-uninitialized -Wno-maybe-uninitialized
# RACES=1: kernels call tests/emulation/races.cpp before each access
ifeq ($(RACES),1)
BUILD    := $(BUILD:emulated=races)
CUDA_CXX += -g -DRACES $(if $(filter %.cu tests/cuda/%,$<),-fsanitize=thread -fno-threadsafe-statics)
endif
EMULATION := $(wildcard tests/emulation/*.cpp tests/emulation/*.c)
CUDA_SRC := $(filter-out kernels/cuda/libraries.c $(CUDNN_OFF),$(CUDA_SRC)) $(EMULATION)
LDLIBS   += $(CXX_LIB)
CUDA_TESTS += $(if $(filter 1,$(RACES)),tests/cuda/test_races.cpp,$(wildcard tests/cuda/test_emulation*.c tests/cuda/test_emulation*.cpp))
else
$(error CUDA=$(CUDA); change: CUDA=0, 1 or emulated)
endif
endif

# Vector code: one source, an object for each instruction set and each real type.
ISA_generic := -DVBYTES=16
ifeq ($(ARCH),x86_64)
ISAS        := generic avx2 avx512
# gcc from 13 on leaves products in some loops apart from the sums that they are added to: a row alone would have other
# bits than among others.
FUSED       := -mfma --param=avoid-fma-max-bits=0
ISA_avx2    := -DVBYTES=32 -mavx2 $(FUSED) -mf16c -mprfchw
ISA_avx512  := -DVBYTES=64 -mavx512f -mavx512bw -mavx512dq -mavx512vl $(FUSED) -mf16c -mprfchw -mprefer-vector-width=512
else ifeq ($(ARCH),aarch64)
ISAS        := generic sve256
ISA_sve256  := -DVBYTES=32 -march=armv8.2-a+sve -msve-vector-bits=256
else
ISAS        := generic
endif
ISA_SRC  := $(wildcard kernels/cpu/isa/*.c)
ISA_OBJ  := $(foreach i,$(ISAS),$(foreach r,f32 f64,$(ISA_SRC:%.c=$(CPU)/%.$(i).$(r).o)))
ifeq ($(ARCH),x86_64)        # attention by vdpbf16ps, and by AMX
ISA_pairs := -mavx512bf16
ISA_tiles := -mavx512bf16 -mamx-tile -mamx-bf16
ISA_OBJ  += $(foreach f,attention attention_bwd,$(foreach r,pairs tiles,$(CPU)/kernels/cpu/isa/$(f).avx512.$(r).o))
endif

# The same bits on every CPU, and on GPUs.
EXTRA_kernels/normals := -ffp-contract=off
EXTRA_kernels/cuda/normals := $(if $(filter 1,$(CUDA)),-fmad=false,-ffp-contract=off)
# the same bits however masters are kept
EXTRA_kernels/cuda/optimizer := $(EXTRA_kernels/cuda/normals)
# Files that use instructions beyond their directory's set, behind run-time detection.
ifeq ($(ARCH),x86_64)
EXTRA_kernels/cpu/amx     := $(filter-out -D%,$(ISA_avx512)) -mavx512bf16 -mamx-tile -mamx-bf16
EXTRA_kernels/cpu/bf16dot := $(filter-out -D%,$(ISA_avx512)) -mavx512bf16
else
X86_ONLY := kernels/cpu/amx.c kernels/cpu/bf16dot.c
endif

# What was built: git's description of the commit, in a header that changes only when it does.
BUILD_ID := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
EXTRA_src/config/config_help := -include $(CPU)/build_id.h

LIB_SRC  := $(filter-out $(X86_ONLY) $(CUDA_C) $(if $(CUDA_SRC),$(NONE)),$(wildcard kernels/*.c kernels/cpu/*.c \
              $(if $(CROSS),,parallel/*.c parallel/*/*.c src/*/*.c)))
CUDA_OBJ := $(CUDA_SRC:%=$(BUILD)/%.o)
LIB_OBJ  := $(LIB_SRC:%.c=$(CPU)/%.o) $(ISA_OBJ)
ifeq ($(FUZZ),1)
# readers of files compute nothing: what only arithmetic and transports hold is not built, and not called
LIB_OBJ  := $(filter-out $(CPU)/kernels/cpu/% $(CPU)/parallel/comm/comm_mpi.o $(CPU)/parallel/comm/wire.o,$(LIB_OBJ))
LDLIBS   += -no-pie -Wl,--unresolved-symbols=ignore-all
endif
LIB      := $(BUILD)/gridiron.a
# tests/ROOM/test_X.c becomes $(BUILD)/test_X, by way of $(CPU)/tests/test_X.o
TEST_ROOMS := $(filter-out tests/cuda tests/emulation tests/golden,$(patsubst %/,%,$(wildcard tests/*/)))
TEST_SRC := $(wildcard $(TEST_ROOMS:=/test_*.c))
TEST_BIN := $(patsubst %.c,$(BUILD)/%,$(notdir $(TEST_SRC))) $(addprefix $(BUILD)/,$(notdir $(basename $(CUDA_TESTS))))

all: train

# scripts/launch needs it, whatever the build
train: $(BUILD)/train build/loopback.so
	$(if $(filter emulated,$(CUDA)),,@cp -f $< $@)

# an archive, so that a test links the rooms that it enters and no others
$(LIB): $(LIB_OBJ)
	@rm -f $@
	@ar rcs $@ $^

$(BUILD)/train: $(CPU)/train.o $(HOOKS) $(CUDA_OBJ) $(LIB)
	@echo "  link $@"; $(CC) $(CFLAGS) $^ -o $@ $(LDLIBS)
	$(if $(CUDNN_SAYS),@echo "  attention on a GPU: $(CUDNN_SAYS)")

$(BUILD)/test_cuda_%: $(BUILD)/tests/test_cuda_%.c.o $(HOOKS) $(CUDA_OBJ) $(LIB)
	@echo "  link $@"; $(CC) $(CFLAGS) $^ -o $@ $(LDLIBS)

$(BUILD)/test_emulation $(BUILD)/test_races: $(BUILD)/%: $(BUILD)/tests/%.cpp.o $(HOOKS) $(CUDA_OBJ) $(LIB)
	@echo "  link $@"; $(CC) $(CFLAGS) $^ -o $@ $(LDLIBS)

# with the emulation's clock for the host too
$(BUILD)/test_emulation_steps: $(BUILD)/tests/test_emulation_steps.c.o $(HOOKS) $(CUDA_OBJ) $(LIB)
	@echo "  link $@"; $(CC) $(CFLAGS) $^ -Wl,--wrap=now -o $@ $(LDLIBS)

$(BUILD)/test_%: $(CPU)/tests/test_%.o $(HOOKS) $(CUDA_OBJ) $(LIB)
	@echo "  link $@"; $(CC) $(CFLAGS) $^ -o $@ $(LDLIBS)

ifeq ($(ARCH),x86_64)        # attention by tiles in software
$(BUILD)/test_attention: $(foreach f,attention attention_bwd,$(CPU)/tests/$(f).tiles.o)
$(CPU)/tests/%.tiles.o: kernels/cpu/isa/%.c tests/kernels/amx_emulation.h
	@mkdir -p $(@D)
	@echo "  cc $@"; $(CC) $(CFLAGS) $(INC_kernels) -Ikernels/cpu/isa -include tests/kernels/amx_emulation.h -DISA=avx512 -DISA_avx512 \
	  -DREAL_tiles $(ISA_avx512) $(FAST_tiles) -Dcpu_attention_fwd_tiles=cpu_attention_fwd_emulated -Dcpu_attention_bwd_tiles=cpu_attention_bwd_emulated \
	  -c $< -o $@
endif

build/loopback.so: scripts/loopback.c
	@mkdir -p $(@D)
	@echo "  link $@"; $(CC) -std=gnu11 -O2 -Wall -Wextra $(STRICT) -fPIC -shared $< -o $@ -ldl

# every target of fuzzing in one program: files in memory, die() caught
FUZZ_WRAP := $(foreach f,openat open close fstat stat fstatat access faccessat pread read mmap munmap fopen fclose \
               open_memstream fdopen opendir readdir closedir die_at file_replace,-Wl,--wrap=$(f))
FUZZ_SRC  := $(wildcard tests/fuzz/fuzz*.c)
FUZZ_OBJ  := $(patsubst tests/fuzz/%.c,$(CPU)/tests/%.o,$(filter-out %libfuzzer.c,$(FUZZ_SRC)))
$(BUILD)/test_fuzz: $(CPU)/tests/test_fuzz.o $(FUZZ_OBJ) $(HOOKS) $(CUDA_OBJ) $(LIB)
	@echo "  link $@"; $(CC) $(CFLAGS) $^ $(FUZZ_WRAP) -o $@ $(LDLIBS)

# one target under libFuzzer: tests/fuzz/run builds them, with FUZZ=1
$(BUILD)/fuzz_%: $(CPU)/tests/libfuzzer_%.o $(CPU)/tests/fuzz_%.o $(CPU)/tests/fuzz.o $(CPU)/tests/fuzz_files.o $(LIB)
	@echo "  link $@"; $(CC) $(CFLAGS) -fsanitize=fuzzer $^ $(FUZZ_WRAP) -o $@ $(LDLIBS)
$(CPU)/tests/libfuzzer_%.o: tests/fuzz/fuzz_libfuzzer.c
	@mkdir -p $(@D)
	@echo "  cc $@"; $(CC) $(CFLAGS) $(INC_tests) -DTARGET=$* -c $< -o $@

# the executable with a hook where it says what it does
$(BUILD)/test_flips: $(CPU)/tests/test_flips.o $(CPU)/train.o $(HOOKS) $(CUDA_OBJ) $(LIB)
	@echo "  link $@"; $(CC) $(CFLAGS) $^ $(foreach f,comm_note run_check all_ok cpu_open,-Wl,--wrap=$(f)) \
	    -o $@ $(LDLIBS)
$(BUILD)/test_messages: $(CPU)/tests/test_messages.o $(CPU)/train.o $(HOOKS) $(CUDA_OBJ) $(LIB)
	@echo "  link $@"; $(CC) $(CFLAGS) $^ $(foreach f,comm_note run_check collective_advance message_advance \
	    piece_check MPI_Irecv MPI_Test,-Wl,--wrap=$(f)) -o $@ $(LDLIBS)
$(BUILD)/test_faults: $(CPU)/tests/test_faults.o $(CPU)/train.o $(HOOKS) $(CUDA_OBJ) $(LIB)
	@echo "  link $@"; $(CC) $(CFLAGS) $^ $(foreach f,comm_note message_advance collective_advance \
	    blend_read cpu_open config_build_id pthread_create fork,-Wl,--wrap=$(f)) \
	    -o $@ $(LDLIBS)

# with a record of what it does to files, and a command of its own
$(BUILD)/test_power: $(CPU)/tests/test_power.o $(CPU)/train.o $(HOOKS) $(CUDA_OBJ) $(LIB)
	@echo "  link $@"; $(CC) $(CFLAGS) $^ -Wl,--wrap=main -o $@ $(LDLIBS)

# over memory that holds NaNs until it is written
$(BUILD)/test_poison: $(CPU)/tests/test_poison.o $(CPU)/train.o $(HOOKS) $(CUDA_OBJ) $(LIB)
	@echo "  link $@"; $(CC) $(CFLAGS) $^ -Wl,--wrap=arena_take -o $@ $(LDLIBS)

# and over a device that passes everything on to the CPU
$(BUILD)/test_far: $(CPU)/tests/test_far.o $(CPU)/train.o $(HOOKS) $(CUDA_OBJ) $(LIB)
	@echo "  link $@"; $(CC) $(CFLAGS) $^ -Wl,--wrap=cpu_open -o $@ $(LDLIBS)

$(BUILD)/bench_cuda $(BUILD)/bench_products: $(BUILD)/bench_%: $(BUILD)/tests/bench_%.c.o $(CUDA_OBJ) $(LIB)
	@echo "  link $@"; $(CC) $(CFLAGS) $^ -o $@ $(LDLIBS)

# what cuDNN says of graphs, without a GPU: tests/cuda/cudnn_graphs.sh
$(BUILD)/cudnn_graphs: $(BUILD)/tests/cudnn_graphs.c.o $(CUDA_OBJ) $(LIB)
	@echo "  link $@"; $(CC) $(CFLAGS) $^ -o $@ $(LDLIBS)

# the executable with events around what it enqueues
$(BUILD)/bench_step: $(BUILD)/tests/bench_step.c.o $(CPU)/train.o $(CUDA_OBJ) $(LIB)
	@echo "  link $@"; $(CC) $(CFLAGS) $^ -Wl,--wrap=cuda_open -Wl,--wrap=cuda_close -o $@ $(LDLIBS)

$(BUILD)/bench_%: $(CPU)/tests/bench_%.o $(HOOKS) $(CUDA_OBJ) $(LIB_OBJ)
	@echo "  link $@"; $(CC) $(CFLAGS) $^ -o $@ $(LDLIBS)

$(CPU)/train.o: train.c
	@mkdir -p $(@D)
	@echo "  cc $@"; $(CC) $(CFLAGS) $(INC_src) -c $< -o $@

define LAYER_RULE
$(CPU)/$(1)/%.o: $(1)/%.c
	@mkdir -p $$(@D)
	@echo "  cc $$@"; $$(CC) $$(CFLAGS) $$(INC_$(1)) $$(FAST_$(1)) $$(EXTRA_$(1)/$$*) -c $$< -o $$@
endef
EXTRA_tests/bench_comm := $(MPI_CFLAGS)
EXTRA_tests/test_messages := $(MPI_CFLAGS)
define TEST_RULE
$(CPU)/tests/%.o: $(1)/%.c
	@mkdir -p $$(@D)
	@echo "  cc $$@"; $$(CC) $$(CFLAGS) $$(INC_tests) $$(EXTRA_tests/$$*) -c $$< -o $$@
endef
$(foreach l,tests $(TEST_ROOMS),$(eval $(call TEST_RULE,$(l))))
$(foreach l,kernels parallel parallel/comm parallel/schedule $(ROOMS:%=src/%),$(eval $(call LAYER_RULE,$(l))))

# CUDA: objects keep the whole name of their source (x.c and x.cu may both be)
INC_cuda_parallel := $(INC_parallel/comm)
INC_cuda_tests    := $(INC_tests)
INC_cuda_emulation := -Itests/emulation $(MPI_CFLAGS)
cc_cuda = @mkdir -p $(@D); echo "  cc $@"; $(CC) $(CFLAGS) $(INC_cuda) $(INC_cuda_$(firstword $(subst /, ,$<))) -c $< -o $@
$(BUILD)/tests/%.c.o: tests/cuda/%.c
	$(cc_cuda)
$(BUILD)/%.c.o: %.c
	$(cc_cuda)
$(BUILD)/%.cu.o: %.cu $(if $(filter 1,$(CUDA)),$(BUILD)/archs)
	@mkdir -p $(@D)
	@echo "  nv $@"; $(CUDA_CXX) $(INC_cuda) $(EXTRA_$*) -c $< -o $@ > $@.log 2>&1 || { cat $@.log; exit 1; }
# -iquote kernels/cuda: its cuda.h is not CUDA's
$(BUILD)/$(CUDNN_ON).o: $(CUDNN_ON)
	@mkdir -p $(@D)
	@echo "  cc $@"; $(CXX) -std=c++17 -O2 -g -MMD -MP -Wall -Wextra $(STRICT) -fno-threadsafe-statics -Ikernels -iquote kernels/cuda \
	    $(addprefix -isystem ,$(filter-out /usr/include,$(CUDNN_PATHS))) -c $< -o $@
# which of the two it is, and for which GPUs: a change of CUDNN links anew, one of ARCHS compiles anew
$(BUILD)/$(CUDNN_ON).o $(BUILD)/$(CUDNN_OFF).o: $(BUILD)/cudnn
$(BUILD)/cudnn: SAYS = $(CUDNN_SAYS)
$(BUILD)/archs: SAYS = $(ARCHS)
$(BUILD)/cudnn $(BUILD)/archs: FORCE
	@mkdir -p $(@D)
	@echo "$(SAYS)" | cmp -s - $@ || echo "$(SAYS)" > $@
cxx_emulation = @mkdir -p $(@D); echo "  cc $@"; $(CUDA_CXX) $(INC_cuda) $(INC_cuda_emulation) -Itests -c $< -o $@
$(BUILD)/tests/%.cpp.o: tests/cuda/%.cpp
	$(cxx_emulation)
$(BUILD)/%.cpp.o: %.cpp
	$(cxx_emulation)

define ISA_RULE
$(CPU)/kernels/cpu/isa/%.$(1).$(2).o: kernels/cpu/isa/%.c
	@mkdir -p $$(@D)
	@echo "  cc $$@"; $$(CC) $$(CFLAGS) $$(INC_kernels) -Ikernels/cpu/isa -DISA=$(1) -DISA_$(1) -DREAL_$(2) $$(ISA_$(1)) $$(ISA_$(2)) $$(FAST_$(2)) -c $$< -o $$@
endef
$(foreach i,$(ISAS),$(foreach r,f32 f64 pairs tiles,$(eval $(call ISA_RULE,$(i),$(r)))))

$(CPU)/src/config/config_help.o: $(CPU)/build_id.h
$(CPU)/build_id.h: FORCE
	@mkdir -p $(@D)
	@echo '#define BUILD_ID "$(BUILD_ID)"' | cmp -s - $@ || echo '#define BUILD_ID "$(BUILD_ID)"' > $@

docs: $(BUILD)/test_config
	$< --docs > configs/OPTIONS.md

$(CPU)/src/report/svg.o: $(addprefix src/report/,svg.css report.css report.js)

tests: $(TEST_BIN) $(BUILD)/train build/loopback.so

# what needs nothing but the kernels
OP_TESTS := $(addprefix $(BUILD)/test_,attention base fp8 gemm grad numbers ops pool route)
op-tests: $(OP_TESTS)

# with CUDA=emulated (or 1: on a GPU): what the CUDA rows of tests/table run
cuda-tests: $(addprefix $(BUILD)/,$(notdir $(basename $(CUDA_TESTS)))) $(BUILD)/train $(BUILD)/test_faults \
            $(BUILD)/bench_cuda $(BUILD)/bench_products $(BUILD)/bench_step

test: tests train
	$(MAKE) CUDA=emulated cuda-tests
	BUILD=$(BUILD) tests/run

demo bench:
	scripts/$@

# MINUTES in all, for every reader of files
fuzz:
	tests/fuzz/run $(or $(MINUTES),20)

gpu-roofline: $(BUILD)/test_roofline
	$<

bench-schedules: $(BUILD)/test_lower
	$< speed

bench-search: train
	tests/plan/search_models.sh

test-kill: $(BUILD)/test_checkpoint $(BUILD)/test_faults train
	BUILD=$(BUILD) tests/checkpoint/kill_save.sh long
	BUILD=$(BUILD) tests/parallel/faults.sh long

test-power: $(BUILD)/test_power train
	BUILD=$(BUILD) tests/checkpoint/power.sh $(or $(N),100) 2000

test-restarts: $(BUILD)/test_faults train
	BUILD=$(BUILD) tests/parallel/restarts.sh $(or $(N),200)

test-failures: $(BUILD)/test_faults train
	BUILD=$(BUILD) tests/parallel/failures.sh $(or $(N),1000)

test-goodput: train
	BUILD=$(BUILD) tests/parallel/goodput.sh -t $(or $(SECONDS),900)

test-memory: $(BUILD)/test_faults train
	BUILD=$(BUILD) tests/parallel/memory.sh $(or $(N),200)

test-allocations: $(BUILD)/test_faults train
	BUILD=$(BUILD) TRAIN=$(CURDIR)/$(BUILD)/train tests/training/allocations.sh $(or $(STRIDE),1)

test-hangs: $(BUILD)/test_faults train
	BUILD=$(BUILD) tests/parallel/hangs.sh $(or $(N),200)

test-calm: train
	BUILD=$(BUILD) tests/parallel/calm.sh $(or $(HOURS),12) $(or $(JOBS),6)

test-stragglers: $(BUILD)/test_faults train
	BUILD=$(BUILD) tests/parallel/stragglers.sh $(or $(N),50)

test-leaks: $(BUILD)/test_faults train
	BUILD=$(BUILD) tests/training/leaks.sh $(or $(N),10000)

test-launch: tests train
	BUILD=$(BUILD) TRAIN=$(CURDIR)/$(BUILD)/train tests/scripts/launch.sh 100

test-hosts: tests train
	BUILD=$(BUILD) TRAIN=$(CURDIR)/$(BUILD)/train tests/scripts/hosts.sh long

test-network: tests train
	BUILD=$(BUILD) TRAIN=$(CURDIR)/$(BUILD)/train tests/scripts/network.sh

test-kubernetes: train
	tests/scripts/kubernetes.sh

test-layouts: tests train
	BUILD=$(BUILD) tests/training/layouts.sh long

.PHONY: test-resident
test-resident: tests
	BUILD=$(BUILD) tests/training/resident.sh $(or $(N),500)

.PHONY: test-flips
test-flips: $(BUILD)/test_flips train
	BUILD=$(BUILD) tests/training/flips.sh $(or $(N),10000)

test-emulation:
	$(MAKE) CUDA=emulated cuda-tests
	tests/cuda/emulation.sh
	tests/cuda/cuda_layouts.sh long
	tests/cuda/cuda_layouts.sh drop
	tests/cuda/cuda_waits.sh
	tests/cuda/cuda_swaps.sh

test-races:
	$(MAKE) CUDA=emulated RACES=1 cuda-tests
	tests/cuda/races.sh

test-slurm: train
	tests/scripts/slurm.sh

test-readme: train
	tests/scripts/readme.sh long

test-bare:
	tests/scripts/bare.sh

test-pack:
	tests/scripts/pack.sh

# the machine code for every kind of GPU; the rows cuda_sass and cuda_sass-memory count that for one
test-sass:
	for kind in attention memory; do \
	    work=$$(mktemp -d) && ARCHS="$(ARCHS)" WORK=$$work tests/cuda/cuda_sass.sh $$kind; code=$$?; rm -rf $$work; \
	    [ $$code = 0 ] || exit $$code; \
	done

test-seeds:
	BUILD=$(BUILD) tests/seeds.sh

# programs of one process: a launcher's ranks are processes, whose shared memory the sanitizer does not see
test-threads:
	$(MAKE) DEBUG=thread build/thread/train tests
	BUILD=build/thread SLOW=20 tests/run "^($$(awk '$$2 == 1 && $$4 ~ /^.BUILD/ { printf "%s%s", n++ ? "|" : "", $$1 }' tests/table))\$$"

test-same: train
	tests/same.sh $(OLD) $(CURDIR)/train

test-huggingface: train
	$(PYTHON) tests/checkpoint/check_huggingface.py

test-portable test-valgrind:
	scripts/$(subst -,_,$@)

size:
	@wc -l train.c $$(git ls-files kernels parallel src) | sort -n

clean:
	rm -rf build/cpu build/debug build/thread build/valgrind build/bench build/cuda build/cuda-90a build/cuda-cudnn build/emulated \
	       build/debug-cuda build/debug-emulated build/races train

-include $(LIB_OBJ:.o=.d) $(CPU)/tests/attention.tiles.d $(CPU)/tests/attention_bwd.tiles.d $(CUDA_OBJ:.o=.d) $(CPU)/train.d $(patsubst %.c,$(CPU)/tests/%.d,$(notdir $(TEST_SRC) $(wildcard $(TEST_ROOMS:=/bench_*.c)))) $(FUZZ_OBJ:.o=.d) $(patsubst %,$(BUILD)/tests/%.d,$(notdir $(CUDA_TESTS))) \
         $(patsubst %,$(BUILD)/tests/%.c.d,bench_cuda bench_products bench_step cudnn_graphs)
.PHONY: all tests op-tests fuzz cuda-tests test test-allocations test-emulation test-races docs demo bench gpu-roofline bench-schedules bench-search test-failures test-goodput test-hangs test-calm test-stragglers test-memory test-restarts test-kill test-power test-leaks test-launch test-hosts test-network test-layouts \
        test-slurm test-kubernetes test-readme test-bare test-pack test-sass test-seeds test-threads test-same test-huggingface test-portable test-valgrind size clean FORCE
.SECONDARY:

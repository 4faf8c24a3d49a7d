# SPDX-License-Identifier: Apache-2.0
# One Makefile for everything; HACKING.md has one command per intent.
#
#   BUILD=build  PREFIX=/usr/local  CUDA=auto|yes|no  FABRIC=auto|yes|no
#   SAN=address,undefined|thread    WERROR=1 (or CI=true)    TESTS="test_word test_route"

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc)
endif

comma := ,
BUILD ?= build
PREFIX ?= /usr/local
CUDA ?= auto
FABRIC ?= auto
PKG_CONFIG ?= pkg-config
NVCC ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
OUT := $(BUILD)$(if $(SAN),/san-$(subst $(comma),-,$(SAN)))
GEN := $(OUT)/gen
VERSION := $(shell awk '/define AFD_VERSION_M|define AFD_VERSION_P/ { v = v d $$3; d = "." } \
                        END { print v }' include/afd/afd.h)
SOVERSION := $(firstword $(subst ., ,$(VERSION)))

# ---- what is here, and what is left out ---------------------------------------------------------
have = $(shell $(PKG_CONFIG) --exists $(1) 2>/dev/null && echo yes)
say = $(info left out: $(1))

lib_packages := libsodium
cli_packages := popt jansson libxxhash

ofi_sources := $(wildcard src/fabric/ofi*.c)
have_ofi := $(if $(ofi_sources),$(if $(filter no,$(FABRIC)),,$(call have,libfabric)))
ifeq ($(FABRIC)$(call have,libfabric),yes)
$(error FABRIC=yes, but pkg-config does not find libfabric)
endif
ifeq ($(have_ofi),yes)
lib_packages += libfabric
endif

have_nvcc := $(if $(filter no,$(CUDA)),,$(NVCC))
ifeq ($(CUDA)$(have_nvcc),yes)
$(error CUDA=yes, but there is no nvcc)
endif

have_cli := $(if $(wildcard cli/*.c),$(call have,$(cli_packages)))
have_scdoc := $(shell command -v scdoc)

# ---- flags --------------------------------------------------------------------------------------
WARNINGS := -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wstrict-prototypes -Wvla -Wundef
ifneq ($(filter true 1,$(CI) $(WERROR)),)
WARNINGS += -Werror
endif
LANGUAGE := -std=c11 -ffp-contract=off -pthread -D_GNU_SOURCE
INCLUDES := -Iinclude -Isrc -I$(GEN)
X86 := $(filter x86_64-%,$(shell $(CC) -dumpmachine 2>/dev/null))
DEFINES := $(if $(X86),-DAFD_VECTOR_X86=1) $(if $(have_ofi),-DAFD_HAVE_OFI=1)
SANITIZE := $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer)
CFLAGS ?= -O2 -g
ALL_CFLAGS := $(LANGUAGE) $(WARNINGS) $(CFLAGS) $(SANITIZE) -fPIC -fvisibility=hidden
LINK := $(CC) $(CFLAGS) -pthread $(SANITIZE) $(LDFLAGS)
pkg_cflags = $(shell $(PKG_CONFIG) --cflags $(1) 2>/dev/null)
pkg_libs = $(shell $(PKG_CONFIG) --libs $(1) 2>/dev/null)
lib_cflags := $(call pkg_cflags,$(lib_packages)) $(DEFINES)
lib_libs := $(call pkg_libs,$(lib_packages))
cli_cflags := $(call pkg_cflags,$(cli_packages))
cli_libs := $(if $(have_cli),$(call pkg_libs,$(cli_packages)))
NVCC_FLAGS := -arch=sm_90 -std=c++17 --fmad=false -Xptxas -v $(INCLUDES)

# ---- sources ------------------------------------------------------------------------------------
vector_source := src/exec/vector_kernels.c
vector_suffixes := $(if $(wildcard $(vector_source)),generic $(if $(X86),avx2 avx512))
lib_sources := $(filter-out $(vector_source) $(ofi_sources), $(wildcard \
    src/*.c src/exec/*.c src/fabric/*.c src/bootstrap/*.c))
lib_sources += $(if $(have_ofi),$(ofi_sources))
lib_objects := $(lib_sources:%.c=$(OUT)/%.o) \
    $(vector_suffixes:%=$(OUT)/src/exec/vector_kernels_%.o)
# The simulator is for the tests and the command; the libraries do not have it.
sim_objects := $(patsubst %.c,$(OUT)/%.o,$(wildcard src/exec/sim/*.c))
cli_objects := $(patsubst %.c,$(OUT)/%.o,$(wildcard cli/*.c))
test_sources := $(wildcard tests/test_*.c)
helper_objects := $(patsubst %.c,$(OUT)/%.o,$(filter-out $(test_sources),$(wildcard tests/*.c)))
test_programs := $(test_sources:%.c=$(OUT)/%)
example_programs := $(patsubst %.c,$(OUT)/%,$(wildcard examples/*.c))
man_pages := $(if $(have_scdoc),$(patsubst %.scd,$(OUT)/%,$(wildcard man/*.scd)))
digest_sources := $(sort $(wildcard src/shared/*.[ch] src/steps/*.[ch]))
command := $(if $(have_cli),$(OUT)/afd)

# Everything that `make test` runs, in this order; TESTS picks some by name.
suite := tools/tidy.py $(wildcard tests/test_*.sh) $(test_programs) $(example_programs)
ifdef TESTS
suite := $(foreach t,$(suite),$(if $(filter $(TESTS),$(basename $(notdir $(t)))),$(t)))
unknown := $(filter-out $(basename $(notdir $(suite))),$(TESTS))
$(if $(unknown),$(error TESTS names no test: $(unknown)))
endif
cuda_report := $(if $(have_nvcc),$(if $(filter %/test_cuda_steps.sh,$(suite)),$(patsubst \
    %.cu,$(OUT)/%.report,$(wildcard tests/cuda_steps.cu))))

# ---- library, command ---------------------------------------------------------------------------
.PHONY: all deps run bench sim mutants sim-long gpu-bench test check lint format check-headers man \
    install clean FORCE
all: $(OUT)/libafd.a $(OUT)/libafd.so $(OUT)/libafd.pc $(command) $(man_pages)
	$(if $(have_cli),,$(call say,the command afd (needs cli/ and $(cli_packages): make deps)))
	$(if $(have_scdoc),,$(call say,man pages (scdoc is not installed: make deps)))
	$(if $(filter no,$(FABRIC)),$(call say,libfabric (FABRIC=no)))
	$(if $(filter no,$(FABRIC))$(call have,libfabric),,$(call say,libfabric (not installed)))
	$(if $(filter no,$(CUDA)),$(call say,CUDA (CUDA=no)),$(if $(NVCC),,$(call say,CUDA (no nvcc))))
	@:

# Writes stdin to $@ only if that changes it, so that what depends on $@ is rebuilt only then.
update = mkdir -p $(@D) && cat >$@.$$$$ && \
    if cmp -s $@.$$$$ $@; then rm $@.$$$$; else mv $@.$$$$ $@; fi

$(OUT)/flags: FORCE
	@$(PKG_CONFIG) --exists libsodium || { echo "libsodium is missing: make deps" >&2; exit 1; }
	@echo '$(shell $(CC) --version | head -n 1) $(ALL_CFLAGS) $(LDFLAGS) $(INCLUDES) $(lib_cflags)' \
	    '$(lib_libs) $(cli_cflags) $(cli_libs)' | { $(update); }

$(GEN)/afd_digest.h: FORCE
	@hex=$$(for f in $(digest_sources); do echo "$$f"; cat "$$f"; done | sha256sum | cut -c1-16) && \
	printf '%s\n' '/* Generated: a digest of src/shared and src/steps. */' \
	    '#ifndef AFD_DIGEST' "#define AFD_DIGEST \"$$hex\"" '#endif' | { $(update); }

$(OUT)/libafd.pc: FORCE
	@printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$${prefix}/lib' 'includedir=$${prefix}/include' '' \
	    'Name: libafd' 'Description: Moves Mixture-of-Experts tokens between Attention and FFN ranks' \
	    'Version: $(VERSION)' 'Requires.private: $(lib_packages)' 'Libs: -L$${libdir} -lafd' \
	    'Libs.private: -pthread' 'Cflags: -I$${includedir}' | { $(update); }

compile = @mkdir -p $(@D); echo "  CC      $@"; $(CC) $(ALL_CFLAGS) -MMD -MP $(1) -c $< -o $@
vector_generic :=
vector_avx2 := -mavx2
vector_avx512 := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512

$(OUT)/src/exec/vector_kernels_%.o: $(vector_source) $(OUT)/flags
	$(call compile,$(INCLUDES) $(lib_cflags) -O3 -Wno-psabi $(vector_$*) -DAFD_VECTOR_SUFFIX=$*)
$(OUT)/examples/%.o: examples/%.c $(OUT)/flags
	$(call compile,-Iinclude)
$(OUT)/cli/%.o: cli/%.c $(OUT)/flags | $(GEN)/afd_digest.h
	$(call compile,$(INCLUDES) $(lib_cflags) $(cli_cflags))
$(OUT)/tests/%.o: tests/%.c $(OUT)/flags | $(GEN)/afd_digest.h
	$(call compile,$(INCLUDES) $(lib_cflags) $(cli_cflags))
$(OUT)/src/%.o: src/%.c $(OUT)/flags | $(GEN)/afd_digest.h
	$(call compile,$(INCLUDES) $(lib_cflags))

# A source file that comes or goes changes the list, and with it what depends on the list.
$(OUT)/%.list: FORCE
	@echo '$($(*F)_objects)' | { $(update); }
archive = @echo "  AR      $@"; rm -f $@; $(AR) rcs $@ $(filter %.o,$^)
$(OUT)/libafd.a: $(lib_objects) $(OUT)/lib.list
	$(archive)
$(OUT)/libsim.a: $(sim_objects) $(OUT)/sim.list
	$(archive)
$(OUT)/cli/libcli.a: $(cli_objects) $(OUT)/cli.list
	$(archive)
$(OUT)/tests/libhelper.a: $(helper_objects) $(OUT)/helper.list
	$(archive)

$(OUT)/libafd.so.$(SOVERSION): $(lib_objects) src/libafd.map $(OUT)/lib.list
	@echo "  LD      $@"
	@$(LINK) -shared -Wl,-soname,$(@F) -Wl,--version-script=src/libafd.map \
	    $(if $(SAN),,-Wl,-z$(comma)defs) $(lib_objects) $(lib_libs) -o $@
$(OUT)/libafd.so: $(OUT)/libafd.so.$(SOVERSION)
	@ln -sf $(<F) $@
$(OUT)/afd: $(cli_objects) $(OUT)/libsim.a $(OUT)/libafd.a $(OUT)/cli.list
	@echo "  LD      $@"
	@$(LINK) $(cli_objects) $(OUT)/libsim.a $(OUT)/libafd.a $(cli_libs) $(lib_libs) -lm -o $@

# ---- tests --------------------------------------------------------------------------------------
# The command's objects are an archive for the tests of its parts; its main() is never pulled in.
test_archives := $(OUT)/tests/libhelper.a $(if $(have_cli),$(OUT)/cli/libcli.a) $(OUT)/libsim.a \
    $(OUT)/libafd.a
$(OUT)/tests/test_%: $(OUT)/tests/test_%.o $(test_archives)
	@echo "  LD      $@"
	@$(LINK) $< $(test_archives) -lcmocka $(cli_libs) $(lib_libs) -lm -o $@
$(OUT)/examples/%: $(OUT)/examples/%.o $(OUT)/libafd.a
	@echo "  LD      $@"
	@$(LINK) $< $(OUT)/libafd.a $(lib_libs) -lm -o $@

# What ptxas says of the steps; a failed compilation is a report too: see tests/test_cuda_steps.sh.
$(OUT)/tests/%.report: tests/%.cu $(OUT)/flags $(GEN)/afd_digest.h
	@mkdir -p $(@D); echo "  NVCC    $@"
	@$(NVCC) $(NVCC_FLAGS) -MD -MF $(@:.report=.d) -MT $@ -MP -c $< -o $(@:.report=.o) >$@ 2>&1 || \
	    echo "nvcc failed" >>$@

# Two steps, because what `deps` installs must be there when the other half is read.
test:
	@tools/deps.sh test
	@$(MAKE) --no-print-directory check
check: all $(filter $(OUT)/%,$(suite)) $(cuda_report)
	@AFD=$(OUT)/afd BUILD=$(OUT) SAN=$(SAN) CUDA_REPORT=$(cuda_report) tests/run.sh $(suite)

# The arm `mpi` needs Open MPI's compiler; without it the other arms are measured.
mpicc := $(shell command -v mpicc)
BENCH ?= --layout 1A1F --tokens 1,8,32,128,512,2048 --exchanges 400 \
    --arms direct,indexed-view$(if $(mpicc),$(comma)mpi)
$(OUT)/bench/mpi_exchange: bench/mpi_exchange.c
	@mkdir -p $(@D); echo "  MPICC   $@"
	@$(mpicc) -std=c11 -O3 -march=native $< -o $@
bench: all $(if $(mpicc),$(OUT)/bench/mpi_exchange)
	$(if $(mpicc),,$(call say,the arm mpi (no mpicc)))
	@$(command) bench $(BENCH)

# What the single source costs on a GPU; build here, run where one is.
$(OUT)/bench/gpu_steps: bench/gpu_steps.cu $(OUT)/libafd.a
	$(if $(have_nvcc),,$(error gpu-bench needs nvcc))
	@mkdir -p $(@D); echo "  NVCC    $@"
	@$(have_nvcc) -arch=sm_90 -std=c++17 --fmad=false -O3 -cudart static $(INCLUDES) $^ -o $@ \
	    -lpthread -Xlinker -Bstatic -lsodium -Xlinker -Bdynamic
gpu-bench: $(OUT)/bench/gpu_steps

# The simulator: a short run, every mutant, and the long run whose results records/ has.
SIM ?= --seeds 2000
sim: all
	@$(command) sim $(SIM)
mutants: all
	@$(command) sim --mutants
sim-long: all
	@tools/sim_long.sh $(command)

run:
	@tools/deps.sh run
	@$(MAKE) --no-print-directory all
	@tools/run_demo.sh $(OUT)/afd

# ---- care ---------------------------------------------------------------------------------------
DEPS ?= all
deps:
	@tools/deps.sh $(DEPS)
lint: $(GEN)/afd_digest.h
	@LINT_FLAGS='$(LANGUAGE) $(INCLUDES) $(lib_cflags) $(cli_cflags) -DAFD_VECTOR_SUFFIX=generic' \
	    tools/lint.sh
format:
	@tools/lint.sh --format
check-headers: $(GEN)/afd_digest.h
	@C_FLAGS='$(LANGUAGE) $(WARNINGS) $(INCLUDES) $(lib_cflags) $(cli_cflags)' CC='$(CC)' \
	    CXX='$(CXX)' NVCC='$(have_nvcc)' NVCC_FLAGS='$(NVCC_FLAGS)' tools/check_headers.sh
man: $(man_pages)
	$(if $(have_scdoc),,$(error scdoc is not installed: make deps))
	@:
$(OUT)/man/%: man/%.scd
	@mkdir -p $(@D); scdoc <$< >$@

install: all
	install -d $(addprefix $(DESTDIR)$(PREFIX)/,include/afd lib/pkgconfig bin)
	install -m 644 include/afd/*.h $(DESTDIR)$(PREFIX)/include/afd
	install -m 644 $(OUT)/libafd.a $(DESTDIR)$(PREFIX)/lib
	install -m 755 $(OUT)/libafd.so.$(SOVERSION) $(DESTDIR)$(PREFIX)/lib
	ln -sf libafd.so.$(SOVERSION) $(DESTDIR)$(PREFIX)/lib/libafd.so
	install -m 644 $(OUT)/libafd.pc $(DESTDIR)$(PREFIX)/lib/pkgconfig
	$(if $(command),install -m 755 $(command) $(DESTDIR)$(PREFIX)/bin)
	@for page in $(man_pages); do \
	    section=$(DESTDIR)$(PREFIX)/share/man/man$${page##*.}; \
	    install -D -m 644 $$page $$section/$${page##*/} || exit 1; \
	done

clean:
	rm -rf $(BUILD)

.SECONDARY:
-include $(shell find $(OUT) -name '*.d' 2>/dev/null)

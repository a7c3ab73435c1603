# `make` alone lists the targets. Everything is pinned: the linter, the test
# runner and the generators in tools/go.mod, the runtimes and the
# Kubernetes of the tests in integration/runtimes/*/go.mod.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c

# A semantic version: the kubelet parses it.
VERSION ?= $(or $(shell git describe --tags --dirty --match 'v*' 2>/dev/null | sed 's/^v//'),0.0.0-dev$(shell git describe --always --dirty --exclude '*' 2>/dev/null | sed 's/^/+/'))
PREFIX  ?= /usr/local
SYSCONFDIR ?= /etc
UNITDIR ?= $(PREFIX)/lib/systemd/system
ZSHDIR  ?= $(PREFIX)/share/zsh/vendor-completions
BIN     := $(CURDIR)/bin
OUT     := $(CURDIR)/out
# Where programs are that run here, if those in BIN are for another processor.
NATIVE  ?= $(BIN)

# Go would note it by itself, but only if git answers and not in a tree without.
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null)

LDFLAGS := -s -w -X github.com/berth-cri/berth/pkg/daemon.version=$(VERSION) -X main.version=$(VERSION) \
           -X github.com/berth-cri/berth/pkg/daemon.revision=$(REVISION)
# What is shipped is built from its own go.mod, and not from go.work.
# grpcnotrace leaves out a page of traces that berth does not serve, and text/template with it.
GOBUILD := GOWORK=off CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags grpcnotrace
# The programs of a node. A supervisor speaks ttrpc only, and is a fifth smaller without gRPC.
NODE = $(GOBUILD) -ldflags '$(LDFLAGS)' -o '$(1)/' ./cmd/berth ./cmd/berth-pause && \
       $(GOBUILD),no_grpc -ldflags '$(LDFLAGS)' -o '$(1)/' ./cmd/berth-shim
# What is compiled to be checked is compiled as what is shipped: the build cache serves both.
AS_BUILT := CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false -tags=grpcnotrace'

# What the tests run against. A machine that has its own can name it.
export BERTH_TEST_BIN   ?= $(BIN)
export BERTH_TEST_RUNC  ?= $(BIN)/runc
export BERTH_TEST_RUNC_OLD ?= $(BIN)/runc-old
export BERTH_TEST_RUNSC ?= $(BIN)/runsc
export BERTH_TEST_RUNSC_OTHER ?= $(BIN)/runsc-other/runsc
export BERTH_TEST_SHIM  ?= $(BIN)/containerd-shim-runc-v2
export BERTH_TEST_STARGZ ?= $(BIN)/stargz
export BERTH_TEST_CRIO ?= $(BIN)/crio
export BERTH_TEST_PINNS ?= $(BIN)/pinns
export BERTH_TEST_COREDNS ?= $(BIN)/coredns
export BERTH_TEST_CRUN  ?= $(shell command -v crun || echo /usr/bin/crun)
export BERTH_TEST_CONTAINERD ?= $(BIN)/containerd
export BERTH_TEST_CTR ?= $(BIN)/ctr
export BERTH_TEST_CNI ?= $(BIN)/cni
export BERTH_TEST_KUBERNETES ?= $(BIN)
export BERTH_TEST_VM ?= $(BIN)/vm

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

## Building

.PHONY: build
build: ## build berth and the programs beside it into ./bin
	$(call NODE,$(BIN))
	cd contrib/cluster && $(GOBUILD) -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/...

.PHONY: install
install: build ## install binaries, unit and configuration (DESTDIR, PREFIX)
	install -D -m 0755 -t '$(DESTDIR)$(PREFIX)/bin' $(BIN)/berth $(BIN)/berth-shim $(BIN)/berth-pause
	for unit in $(notdir $(wildcard contrib/systemd/*)); do \
	  sed 's|/usr/bin/|$(PREFIX)/bin/|g' contrib/systemd/$$unit \
	    | install -D -m 0644 /dev/stdin "$(DESTDIR)$(UNITDIR)/$$unit" || exit 1; \
	done
	install -d -m 0755 '$(DESTDIR)$(SYSCONFDIR)/berth/conf.d' '$(DESTDIR)$(PREFIX)/lib/berth/conf.d'
	[ -e '$(DESTDIR)$(SYSCONFDIR)/berth/config.toml' ] \
	  || install -m 0644 configs/berth.toml '$(DESTDIR)$(SYSCONFDIR)/berth/config.toml'
	install -D -m 0644 -t '$(DESTDIR)$(PREFIX)/share/berth' \
	  contrib/crictl.yaml contrib/grafana/berth.json contrib/prometheus/berth.rules.yaml
	rm -rf '$(OUT)/man' && $(NATIVE)/berth man '$(OUT)/man' && gzip -9n '$(OUT)'/man/*
	install -D -m 0644 -t '$(DESTDIR)$(PREFIX)/share/man/man8' '$(OUT)'/man/*.8.gz
	$(NATIVE)/berth completion bash | install -D -m 0644 /dev/stdin '$(DESTDIR)$(PREFIX)/share/bash-completion/completions/berth'
	$(NATIVE)/berth completion zsh | install -D -m 0644 /dev/stdin '$(DESTDIR)$(ZSHDIR)/_berth'
	$(NATIVE)/berth completion fish | install -D -m 0644 /dev/stdin '$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/berth.fish'

.PHONY: install-kubectl
install-kubectl: build ## install kubectl berth, which nodes do not need (DESTDIR, PREFIX)
	install -D -m 0755 -t '$(DESTDIR)$(PREFIX)/bin' $(BIN)/kubectl-berth contrib/kubectl/kubectl_complete-berth
	rm -rf '$(OUT)/man1' && $(NATIVE)/kubectl-berth man '$(OUT)/man1' && gzip -9n '$(OUT)'/man1/*
	install -D -m 0644 -t '$(DESTDIR)$(PREFIX)/share/man/man1' '$(OUT)'/man1/*.1.gz

# What is made from one commit has its time, and not that of the build.
export SOURCE_DATE_EPOCH ?= $(or $(shell git log -1 --format=%ct 2>/dev/null),0)

PACKAGES  := deb rpm apk arch
PKG_ARCH  ?= $(shell go env GOARCH)
STAGE      = $(OUT)/stage-$(1)-$(PKG_ARCH)
PACKAGE    = STAGE='$(STAGE)' VERSION="$$(scripts/package-version $(1) '$(VERSION)')" ARCH='$(PKG_ARCH)' \
  $(NATIVE)/nfpm package --config contrib/packages/$(2).yaml --packager $(subst arch,archlinux,$(1)) --target '$(OUT)/'
TO_STAGE   = $(MAKE) --no-print-directory DESTDIR='$(STAGE)' PREFIX=/usr SYSCONFDIR=/etc UNITDIR=/usr/lib/systemd/system
# Where others than Debian look for completions.
ZSH_OF_rpm = ZSHDIR=/usr/share/zsh/site-functions
ZSH_OF_apk = $(ZSH_OF_rpm)
ZSH_OF_arch = $(ZSH_OF_rpm)

define package
	rm -rf '$(STAGE)'
	$(TO_STAGE) $(ZSH_OF_$(1)) install
	$(if $(filter apk,$(1)),rm -r '$(STAGE)/usr/lib/systemd')
	$(PACKAGE)
	rm -rf '$(STAGE)'
	$(TO_STAGE) install-kubectl
	$(call PACKAGE,$(1),kubectl-berth)
	rm -rf '$(STAGE)'
endef

.PHONY: deb rpm apk arch sysext
deb: $(NATIVE)/nfpm ## build the packages berth and kubectl-berth into ./out, for Debian
	$(call package,deb,berth)
rpm: $(NATIVE)/nfpm ## build them for Fedora, RHEL and SUSE
	$(call package,rpm,berth)
apk: $(NATIVE)/nfpm ## build them for Alpine
	$(call package,apk,berth)
arch: $(NATIVE)/nfpm ## build them for Arch
	$(call package,arch,berth)

# systemd's names of processors.
SYSEXT_ARCH = $(subst amd64,x86-64,$(PKG_ARCH))
sysext: ## build a system extension for systems whose /usr is an image (squashfs-tools)
	rm -rf '$(call STAGE,sysext)'
	$(call TO_STAGE,sysext) install
	mv '$(call STAGE,sysext)/etc/berth/config.toml' '$(call STAGE,sysext)/usr/share/berth/config.toml'
	rm -r '$(call STAGE,sysext)/etc'
	install -D -m 0644 -t '$(call STAGE,sysext)/usr/lib/tmpfiles.d' contrib/sysext/berth.conf
	install -D -m 0644 -t '$(call STAGE,sysext)/usr/lib/systemd/system/multi-user.target.d' contrib/sysext/10-berth.conf
	printf 'ID=_any\nARCHITECTURE=%s\nEXTENSION_RELOAD_MANAGER=1\n' '$(SYSEXT_ARCH)' \
	  | install -D -m 0644 /dev/stdin '$(call STAGE,sysext)/usr/lib/extension-release.d/extension-release.berth'
	mksquashfs '$(call STAGE,sysext)' '$(OUT)/berth_$(VERSION)_$(SYSEXT_ARCH).raw' -noappend -all-root -quiet -no-progress
	rm -rf '$(call STAGE,sysext)'

.PHONY: packages packages-arm64
packages: $(PACKAGES) sysext ## all of those
packages-arm64: $(addsuffix -arm64,$(PACKAGES) sysext) ## all of those for arm64, on any machine
.PHONY: $(addsuffix -arm64,$(PACKAGES) sysext)
$(addsuffix -arm64,$(PACKAGES) sysext): %-arm64: build $(BIN)/nfpm
	GOARCH=arm64 $(MAKE) --no-print-directory $* PKG_ARCH=arm64 BIN='$(OUT)/arm64' NATIVE='$(BIN)'

# One layer with what the installer brings to a node, and the installer.
PAYLOAD = $(OUT)/image-stage/$(1)
PLATFORMS := amd64 arm64
# What the chart's pods run, unless its values name another.
IMAGE ?= ghcr.io/berth-cri/berth:$(subst +,-,$(VERSION))

.PHONY: image $(addprefix image-stage-,$(PLATFORMS))
image: $(addprefix image-stage-,$(PLATFORMS)) $(BIN)/image ## build the image of the installer and the controller for amd64 and arm64, as an OCI layout and an archive of it
	$(BIN)/image -out '$(OUT)/image' -archive '$(OUT)/berth_$(VERSION)_image.tar' -name '$(IMAGE)' \
	  -version '$(VERSION)' -revision '$(REVISION)' $(foreach p,$(PLATFORMS),'linux/$(p)=$(call PAYLOAD,$(p))')
	rm -rf '$(OUT)/image-stage'
$(addprefix image-stage-,$(PLATFORMS)): image-stage-%:
	rm -rf '$(call PAYLOAD,$*)'
	export GOARCH=$*; $(call NODE,$(call PAYLOAD,$*)/usr/share/berth/bin)
	cd contrib/cluster && GOARCH=$* $(GOBUILD) -ldflags '$(LDFLAGS)' -o '$(call PAYLOAD,$*)/usr/bin/' ./cmd/berth-installer ./cmd/berth-controller
	install -D -m 0644 -t '$(call PAYLOAD,$*)/usr/share/berth' contrib/systemd/berth.service LICENSE

.PHONY: clean
clean: ## remove what was built here
	rm -rf $(BIN) $(OUT)

## Parts from elsewhere

.PHONY: deps
deps: ## install from Debian what is missing (root)
	scripts/deps

.PHONY: runtimes
runtimes: $(BIN)/runc $(BIN)/runc-old $(BIN)/runsc $(BIN)/runsc-other/runsc $(BIN)/containerd-shim-runc-v2 $(BIN)/stargz $(BIN)/cni/bridge $(BIN)/cni/flannel ## build the runtimes and a snapshotter of the tests into ./bin

$(BIN)/runc: integration/runtimes/runc/go.mod scripts/runtime
	scripts/runtime runc $(BIN)

$(BIN)/runc-old: integration/runtimes/runc-old/go.mod scripts/runtime
	scripts/runtime runc-old $(BIN)

$(BIN)/cni/bridge: integration/runtimes/cni/go.mod
$(BIN)/cni/flannel: integration/runtimes/flannel/go.mod
$(BIN)/cni/bridge $(BIN)/cni/flannel:
	@mkdir -p $(BIN)/cni
	cd $(<D) && GOWORK=off $(AS_BUILT) go build -ldflags '-s -w' -o $(BIN)/cni/ tool

RUNSC := $(wildcard integration/runtimes/runsc/* integration/runtimes/runsc/*/*)

$(BIN)/runsc: $(RUNSC) scripts/runtime
	scripts/runtime runsc $(BIN)

$(BIN)/runsc-other/runsc: $(RUNSC) scripts/runtime
	scripts/runtime runsc-other $(BIN)

$(BIN)/containerd-shim-runc-v2: integration/runtimes/containerd/go.mod scripts/runtime
	scripts/runtime containerd-shim-runc-v2 $(BIN)

$(BIN)/stargz: integration/runtimes/stargz/go.mod integration/runtimes/stargz/main.go scripts/runtime
	scripts/runtime stargz $(BIN)

# Only integration tests need these. They take minutes to build.
.PHONY: peers
peers: $(BIN)/containerd $(BIN)/ctr $(BIN)/crio $(BIN)/pinns ## build the CRI daemons of the tests that berth is beside into ./bin

$(BIN)/crio: integration/runtimes/crio/go.mod scripts/runtime
	scripts/runtime crio $(BIN)

$(BIN)/pinns: integration/runtimes/crio/go.mod scripts/runtime
	scripts/runtime pinns $(BIN)

$(BIN)/coredns: integration/runtimes/coredns/go.mod scripts/runtime
	scripts/runtime coredns $(BIN)

$(BIN)/ctr: integration/runtimes/containerd/go.mod scripts/runtime
	scripts/runtime ctr $(BIN)

$(BIN)/containerd: integration/runtimes/containerd/go.mod scripts/runtime
	scripts/runtime containerd $(BIN)

# One build makes all of them; nfd-worker comes last.
.PHONY: kubernetes
kubernetes: $(BIN)/nfd-worker ## build a control plane, kubelet, kubectl and Node Feature Discovery into ./bin (minutes)

$(BIN)/nfd-worker: integration/runtimes/kubernetes/go.mod scripts/kubernetes
	scripts/kubernetes $(BIN)

# Not run by "go tool", for which a tool that was killed has succeeded.
TOOL = GOWORK=off go build -modfile=tools/go.mod -trimpath -buildvcs=false -o $@

$(BIN)/golangci-lint: tools/go.mod
	$(TOOL) github.com/golangci/golangci-lint/v2/cmd/golangci-lint

$(BIN)/gotestsum: tools/go.mod
	$(TOOL) gotest.tools/gotestsum

$(BIN)/nfpm: tools/nfpm/go.mod
	cd tools/nfpm && GOWORK=off go build -trimpath -buildvcs=false -o $@ github.com/goreleaser/nfpm/v2/cmd/nfpm

$(BIN)/image: tools/image/go.mod tools/image/main.go
	cd tools/image && $(GOBUILD) -o $@ .

## Checking

# The modules of go.work, and their packages.
MODULES := . contrib/cluster integration
ALL     := $(MODULES:%=./%/...)
UNIT    := ./cmd/... ./internal/... ./pkg/... ./contrib/cluster/... ./integration/streaming

.PHONY: fmt-check
fmt-check: ## fail if a file is not formatted
	@files=$$(git ls-files -co --exclude-standard '*.go' | xargs -r gofmt -l); \
	[ -z "$$files" ] || { echo "not formatted (gofmt -w):"; echo "$$files"; exit 1; }

.PHONY: vet
vet: ## go vet
	$(AS_BUILT) go vet $(ALL)

# It vets, too, but for what only runs in a virtual machine.
.PHONY: lint
lint: $(BIN)/golangci-lint ## run the pinned linter
	$(AS_BUILT) $(BIN)/golangci-lint run --allow-serial-runners $(ALL)
	$(AS_BUILT) go vet -tags grpcnotrace,berth_vm ./integration/kubelet ./integration/vm/...

.PHONY: tidy-check
tidy-check: ## fail if a go.mod lists more or less than is used
	for m in $(MODULES); do (cd $$m && go mod tidy -diff); done

# A module of its own, so that berth does not depend on sigstore's.
.PHONY: verifier
verifier: $(BIN)/golangci-lint ## check, test and build contrib/verifier into ./bin
	export GOWORK=off $(AS_BUILT) && cd contrib/verifier && go mod tidy -diff && go vet ./... && $(BIN)/golangci-lint run --allow-serial-runners ./... && go test -count=1 ./...
	cd contrib/verifier && $(GOBUILD) -ldflags '-s -w' -o $(BIN)/ ./berth-verify-sigstore

# Modules of their own, too: berth does not depend on Helm's or on what images are made with.
.PHONY: chart chart-manifests
chart: $(BIN)/golangci-lint ## check the chart with Helm's module, and the builder of the image
	export GOWORK=off $(AS_BUILT); for m in chart image; do (cd tools/$$m && go mod tidy -diff && go vet ./... && $(BIN)/golangci-lint run --allow-serial-runners ./... && go test -count=1 ./...); done
chart-manifests: ## write the plain manifests that the chart stands for
	cd tools/chart && GOWORK=off go test -count=1 -run TestManifests . -update

.PHONY: generate
generate: ## regenerate the code of proto/
	proto/generate.sh

.PHONY: check-generated
check-generated: ## fail if generated code is not what its sources say
	@before=$$(mktemp -d); trap 'rm -rf "$$before"' EXIT; \
	cp -r proto "$$before/"; proto/generate.sh; \
	diff -r "$$before/proto" proto || { echo "generated code was stale; it is regenerated now, commit it"; exit 1; }

## Testing

# -w leaves out what only debuggers read: linking a test takes half the time. The linter vets.
GOTEST := $(BIN)/gotestsum --format pkgname --format-icons text --hide-summary skipped

# What the phases of scripts/phases compile, and nothing is run. "go list -export" leaves
# in the cache what the tests are linked from.
COMPILED = go list -export -test -deps -f ''
FAILPOINTS = CGO_ENABLED=0 go list -export -deps -trimpath -tags grpcnotrace,berth_failpoints -f ''

.PHONY: compile-vet compile-lint compile-unit compile-heart-conformance compile-heart-recovery compile-integration
compile-vet compile-lint:
	$(AS_BUILT) $(COMPILED) $(ALL)
compile-lint: $(BIN)/golangci-lint
compile-unit: runtimes $(BIN)/gotestsum
	$(COMPILED) -race $(UNIT)
compile-heart-conformance compile-heart-recovery: build runtimes $(BIN)/containerd $(BIN)/gotestsum
	$(AS_BUILT) $(COMPILED) ./integration/conformance ./integration/faults ./integration/cli
	$(FAILPOINTS) ./cmd/... ./contrib/cluster/cmd/...
compile-integration: build runtimes peers $(BIN)/gotestsum $(BIN)/nfpm
	$(AS_BUILT) $(COMPILED) ./integration/...
	$(FAILPOINTS) ./cmd/... ./contrib/cluster/cmd/... ./integration/shims/...

.PHONY: unit
unit: runtimes $(BIN)/gotestsum ## unit tests, fuzz seeds included, with the race detector
	@mkdir -p $(OUT)
	$(GOTEST) --jsonfile $(OUT)/unit.json -- -race -vet=off -count=1 -ldflags=-w -timeout 15m $(UNIT)

# Empty where Kubernetes is built beside the tests (scripts/phases).
KUBERNETES ?= kubernetes

# What runs in virtual machines has its own targets: it needs the processors to itself. So
# has what needs a browser. The clients of streaming run with the unit tests, with -race.
WITHOUT_VM = $(FIRST:%=./integration/%) $(shell go list ./integration/... | grep -vE '/integration/(vm|dashboard|streaming|$(subst $() ,|,$(FIRST)))$$')

# Two packages at once take three fifths of the time on two cores, as tests wait for shims and
# for clients that are slow. Those of conformance and faults run beside each other already:
# each has a slot to itself, beside packages whose tests come one by one. What needs
# Kubernetes comes after them, when it is built.
FIRST = conformance agents bench beside cdi cli live faults

# Each test has daemons, networks and cgroups of its own; clusters wait for each other.
.PHONY: integration
integration: build runtimes peers $(KUBERNETES) $(BIN)/gotestsum $(BIN)/nfpm ## tests against real runtimes and a real registry (root)
	@mkdir -p $(OUT)
	$(AS_BUILT) $(GOTEST) --jsonfile $(OUT)/integration.json --rerun-fails=1 --rerun-fails-max-failures=5 --packages "$(WITHOUT_VM)" \
		-- -vet=off -count=1 -ldflags=-w -p 2 -parallel 4 -timeout 45m

.PHONY: kubelet
kubelet: build runtimes kubernetes ## only the tests under a real kubelet and control plane (root)
	go test -count=1 -v -timeout 20m ./integration/kubelet

# What npm brings has Go files, too: with a go.mod they are no part of this module.
.PHONY: dashboard
dashboard: build runtimes ## draw the Grafana dashboard of a real Prometheus in a browser (root; Debian's chromium, prometheus, npm)
	@mkdir -p $(OUT)/dashboard
	cp tools/dashboard/* $(OUT)/dashboard/
	echo 'module npm' > $(OUT)/dashboard/go.mod
	cd $(OUT)/dashboard && npm ci --ignore-scripts --legacy-peer-deps --no-audit --no-fund && npm run build
	BERTH_TEST_DASHBOARD=$(OUT)/dashboard go test -count=1 -v -timeout 10m ./integration/dashboard

.PHONY: vm-image
vm-image: ## build the disk of the node that tests boot, if its recipe has changed (root, minutes)
	scripts/vm-image $(BERTH_TEST_VM) node

.PHONY: vm
vm: vm-image build runtimes $(KUBERNETES) $(BIN)/containerd $(BIN)/ctr $(BIN)/coredns $(BIN)/gotestsum $(BIN)/nfpm ## tests in a whole node under QEMU: cgroup v2, systemd, AppArmor (root)
	@mkdir -p $(OUT)
	$(GOTESTVM) --jsonfile $(OUT)/vm.json -- -vet=off -count=1 -ldflags=-w -timeout 120m -skip '^(TestARM64|TestSELinux)$$' ./integration/vm

# Their disks are made with programs of another processor, and take longer to make than to test.
.PHONY: vm-arm64 vm-selinux
vm-arm64: ## the package on an emulated arm64 node (root; Debian's qemu-system-arm, qemu-user-static, arch-test)
vm-selinux: ## a pod on a node with SELinux and Debian's policy (root)
vm-arm64 vm-selinux: vm-%: build $(BIN)/gotestsum $(BIN)/nfpm
	@mkdir -p $(OUT)
	scripts/vm-image $(BERTH_TEST_VM) $*
	$(GOTESTVM) --jsonfile $(OUT)/vm-$*.json -- -vet=off -count=1 -ldflags=-w -timeout 60m -run '(?i)^Test$*$$' ./integration/vm

# What fails is repeated with all of its machine, whose tests build on each other.
.PHONY: vm-short
vm-short: vm-image build runtimes $(KUBERNETES) $(BIN)/gotestsum $(BIN)/nfpm ## the heart of them: the packaged unit under pods (root)
	@mkdir -p $(OUT)
	$(GOTESTVM) --jsonfile $(OUT)/vm-short.json --rerun-fails=1 --rerun-fails-max-failures=5 --rerun-fails-run-root-test --packages ./integration/vm \
		-- -vet=off -count=1 -ldflags=-w -timeout 40m -run '^TestHeart'

# A name with its time for each test: minutes may pass without one.
GOTESTVM = BERTH_TEST_REQUIRE=1 $(AS_BUILT) $(BIN)/gotestsum --format testname --format-icons text --hide-summary skipped

.PHONY: checklist
checklist: ## tick off what the CRI asks of a daemon, and the problems of other daemons, by the last unit and integration (docs/testing.md)
	@go run ./integration/checklist $(OUT)/unit.json $(OUT)/integration.json

# What every change may break, without Kubernetes: pods and sessions on crun and runc;
# daemons and supervisors that are killed, and the life of a handler by commands.
HEART = $(AS_BUILT) $(GOTEST) --jsonfile $(OUT)/$@.json --rerun-fails=1 --rerun-fails-max-failures=3

.PHONY: heart heart-conformance heart-recovery
heart: heart-conformance heart-recovery ## the heart of conformance, recovery and the CLI on real runtimes (root)
heart-conformance: build runtimes $(BIN)/containerd $(BIN)/gotestsum
	@mkdir -p $(OUT)
	$(HEART) --packages ./integration/conformance -- -vet=off -count=1 -ldflags=-w -timeout 15m \
		-run '^TestBerth$$/^(runc|crun|ports)$$/^(Sandbox|Network|Container|Exit|Stop|Logs|ExecSync|Streaming|Restart)$$'
heart-recovery: build runtimes $(BIN)/containerd $(BIN)/gotestsum
	@mkdir -p $(OUT)
	$(HEART) --packages "./integration/faults ./integration/cli" -- -vet=off -count=1 -ldflags=-w -p 1 -timeout 15m \
		-run '^(TestDaemonKilled|TestSupervisorKilled|TestSupervisorOfOnePod|TestBothKilled|TestReboot|TestAHandlersLifeByCommands|TestReloadTellsEveryMistake|TestOtherUsersManageNothing)$$'

.PHONY: test
test: ## what to run before each push: format, vet, lint, unit tests, the heart on real runtimes (root)
	@scripts/phases deps build runtimes fmt-check vet lint unit heart-conformance heart-recovery

.PHONY: test-all
test-all: ## that and everything else, which is what CI runs (root)
	@scripts/phases deps build runtimes fmt-check tidy-check check-generated kubernetes+vm-image+lint+verifier+chart unit integration vm-short checklist

.PHONY: bench
bench: build runtimes $(BIN)/containerd ## compare with containerd, same runtime and network (root)
	go run ./integration/bench $(BENCH_ARGS)

# Namespaces of its own, so that nothing else on the machine is counted.
.PHONY: soak
soak: build runtimes ## run 10,000 pods between kills and reloads, and fail if anything grows (root, 40 minutes)
	@mkdir -p $(OUT) /run/netns
	$(AS_BUILT) go build -o $(OUT)/soak ./integration/soak
	unshare --mount --net sh -c 'ip link set lo up && mount -t tmpfs soak /run/netns && exec $(OUT)/soak $(SOAK_ARGS)'

.PHONY: bench-node
bench-node: build runtimes kubernetes $(BIN)/containerd ## compare under a kubelet, on a plain and on a throttled disk (root)
	go run ./integration/bench --node --runs 2 --pods 100 $(BENCH_ARGS)

# No more than a pod needs is installed and built: who tries berth should not wait.
.PHONY: demo demo-deps demo-build
demo-deps:
	scripts/deps demo
demo-build:
	$(call NODE,$(BIN))
demo: demo-deps demo-build $(BIN)/runc $(BIN)/runsc $(BIN)/containerd-shim-runc-v2 ## run a pod under every runtime found here, and show what ran it (root)
	$(AS_BUILT) go run ./integration/demo

# SPDX-License-Identifier: Apache-2.0
#
#   make               builds the programs into bin/
#   make run           shows what this machine would offer to the kubelet (ARGS="--recording gpu-server" for another one)
#   make test          runs all tests that need no virtual machine
#   make dra           builds the driver for Dynamic Resource Allocation into bin/, and runs its tests
#   make integration   runs tests with the real device manager and kubelet, with faults, and in virtual machines
#   make integration-night  runs these tests with more releases, sequences and virtual machines; takes hours
#   make integration-releases  runs tests with the device managers of all supported Kubernetes releases; the first run takes an hour
#   make dra-sanity    builds bin/dra-sanity, which checks a DRA driver of any vendor in place of the kubelet
#   make cluster       runs pods in a cluster with kubelets and metalplug, on recorded hardware; needs root
#   make cluster-slice runs three of these tests with each release in CLUSTER_RELEASES, on one node and on eight
#   make cluster-night runs these tests for longer: 100 pods use one disk in turn, and eight nodes change for five minutes
#   make cluster-up    runs such a cluster with two nodes for kubectl, until Ctrl-C; needs root
#   make sandbox       checks what a program in the sandbox of each unit can reach, under systemd 252 and 257; needs root
#   make faults-shown  shows the command that names the cause of each fault (ARGS=kubelet selects faults by name)
#   make fuzz          runs each fuzz target for FUZZTIME=60s
#   make dashboard     checks the dashboard against Grafana's types
#   make words         measures the sentences of comments and documents (ARGS=README.md lists the hard ones of a file)
#   make vulncheck     queries the Go vulnerability database; needs a network
#   make bench-parts   runs the Go benchmarks of the packages ten times; benchstat compares them with OLD=FILE
#   make bench         measures the times and sizes that have a budget, the helpers in a virtual machine, and claims in a
#                      cluster; writes a table and bench.json; needs root
#   make bench-claims  measures only claims in a cluster; needs root
#   make lint          runs gofumpt, vet, staticcheck and shellcheck
#   make install       builds and installs the programs, units and pages; DESTDIR= is prepended to each path
#   make packages      builds deb and rpm for amd64 and arm64 into dist/ (VERSION=1.2.3, ARCHES="amd64 arm64")
#   make packages-check  runs lintian and rpmlint, compares deb and rpm, and checks that a second build gives the same bytes
#   make build-check   builds the packages on Debian 13 and Ubuntu 24.04, from a tarball and without a network; needs root
#   make distributions-check  installs and purges the debs in a container of each Debian and Ubuntu release; needs root
#   make source        makes source packages from the last commit for Debian and for rpm, into source/
#   make source-check  builds the packages from the source packages without a network; needs root
#   make sysext        makes images for systemd-sysext from dist/, into sysext/
#   make repo          makes apt and dnf repositories from dist/ for a mirror, into repo/; KEY= signs them
#   make selinux       compiles the SELinux module, and compares its rights with a list

GO ?= go
ARGS ?=
VERSION ?= unreleased
SEQUENCES ?= 1000
DM_SEQUENCES ?= 120

# Tools that only the linters need, at fixed versions.
GOFUMPT = mvdan.cc/gofumpt@v0.12.0
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
BENCHSTAT = golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da
GOVULNCHECK = golang.org/x/vuln/cmd/govulncheck@v1.5.0

# The packages' build tags. They omit libc's name services. They omit gRPC's traces, because the traces' web page makes the
# linker keep all methods of all types, which make up a sixth of the program. They omit net/http's HTTP/2, which takes 0.4 MB
# in each of two programs. The control socket uses HTTP/1.1, and gRPC has its own HTTP/2.
TAGS = netgo,osusergo,grpcnotrace,nethttpomithttp2

# The timestamp in the packages. It is the same for all packages in one run of make.
SOURCE_DATE_EPOCH ?= $(shell packaging/epoch.sh)
SOURCE_DATE_EPOCH := $(SOURCE_DATE_EPOCH)
export SOURCE_DATE_EPOCH

# go.mod requires Go 1.26.11 or newer. The go command downloads it unless GOTOOLCHAIN forbids that.
export GOTOOLCHAIN ?= auto

PROGRAMS = metalplugd metalplugctl metalplug-holders

# The programs in the packages. The source packages do not contain metalplug-dra's modules.
PACKAGED = $(PROGRAMS) metalplug-dra

# The older Kubernetes releases that the nightly tests also cover.
RELEASES = v1.31 v1.33 v1.34 v1.35
FUZZTIME ?= 60s

.PHONY: all build dra dra-program dra-sanity run test integration integration-night devicemanager integration-releases cluster cluster-slice cluster-night cluster-up cluster-programs cluster-containerd cluster-dra-driver root faults faults-shown fuzz vulncheck words dashboard sandbox vm bench bench-claims bench-parts lint clean deps install packages packages-check source source-check sysext sysext-check build-check distributions-check repo selinux
all: build

deps:
	@packaging/build-deps.sh build

build: deps
	CGO_ENABLED=1 $(GO) build -trimpath -tags '$(TAGS)' -ldflags '-X main.version=$(VERSION)' -o bin/ ./cmd/metalplugd
	CGO_ENABLED=1 $(GO) build -trimpath -tags '$(TAGS),nolibudev' -ldflags '-X main.version=$(VERSION)' -o bin/ ./cmd/metalplugctl ./cmd/metalplug-holders
	ln -f bin/metalplugctl bin/metalplug-reset && ln -f bin/metalplugctl bin/metalplug-unit

# The driver is a separate module, because client-go takes minutes to compile with -race.
DRA = cd daemon/dra && CGO_ENABLED=0 $(GO)
dra: dra-program
	$(DRA) test -trimpath -tags '$(TAGS)' ./...

dra-program:
	$(DRA) build -trimpath -tags '$(TAGS)' -ldflags '-s -w -X main.version=$(VERSION)' -o ../../bin/ ./metalplug-dra

# The cluster uses the same flags, so that both builds share the compiled packages.
dra-sanity:
	cd integration/dra-sanity && $(GO) build $(KUBERNETES) -o ../../bin/ .

run: build
	bin/metalplugctl preview $(ARGS)

# Package lease starts no goroutine, and the race detector would make its exploration several times as slow.
test: deps
	$(GO) test -race -timeout 20m $$($(GO) list ./... | grep -v /daemon/lease$$)
	$(GO) test ./daemon/lease

# cluster-slice runs after devicemanager, because it shares the compiled packages.
integration: devicemanager cluster-slice faults sandbox vm

integration-night: integration-releases
	$(MAKE) faults SEQUENCES=5000
	$(MAKE) devicemanager RUN=TestSequences DM_SEQUENCES=1000
	$(MAKE) cluster-programs cluster-kubectl-v1.36 dra-sanity
	$(MAKE) vm VM='$(NIGHT)' LATER=
	$(MAKE) fuzz vulncheck dashboard
	$(MAKE) cluster-night
	$(MAKE) packages-check source-check sysext-check build-check distributions-check

# Kubernetes is compiled without debug information, which the linker would omit, and without inlining. Each of these saves a
# fifth of the time. All commands need the same flags. Otherwise, they recompile everything. The tests use -vet=off, which
# saves another sixth. make lint runs vet.
KUBERNETES = '-gcflags=all=-dwarf=false -l'

# Each Kubernetes release has its own go.mod file. The folder is a separate module because of its dependencies. RUN='^$$'
# only builds.
RUN ?= .
devicemanager: build
	cd integration/devicemanager && $(GO) test $(KUBERNETES) -vet=off -count=1 -v -timeout 20m -run '$(RUN)' ./... -sequences $(DM_SEQUENCES)

# Here, the daemon runs with the race detector, so the tests measure times only with the newest release.
release-%: build
	CGO_ENABLED=1 $(GO) build -race -tags '$(TAGS)' -o bin/race/ ./cmd/metalplugd
	cd integration/devicemanager && METALPLUGD=../../bin/race/metalplugd \
		$(GO) test $(KUBERNETES) -vet=off -count=1 -timeout 20m -run '$(RUN)' -modfile=go.$*.mod -tags $(subst v,k8s,$(subst .,,$*)) ./...

integration-releases: devicemanager $(RELEASES:%=release-%)
	METALPLUGD=../../bin/race/metalplugd $(MAKE) devicemanager

# Each Kubernetes release's programs are one file in bin/cluster. The first build of a release takes minutes. The flags are
# the same as for devicemanager, so that both share the compiled packages. GOGC=400 saves a tenth of the time, but needs more
# memory.
RELEASE ?= v1.36
HARDWARE ?= udev/recording/bundled/gpu-server.umockdev udev/recording/bundled/nvme-blank.umockdev
define kubernetes-program
cd integration/cluster && mod=$(if $(filter v1.36,$*),go.mod,go.$*.mod) && \
	{ [ -e $$mod ] || { echo '$* is not one of the releases v1.31, v1.36 and v1.37' >&2; exit 1; }; } && \
	version=$$($(GO) list -modfile=$$mod -m -f '{{.Version}}' k8s.io/kubernetes) && \
	GOGC=400 $(GO) build $(KUBERNETES) -modfile=$$mod -tags $(subst v,k8s,$(subst .,,$*)) \
		-ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$$version" -o ../../bin/cluster/$(1)-$* ./$(1)
endef
cluster-kube-%: build
	$(call kubernetes-program,kube)

cluster-kubectl-%: build
	$(call kubernetes-program,kubectl)

# Build containerd 2, because Debian 12 has version 1.6, which does not support CDI.
CONTAINERD = $(addprefix github.com/containerd/containerd/v2/cmd/,containerd containerd-shim-runc-v2 ctr)
cluster-containerd:
	@packaging/build-deps.sh cluster
	cd integration/cluster/containerd && $(GO) build $(KUBERNETES) -tags no_btrfs,no_devmapper,no_zfs,no_tracing \
		-ldflags '-s -w' -o ../../../bin/cluster/ $(CONTAINERD)

cluster-programs: build dra-program cluster-kube-$(RELEASE)
	CGO_ENABLED=1 $(GO) build -trimpath -tags '$(TAGS)' -ldflags '-X main.version=next' -o bin/cluster/metalplugd-next ./cmd/metalplugd
	cd integration/cluster && $(GO) build $(KUBERNETES) -o ../../bin/cluster/ ./cmd/...

# The driver with which Kubernetes tests the kubelet.
cluster-dra-driver:
	cd integration/cluster && $(GO) build $(KUBERNETES) -o ../../bin/cluster/dra-test-driver k8s.io/kubernetes/test/e2e/dra/test-driver

root:
	@[ "$$(id -u)" = 0 ] || { echo 'A cluster needs root, for its mounts and device nodes: try again with sudo.' >&2; exit 1; }

# One test upgrades the first of these releases to the second.
cluster: root cluster-programs cluster-kube-v1.36 cluster-kube-v1.37 cluster-kubectl-$(RELEASE) cluster-containerd cluster-dra-driver dra-sanity
	cd integration/cluster && RELEASE=$(RELEASE) $(GO) test $(KUBERNETES) -vet=off -count=1 -v -timeout 60m -run '$(RUN)' . $(LONG)

# Tests hotplug, a kubelet restart and eight nodes.
CLUSTER_RELEASES ?= v1.36 v1.37
cluster-slice: root cluster-programs $(CLUSTER_RELEASES:%=cluster-kube-%)
	for release in $(CLUSTER_RELEASES); do \
		(cd integration/cluster && RELEASE=$$release $(GO) test $(KUBERNETES) -vet=off -count=1 -v -timeout 10m \
			-run '^(TestUnplug|TestKubeletRestart|TestStorm)$$' . -storm 5s) || exit 1; \
	done

# Runs the same tests with more pods and nodes, for a longer time, and also with the other release.
cluster-night:
	$(MAKE) cluster LONG='-row 100 -storm 5m -cost 1m -cost-nodes 16 -speed 50'
	$(MAKE) cluster RELEASE=v1.37
	$(MAKE) cluster-slice CLUSTER_RELEASES=v1.31

cluster-up: root cluster-programs cluster-kubectl-$(RELEASE)
	bin/cluster/up --release $(RELEASE) $(HARDWARE)

# "make test" runs a short form of these tests. This target runs a thousand sequences (SEQUENCES) and ten thousand devices.
faults:
	$(GO) test -race -count=1 -v -timeout 20m -tags integration -parallel 8 ./integration/faults -sequences $(SEQUENCES) -devices 10000 -restarts 100

# "make test" also runs these faults.
faults-shown: build
	$(GO) run ./integration/operator $(ARGS)

fuzz:
	integration/faults/fuzz.sh $(FUZZTIME)

# Checks the dashboard against Grafana's types, and the picture in docs. Compiling the types takes a minute.
dashboard:
	cd integration/grafana && $(GO) vet . && $(GO) test -count=1 .

words:
	@$(GO) run ./integration/words $(ARGS)

vulncheck:
	$(GO) run $(GOVULNCHECK) ./...

# The number of machines that run at the same time. Each keeps one processor busy.
MACHINES ?= 2
# Only the nightly run has the steps in LATER and the additional machines in NIGHT. The package's test also covers hotplug,
# erasure and a reboot, and the real device manager is tested on the host.
LATER ?= TestHardware/^(drives_come_and_go_.*|a_storm_of_events_changes_nothing|metalplugd_restarts|the_machine_reboots)$$|TestTurnover/SELinux|TestTurnover/AppArmor/^(a_container_starts_.*|what_a_pod_leaves_.*|the_helper_is_killed_.*|this_host_has_.*)$$|TestInstall/^(format|discard|at_rest|stopped|events_wait|state_cannot_be_written)$$
VM ?= TestHardware|TestTurnover|TestInstall|TestUnits
NIGHT = TestMachine|TestStartCost|$(VM)|TestDisks|TestDriver|TestKubelet|TestNodes|TestReset|TestClasses|TestPaths|TestBundles
vm: build
	$(GO) test -count=1 -v -timeout 120m -tags integration -parallel $(MACHINES) -run '$(VM)' -skip '$(LATER)' ./integration/vm

# Runs the units under the systemd of Debian 12 and 13, in containers, and checks what a program in their sandbox can reach.
# Needs root. The first run makes two small Debian trees.
sandbox: build dra-program
	$(GO) test -count=1 -v -timeout 15m -tags integration ./integration/sandbox

bench: build
	$(GO) run ./integration/bench $(ARGS)
	$(MAKE) vm VM=TestStartCost
	$(MAKE) bench-claims KUBERNETES=

# "make bench" compiles Kubernetes with inlining, as in a release.
bench-claims: root cluster-programs cluster-dra-driver
	cd integration/cluster && RELEASE=$(RELEASE) $(GO) test $(KUBERNETES) -vet=off -count=1 -v -timeout 60m \
		-run '^TestClaimSpeed$$' . -speed 50 -cost 1m

BENCHTIME ?= 200ms
bench-parts: deps
	$(GO) test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) -count 10 ./... >bench-parts.txt || { cat bench-parts.txt; exit 1; }
	$(GO) run $(BENCHSTAT) $(OLD) bench-parts.txt

lint:
	@packaging/build-deps.sh lint
	@test -z "$$($(GO) run $(GOFUMPT) -l .)" || { $(GO) run $(GOFUMPT) -d . ; exit 1; }
	$(GO) vet ./... && $(GO) vet -tags integration ./integration/vm/... ./integration/sandbox ./integration/faults
	GOARCH=arm64 CGO_ENABLED=0 $(GO) vet ./... && GOARCH=arm64 CGO_ENABLED=0 $(GO) vet -tags integration ./integration/vm/... ./integration/sandbox ./integration/faults
	$(GO) run $(STATICCHECK) ./... && $(GO) run $(STATICCHECK) -tags integration ./integration/vm/... ./integration/sandbox ./integration/faults
	cd integration/devicemanager && $(GO) vet $(KUBERNETES) ./... && $(GO) run -exec "env \"GOFLAGS=$(KUBERNETES)\"" $(STATICCHECK) ./...
	@# Skip integration/cluster/kube, for which vet would compile and read all of Kubernetes.
	cd integration/cluster && $(GO) vet $(KUBERNETES) . ./cmd/... && $(GO) run -exec "env \"GOFLAGS=$(KUBERNETES)\"" $(STATICCHECK) . ./cmd/...
	cd integration/dra-sanity && $(GO) vet $(KUBERNETES) . && $(GO) run -exec "env \"GOFLAGS=$(KUBERNETES)\"" $(STATICCHECK) .
	shellcheck $$(git ls-files '*.sh' .ci/run 'packaging/debian/*.post*' packaging/debian/*.prerm)

install: build
	packaging/docs.sh bin/.documents
	packaging/install.sh bin bin/.documents '$(DESTDIR)'

packages:
	@packaging/build-deps.sh packages
	VERSION='$(VERSION)' packaging/packages.sh dist $(PACKAGED)

# CI sets ARCHES to its own architecture. The nightly run builds the other architecture and the source packages. lint has
# already compiled the same sources for both architectures. CI sets AGAIN to nothing, and also leaves the second build to the
# nightly run.
AGAIN ?= --again $(PACKAGED)
packages-check: packages
	VERSION='$(VERSION)' packaging/check.sh dist $(AGAIN)

# Upgrades and removes this architecture's debs in a container for each release, and its rpms with dnf. Needs root.
SUITES ?= bookworm trixie jammy noble
distributions-check: packages
	@packaging/build-deps.sh dnf
	older=$$(mktemp -d) && trap 'rm -rf "$$older"' EXIT && \
		VERSION=0.0.0~0 ARCHES=$$($(GO) env GOARCH) packaging/packages.sh "$$older" $(PACKAGED) && \
		packaging/dnf-check.sh "$$older" dist && packaging/distributions.sh "$$older" dist $(SUITES)
	packaging/rpm-scripts.sh dist/metalplug-selinux-*.rpm

# Builds the packages on other releases, from a tarball and without a network. Needs root.
build-check:
	packaging/build-check.sh trixie noble

source:
	rm -rf source
	VERSION='$(VERSION)' packaging/source.sh source

source-check: source
	@packaging/build-deps.sh packages
	packaging/source-check.sh source

sysext: packages
	rm -rf sysext
	packaging/sysext.sh dist sysext

sysext-check: sysext
	packaging/sysext-check.sh sysext/$$($(GO) env GOARCH)/metalplug.raw

# Makes repositories from the packages in dist, which may be signed.
repo:
	test -e dist/SHA256SUMS || $(MAKE) packages
	packaging/repo.sh dist repo

selinux:
	@packaging/build-deps.sh packages
	selinux/compile.sh

clean:
	rm -rf bin dist repo source sysext

# SPDX-License-Identifier: Apache-2.0
#
#   make               builds the programs into bin/
#   make run           shows what this machine would offer to the kubelet (ARGS="--recording gpu-server" for another one)
#   make test          all tests that need no virtual machine
#   make integration   the real device manager of Kubernetes, and the virtual machine
#   make bench         measures the budgets beside their floors, into a table and bench.json; needs root
#   make lint          formatting, vet, staticcheck, shellcheck

GO ?= go
ARGS ?=
VERSION ?= unreleased

# Tools that only the linters need, at fixed versions.
GOFUMPT = mvdan.cc/gofumpt@v0.12.0
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2

PROGRAMS = metalplugd metalplugctl

.PHONY: all build run test integration devicemanager vm bench lint clean deps
all: build

deps:
	@packaging/build-deps.sh build

build: deps
	CGO_ENABLED=1 $(GO) build -trimpath -ldflags '-X main.version=$(VERSION)' -o bin/ $(PROGRAMS:%=./cmd/%)

run: build
	bin/metalplugctl preview $(ARGS)

test: deps
	$(GO) vet ./...
	$(GO) test -race ./...

integration: devicemanager vm

# The suite runs against two releases of Kubernetes; the module has all of its dependencies for itself.
devicemanager: build
	cd integration/devicemanager && $(GO) test -count=1 -v -timeout 20m ./...
	cd integration/devicemanager && $(GO) test -count=1 -timeout 20m -modfile=go.v1.34.mod -tags k8s134 ./...

vm: build
	$(GO) test -count=1 -v -timeout 40m -tags integration ./integration/vm/...

bench: build
	$(GO) run ./integration/bench $(ARGS)

lint:
	@packaging/build-deps.sh lint
	@test -z "$$($(GO) run $(GOFUMPT) -l .)" || { $(GO) run $(GOFUMPT) -d . ; exit 1; }
	$(GO) vet ./... && $(GO) vet -tags integration ./integration/vm/...
	$(GO) run $(STATICCHECK) ./... && $(GO) run $(STATICCHECK) -tags integration ./integration/vm/...
	cd integration/devicemanager && $(GO) vet ./... && $(GO) run $(STATICCHECK) ./...
	shellcheck $$(git ls-files '*.sh' .ci/run)

clean:
	rm -rf bin

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Builds the programs for the packages: position independent, with full RELRO. Builds in different directories give the
# same bytes.
#
#   build.sh ARCH DIRECTORY PROGRAM...    ARCH as Go calls it: amd64, arm64
#
# VERSION  the version that --version prints
# SYMBOLS  "yes" keeps symbols and debug information, which a distribution's tools move into a separate package
set -eu
cd "$(dirname "$0")/.."

arch=$1 out=$2
shift 2
case $arch in
amd64) triplet=x86_64-linux-gnu guard=-fcf-protection ;;
arm64) triplet=aarch64-linux-gnu guard=-mbranch-protection=standard ;;
*)
	echo "build.sh: no flags are known for $arch" >&2
	exit 2
	;;
esac
# On some distributions, the compiler for the machine's own architecture has no prefix.
[ "$arch" = "$(go env GOHOSTARCH)" ] || export CC="$triplet-gcc"

# Settings from the caller's environment or from "go env -w" would change the bytes, or require newer processors.
export CGO_ENABLED=1 GOOS=linux GOARCH="$arch" GOAMD64=v1 GOARM64=v8.0 GOFLAGS=-trimpath GOEXPERIMENT='' GOFIPS140=off GOWORK=off
export CGO_CFLAGS="-O2 -g -fstack-protector-strong -fstack-clash-protection $guard -D_FORTIFY_SOURCE=2 -Wformat -Werror=format-security"
export CGO_LDFLAGS="-Wl,-z,relro,-z,now,-z,noexecstack,-z,defs"
strip='-s -w'
[ "${SYMBOLS:-}" != yes ] || strip=
mkdir -p "$out"
out=$(realpath "$out")

# compile DIRECTORY TAGS GCFLAGS PROGRAM... builds programs of the module in a directory, with the Makefile's tags and TAGS.
compile() {
	module=$1 tags=netgo,osusergo,grpcnotrace,nethttpomithttp2$2 gcflags=$3
	shift 3
	[ $# -eq 0 ] || go build -C "$module" -buildvcs=false -buildmode=pie -tags "$tags" -gcflags "$gcflags" \
		-ldflags "-linkmode=external $strip -buildid= -X main.version=${VERSION:-unreleased}" -o "$out/" "$@"
}

# Only the daemon loads libudev, because the other programs run with privileges. Without inlining (-l), code is smaller and slower.
# metalplugctl waits for other programs or for a disk most of the time. metalplugd contains TLS only because gRPC and net/http contain
# it, and never uses it.
for program; do
	case $program in
	metalplugctl) compile . ,nolibudev all=-l ./cmd/metalplugctl ;;
	metalplug-holders) compile . ,nolibudev '' ./cmd/metalplug-holders ;;
	metalplugd) compile . '' crypto/...=-l ./cmd/metalplugd ;;
	metalplug-dra) compile daemon/dra '' '' ./metalplug-dra ;;
	*)
		echo "build.sh: unknown program $program" >&2
		exit 2
		;;
	esac
done

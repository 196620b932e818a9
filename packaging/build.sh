#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Builds the programs as they are packaged: position independent, with full RELRO, and the same bytes from whatever
# directory.
#
#   build.sh ARCH DIRECTORY PROGRAM...    ARCH as Go calls it: amd64, arm64
#
# VERSION  what --version prints
# SYMBOLS  "yes" leaves symbols and debug information in, for a distribution's tools to move into a package of their own
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
# The compiler of this machine's own architecture has no prefix on every distribution.
[ "$arch" = "$(go env GOHOSTARCH)" ] || export CC="$triplet-gcc"

# What the caller's environment or "go env -w" has set would make other bytes, or programs for newer processors alone.
export CGO_ENABLED=1 GOOS=linux GOARCH="$arch" GOAMD64=v1 GOARM64=v8.0 GOFLAGS=-trimpath GOEXPERIMENT=
export CGO_CFLAGS="-O2 -g -fstack-protector-strong -fstack-clash-protection $guard -D_FORTIFY_SOURCE=2 -Wformat -Werror=format-security"
export CGO_LDFLAGS="-Wl,-z,relro,-z,now,-z,noexecstack,-z,defs"
strip='-s -w'
[ "${SYMBOLS:-}" != yes ] || strip=
mkdir -p "$out"

# compile TAGS PROGRAM... builds programs with the Makefile's tags and more.
compile() {
	tags=netgo,osusergo,grpcnotrace,nethttpomithttp2$1
	shift
	[ $# -eq 0 ] || go build -buildvcs=false -buildmode=pie -tags "$tags" \
		-ldflags "-linkmode=external $strip -buildid= -X main.version=${VERSION:-unreleased}" -o "$out/" "$@"
}

helpers='' others=''
for program; do
	case $program in
	metalplug-reset | metalplug-holders | metalplug-unit) helpers="$helpers ./cmd/$program" ;;
	*) others="$others ./cmd/$program" ;;
	esac
done
# shellcheck disable=SC2086 # several words each
compile ,nolibudev $helpers # no libudev in a process with privileges
# shellcheck disable=SC2086
compile '' $others

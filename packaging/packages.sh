#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the packages: a deb and an rpm for each architecture, from one build of the programs.
#
#   packages.sh DIRECTORY PROGRAM...
#
# At the end, the packages replace DIRECTORY. If a step fails, DIRECTORY stays as it was.
#
# VERSION     of the packages and the programs (default: a version below every release, from the last commit)
# ARCHES      amd64 and arm64, as Go calls them (default: both)
# FORMATS     deb and rpm (default: both)
# MAINTAINER  the maintainer of the packages, as NAME <ADDRESS>
# KEY  the GPG key that signs SHA256SUMS (default: nothing is signed)
# SOURCE_DATE_EPOCH  the time of all files (default: that of the last commit)
set -euo pipefail
cd "$(dirname "$0")/.."

directory=$1
shift
for arch in ${ARCHES:-}; do
	[[ $arch == amd64 || $arch == arm64 ]] || {
		echo "packages.sh: invalid ARCHES $arch: must be amd64 or arm64" >&2
		exit 2
	}
done
for format in ${FORMATS:-}; do
	[[ $format == deb || $format == rpm ]] || {
		echo "packages.sh: invalid FORMATS $format: must be deb or rpm" >&2
		exit 2
	}
done
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(packaging/epoch.sh)}
VERSION=$(packaging/version.sh)
export VERSION
maintainer=${MAINTAINER:-The metalplug authors <metalplug@example.org>}
if [[ $VERSION != 0.0.0~* && -z ${MAINTAINER:-} ]]; then
	echo "packages.sh: warning: MAINTAINER is not set: the packages of $VERSION name $maintainer" >&2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=$work/dist
mkdir "$out"
# Gives all files in the packages the same modes, regardless of the caller's umask.
umask 022
export GOFIPS140=off GOWORK=off

# documents makes the files that all architectures share, including the SELinux module.
documents() {
	packaging/docs.sh "$work/documents"
	mkdir "$work/selinux"
	cp selinux/metalplug.{te,fc,if} "$work/selinux"
	make -s -C "$work/selinux" -f /usr/share/selinux/devel/Makefile NAME=default metalplug.pp >&2
	bzip2 -9 "$work/selinux/metalplug.pp"
}

# payload ARCH FAMILY makes the file tree of a package.
payload() {
	local tree=$work/$2-$1/payload zsh=/usr/share/zsh/site-functions
	[[ $2 != deb ]] || zsh=/usr/share/zsh/vendor-completions
	mkdir -p "$tree/usr/share/doc/metalplug/sbom"
	ZSH=$zsh packaging/install.sh "$work/programs-$1" "$work/documents" "$tree"
	cp "$work/sbom-$1/NOTICES" "$tree/usr/share/doc/metalplug/"
	cp "$work/sbom-$1"/*.json "$tree/usr/share/doc/metalplug/sbom/"
	mkdir -p "$tree/usr/share/doc/metalplug-dra/sbom"
	cp "$work/sbom-dra-$1/NOTICES" "$tree/usr/share/doc/metalplug-dra/"
	cp "$work/sbom-dra-$1"/*.json "$tree/usr/share/doc/metalplug-dra/sbom/"
}

# deb ARCH SELECTION builds an architecture's deb. -b also builds the packages for all architectures, -B does not.
deb() {
	local tree=$work/deb-$1
	payload "$1" deb
	cp -r packaging/debian "$tree/debian"
	mkdir "$tree/packaging"
	cp -r packaging/apparmor "$tree/packaging/apparmor"
	cp CHANGELOG.md "$tree/"
	cp -r "$work/selinux" "$tree/selinux"
	cat "$work/sbom-$1/copyright" "$work/sbom-dra-$1/copyright" >>"$tree/debian/copyright"
	VERSION=$VERSION MAINTAINER=$maintainer packaging/changelog.sh "$tree/debian"
	# -d, because build-deps.sh has installed the build dependencies. One thread, because the number of threads changes the
	# bytes. Not Ubuntu's default, zstd, because apt on older systems cannot read it.
	(cd "$tree" && DPKG_DEB_THREADS_MAX=1 DPKG_DEB_COMPRESSOR_TYPE=xz DEB_BUILD_OPTIONS=nocheck dpkg-buildpackage "$2" -d -us -uc "-a$1" >"$tree.log" 2>&1) || {
		cat "$tree.log" >&2
		return 1
	}
	mv "$work"/*.deb "$work"/*.buildinfo "$out/"
}

# rpm ARCH SELECTION builds an architecture's rpm. "all" also builds the package for all architectures.
rpm() {
	local machine tree=$work/rpm-$1
	case $1 in amd64) machine=x86_64 ;; arm64) machine=aarch64 ;; esac
	payload "$1" rpm
	gzip -9n "$tree"/payload/usr/share/man/*/*
	rpmbuild -bb --quiet --target "$machine-linux" -D "systemd_macros $PWD/packaging/rpm/macros" \
		-D "_topdir $tree/top" -D "sources $PWD" -D "payload $tree/payload" -D "_rpmdir $out" -D '_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' \
		-D "version $VERSION" -D "maintainer $maintainer" -D "packager $maintainer" -D "with_selinux $2" \
		-D "date $(LC_ALL=C date -u -d "@$SOURCE_DATE_EPOCH" '+%a %b %d %Y')" \
		-D '_buildhost metalplug' -D 'use_source_date_epoch_as_buildtime 1' -D 'clamp_mtime_to_source_date_epoch 1' \
		-D '_binary_payload w19.zstdio' -D '_build_id_links none' \
		packaging/rpm/metalplug.spec >"$tree.log" 2>&1 || {
		cat "$tree.log" >&2
		return 1
	}
}

documents
selection=-b all=1
for arch in ${ARCHES:-amd64 arm64}; do
	packaging/build.sh "$arch" "$work/programs-$arch" "$@"
	packaging/elf.sh "$work/programs-$arch"/* >&2
	packaging/sbom.sh "$work/sbom-$arch" "$work/programs-$arch"/metalplug{d,ctl,-holders}
	# The driver is in another module.
	MODULE=daemon/dra PACKAGES=./metalplug-dra packaging/sbom.sh "$work/sbom-dra-$arch" "$work/programs-$arch/metalplug-dra"
	for sbom in "$work"/sbom-{,dra-}"$arch"/*.json; do
		name=${sbom##*/}
		cp "$sbom" "$out/${name%.cdx.json}-$VERSION.$arch.cdx.json"
	done
	for format in ${FORMATS:-deb rpm}; do
		case $format in
		deb) deb "$arch" "$selection" ;;
		rpm) rpm "$arch" "$all" ;;
		esac
	done
	selection=-B all=0
done
# With FORMATS, there are packages in only one format.
shopt -s nullglob
(cd "$out" && sha256sum ./*.deb ./*.rpm ./*.json | sed 's| \./| |' >SHA256SUMS)
if [[ -n ${KEY:-} ]]; then # this signature also covers the SBOMs
	gpg --batch --yes --local-user "$KEY" --armor --detach-sign --output "$out/SHA256SUMS.asc" "$out/SHA256SUMS"
fi
rm -rf "$directory"
mv "$out" "$directory"

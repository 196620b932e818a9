#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs, upgrades, downgrades and removes the rpms of metalplug and metalplug-dra with dnf, in an empty directory. The rpms
# come from a signed repository that repo.sh made from two versions. An empty package provides what the rpms require. The
# scripts in the rpms do not run: see rpm-scripts.sh.
#
#   dnf-check.sh OLDER NEWER
#
# OLDER and NEWER are folders with packages of two versions.
set -euo pipefail

older=$(realpath "$1") newer=$(realpath "$2")
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'gpgconf --kill all; rm -rf "$work"' EXIT
root=$work/root
export GNUPGHOME=$work/gnupg KEY=metalplug-test

bad() {
	echo "dnf-check.sh: $*" >&2
	cat "$work/log" >&2
	exit 1
}

client() {
	dnf -y --installroot="$root" --releasever=40 --setopt=tsflags=noscripts \
		--repofrompath="base,$work/base" --setopt=base.gpgcheck=0 --refresh "$@" >"$work/log" 2>&1
}
must() { client "$@" || bad "dnf $*: exit status $?"; }
# fails TEXT ARGUMENTS checks that dnf fails and prints the text.
fails() {
	! client "${@:2}" || bad "dnf ${*:2}: it did not fail"
	grep -qi -- "$1" "$work/log" || bad "dnf ${*:2}: it does not say \"$1\""
}
# installed FOLDER checks that the installed packages are those in the folder.
installed() {
	diff <(rpm --root "$root" -qa 'metalplug*' | sort) <(rpm -qp "$1"/metalplug{,-dra}-[0-9]*."$(uname -m)".rpm | sort) ||
		bad "other packages are installed than those in $1"
}

mkdir -m 700 "$GNUPGHOME"
gpg --batch --quiet --passphrase '' --quick-generate-key "$KEY"
for packages in "$older" "$newer"; do
	packaging/repo.sh "$packages" "$work/repo" >"$work/log" 2>&1 || bad "repo.sh $packages"
done

# The empty package.
{
	printf '%s\n' 'Name: base' 'Version: 1' 'Release: 1' 'Summary: What metalplug requires' 'License: none' 'BuildArch: noarch'
	rpm -qpR "$older"/metalplug{,-dra}-[0-9]*."$(uname -m)".rpm "$newer"/metalplug{,-dra}-[0-9]*."$(uname -m)".rpm |
		grep -vE '^(rpmlib|config|metalplug)' | sed -e 's/>=/=/' -e 's/^/Provides: /' | sort -u
	printf '%s\n' '%description' 'It has no files.' '%files'
} >"$work/base.spec"
rpmbuild -bb --quiet -D "_topdir $work/rpmbuild" -D "_rpmdir $work/base" "$work/base.spec"
createrepo_c --quiet "$work/base"

# docs/operating.md describes this for an operator.
mkdir -p "$root/etc/yum.repos.d"
sed "s|file:///srv/mirror/metalplug|file://$work/repo|" "$work/repo/dnf/metalplug.repo" >"$root/etc/yum.repos.d/metalplug.repo"
must makecache
version=$(rpm -qp --qf '%{VERSION}-%{RELEASE}' "$older"/metalplug-[0-9]*."$(uname -m)".rpm)
must install "metalplug-$version" "metalplug-dra-$version"
installed "$older"
echo '# edited' >>"$root/etc/metalplug/metalplug.toml"
must upgrade
installed "$newer"
grep -qx '# edited' "$root/etc/metalplug/metalplug.toml" || bad 'the upgrade replaced an edited file'
must downgrade metalplug metalplug-dra
installed "$older"
must remove metalplug metalplug-dra
[[ -z $(rpm --root "$root" -qa 'metalplug*') ]] || bad 'a package is still installed'

# sign signs the index of the repository.
sign() {
	gpg --batch --yes --local-user "$KEY" --armor --detach-sign --output repomd.xml.asc repomd.xml
}
cd "$work/repo/dnf"
cp "$newer"/metalplug-[0-9]*."$(uname -m)".rpm .
createrepo_c --quiet .
fails 'repomd.xml GPG signature verification error' install metalplug
(cd repodata && sign)
must makecache
fails 'is not signed' install metalplug
echo 'dnf installs, upgrades, downgrades and removes the rpms, and rejects unsigned rpms and indices'

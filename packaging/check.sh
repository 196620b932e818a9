#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Checks built packages. It runs the linters, compares the files of deb and rpm, and installs and removes both. With --again,
# it also checks that a build in another place produces the same bytes.
#
#   check.sh DIRECTORY [--again PROGRAM...]
#
# VERSION, ARCHES and MAINTAINER as for packages.sh, for --again.
set -euo pipefail
cd "$(dirname "$0")/.."

dist=$(realpath "$1")
shift
# Maximum size of each installed package in KiB. If a package becomes smaller, lower its limit.
declare -A installed=([metalplug]=24200 [metalplug-dra]=33000)
# Maximum size of each metalplug program in KiB, for amd64. Programs for arm64 are smaller.
declare -A sizes=([metalplugd]=14280 [metalplugctl]=6620 [metalplug-holders]=2720 [metalplug-reset]=1 [metalplug-unit]=1)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0

bad() {
	echo "check.sh: $*" >&2
	status=1
}

linters() {
	local -a as=()
	((EUID != 0)) || as=(--allow-root)
	lintian "${as[@]}" --fail-on error,warning --tag-display-limit 0 "$dist"/*.deb || bad 'lintian'
	rpmlint -c packaging/rpm/rpmlint.toml "$dist"/*.rpm | tee "$work/rpmlint" || bad 'rpmlint'
	! grep -qE ': [EW]: ' "$work/rpmlint" || bad 'rpmlint warns'
	local page renderer
	for page in "$work"/deb-*/usr/share/man/*/*.gz; do
		gunzip -c "$page" | mandoc -T lint -W error || bad "$page"
		for renderer in 'mandoc -T ascii -O width=80' 'groff -m mdoc -T ascii -P -c -r LL=80n'; do
			# shellcheck disable=SC2086 # several words
			gunzip -c "$page" | $renderer | col -b -x >"$work/page" || bad "$renderer cannot show $page"
			! grep -E '.{81}' "$work/page" || bad "$renderer shows lines of $page with more than 80 columns"
		done
	done
}

# links TREE checks that the installed documents link only to installed files.
links() {
	local page link
	while IFS=: read -r page link; do
		link=${link#](} link=${link%%[#)]*}
		[[ -z $link || $link = http* || -e $1/$link || -e $(dirname "$page")/$link ]] || bad "$page links to $link"
	done < <(grep -roE '\]\([^) ]+\)' "$1/usr/share/doc/metalplug" --include='*.md')
}

# list TREE prints the mode and path of all files, except those that deb and rpm install at different places.
list() {
	(cd "$1" && find . ! -type d -printf '%m %P\n' | sed -e 's|share/zsh/[a-z-]*/|share/zsh/|' |
		grep -vE ' (usr/share/(doc|licenses|lintian|selinux)|etc/apparmor.d)/' | sort -k 2)
}

# families compares the deb with the rpm of each architecture.
families() {
	local deb arch machine rpm name
	for deb in "$dist"/metalplug{,-dra}_*.deb; do
		name=${deb##*/} name=${name%%_*}
		arch=${deb##*_} arch=${arch%.deb}
		case $arch in amd64) machine=x86_64 ;; arm64) machine=aarch64 ;; esac
		rpm=$(echo "$dist/$name"-[0-9]*."$machine".rpm)
		arch=$arch-$name
		mkdir "$work/deb-$arch" "$work/rpm-$arch"
		dpkg-deb -x "$deb" "$work/deb-$arch"
		(cd "$work/rpm-$arch" && rpm2cpio "$rpm" | cpio -idm --quiet)
		diff <(list "$work/deb-$arch") <(list "$work/rpm-$arch") || bad "deb and rpm of $arch have different files"
		diff -r "$work/deb-$arch/usr/lib" "$work/rpm-$arch/usr/lib" || bad "units of $arch differ"
		[[ $(rpm -qp --configfiles "$rpm" | grep -v '^(') = $(dpkg-deb --ctrl-tarfile "$deb" | tar -xO ./conffiles 2>/dev/null | grep -v '^/etc/apparmor.d/') ]] || bad "configuration of $arch differs"
		(($(dpkg-deb -f "$deb" Installed-Size) <= installed[$name])) || bad "$deb has more than ${installed[$name]} KiB: see Size in docs/packages.md"
		if [[ $name = metalplug-dra ]]; then
			MODULE=daemon/dra PACKAGES=./metalplug-dra licences "$name" "$work/deb-$arch" "$rpm"
		else
			[[ $(rpm -qp --conflicts "$rpm") = "metalplug-selinux < $(rpm -qp --qf '%{VERSION}' "$rpm")" ]] || bad "$rpm allows an older SELinux module"
			sizes "$work/deb-$arch"
			licences "$name" "$work/deb-$arch" "$rpm"
			links "$work/deb-$arch"
		fi
		# The programs must not contain a path of the machine that built them.
		! grep -rlF -e "$PWD" -e "${HOME%/}/" "$work/deb-$arch"/usr/*bin || bad 'a path of this machine is in a program'
	done
}

# sizes TREE checks that each program is within its limit.
sizes() {
	local program size
	for program in "$1"/usr/{sbin,bin,libexec/metalplug}/metalplug*; do
		size=$(($(stat -c %s "$program") / 1024))
		((size <= ${sizes[${program##*/}]:-0})) || bad "$program has $size KiB: see Size in docs/packages.md"
	done
}

# licences PACKAGE TREE RPM checks that the rpm names the licence of each module in the programs, and debian/copyright the module.
licences() {
	local module docs=$2/usr/share/doc/$1 programs
	local -a modules
	programs=$(find "$2"/usr/*bin "$2"/usr/libexec -type f -size +1k 2>/dev/null || true)
	# shellcheck disable=SC2086 # several words
	mapfile -t modules < <(packaging/licences.sh modules $programs)
	[[ $(rpm -qp --qf '%{LICENSE}' "$3") = "$(packaging/licences.sh spdx "${modules[@]}")" ]] || bad "$3 names other licences than $(packaging/licences.sh spdx "${modules[@]}")"
	for module in "${modules[@]}"; do
		grep -qxF "Files: ${MODULE:+$MODULE/}vendor/${module%@*}/*" "$docs/copyright" || bad "debian/copyright lacks $module"
	done
	# Scanners look for SBOMs with the suffix .cdx.json in this directory.
	jq -es --arg commit "$(packaging/epoch.sh hash)" 'all(.[]; .metadata.component.pedigree.commits[0].uid == $commit and
		([.metadata.component, .components[]] | all(.supplier.name and .purl)) and any(.components[]; .purl | startswith("pkg:golang/stdlib@1.")))' \
		"$docs"/sbom/*.cdx.json >/dev/null || bad 'an SBOM has no commit, or lacks the supplier or the purl of a component'
}

# installs installs the rpms for this machine's architecture into an empty tree, verifies them, and removes them. With root,
# it also runs their scripts.
installs() {
	local root=$work/root left
	local -a rpms=("$dist"/metalplug{,-dra}-[0-9]*."$(uname -m)".rpm)
	[[ -e ${rpms[0]} ]] || return 0
	mkdir "$root"
	rpm --root "$root" --initdb
	rpm --root "$root" --nodeps --noscripts -i "${rpms[@]}" || bad 'rpm -i'
	rpm --root "$root" --nodeps -V metalplug metalplug-dra || bad 'rpm -V'
	echo '# changed' >>"$root/etc/metalplug/metalplug.toml"
	rpm --root "$root" --nodeps --noscripts -e metalplug metalplug-dra || bad 'rpm -e'
	[[ $(cd "$root" && find etc/metalplug* usr -type f) = etc/metalplug/metalplug.toml.rpmsave ]] || bad 'rpm -e leaves something, or takes what was edited'
	left=$(find "$root/usr" -type d | grep -E 'metalplug|zsh|fish|bash-completion' || true)
	[[ -z $left ]] || bad "rpm -e leaves directories that no package owns: $left"
	((EUID != 0)) || packaging/rpm-scripts.sh "${rpms[@]}" || bad rpm-scripts.sh
}

# repositories checks that two runs of repo.sh give the same files with any umask, that every user can read them, and
# that apt finds the package for this machine.
repositories() {
	local root=$work/repo
	local -a option
	(umask 077 && packaging/repo.sh "$dist" "$root" && cp -a "$root" "$root.first") >/dev/null
	sleep 1 # the dates in the indices have a resolution of one second
	packaging/repo.sh "$dist" "$root" >/dev/null
	diff -r "$root.first" "$root" || bad 'a second run of repo.sh gives other indices'
	[[ -z $(find "$root" ! -perm -444 -o -type d ! -perm -111) ]] || bad 'a file of the repository is not readable for all'
	mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
	sed "s|file:///srv/mirror/metalplug|file://$root|" "$root/apt/metalplug.sources" >"$work/apt/metalplug.sources"
	option=(-o Dir::Etc::SourceParts=/nowhere -o Dir::Etc::SourceList="$work/apt/metalplug.sources" -o Dir::State::lists="$work/apt/lists"
		-o Dir::Cache="$work/apt/cache" -o APT::Sandbox::User=root)
	apt-get "${option[@]}" -qq update || bad 'apt cannot read the repository'
	apt-cache "${option[@]}" policy metalplug | grep -q "file://\|file:/" || bad 'apt finds no metalplug in the repository'
}

# again builds the packages of this machine's architecture a second time. It builds a copy without git in another directory,
# as from a tarball, and in an environment that would select other programs and modes.
again() {
	local arch differing
	arch=$(go env GOHOSTARCH)
	cp -r . "$work/elsewhere"
	rm -rf "$work/elsewhere/dist" "$work/elsewhere/.git"
	sed -i "s/^commit='.*/commit='${SOURCE_DATE_EPOCH:-$(packaging/epoch.sh)} $(packaging/epoch.sh hash)'/" "$work/elsewhere/packaging/epoch.sh"
	umask 077
	unset SOURCE_DATE_EPOCH
	ARCHES=$arch GOAMD64=v3 GOFLAGS=-tags=elsewhere GOFIPS140=v1.0.0 GOWORK=/nowhere TZ=Pacific/Kiritimati LC_ALL=C.UTF-8 "$work/elsewhere/packaging/packages.sh" "$work/again" "$@" >/dev/null 2>"$work/again.log" || {
		cat "$work/again.log" >&2
		return 1
	}
	differing=$(grep -vxF -f "$dist/SHA256SUMS" "$work/again/SHA256SUMS" || true)
	[[ -z $differing && -s $work/again/SHA256SUMS ]] || bad "a second build gives other bytes: $differing"
}

families
linters
installs
repositories
debs=("$dist"/metalplug{,-dra}_*_"$(dpkg --print-architecture)".deb "$dist"/metalplug-selinux_*.deb)
if [[ ! -e ${debs[0]} ]] || ((EUID != 0)); then
	echo 'check.sh: purge.sh is skipped: it needs root, and debs for this machine'
else
	packaging/purge.sh "${debs[@]}" || bad purge.sh
fi
if [[ ${1:-} = --again ]]; then
	shift
	again "$@"
fi
((status)) || echo "$(wc -l <"$dist/SHA256SUMS") files are correct"
exit "$status"

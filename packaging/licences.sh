#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints the licences of Go modules, from vendor/ if it exists, otherwise from the module cache.
#
#   licences.sh notices MODULE@VERSION...    the text of each licence and notice
#   licences.sh copyright MODULE@VERSION...  paragraphs of debian/copyright, in the format of its first line
#   licences.sh spdx MODULE@VERSION...       the SPDX expression for the programs: our licence, Go's and theirs
#   licences.sh modules PROGRAM...           the modules that the linker wrote into the programs
#
# PACKAGES are the Go packages whose licences are needed (default: ./cmd/...). For a source package, use "-test ./...".
# MODULE is the directory of their module (default: the root of the repository).
#
# Exit status: 1 if a module has no licence, or a licence that this script does not know.
set -euo pipefail
cd "$(dirname "$0")/../${MODULE:-.}"

die() {
	echo "licences.sh: $*" >&2
	exit 1
}

# directory MODULE@VERSION prints the directory of the module.
directory() {
	if [[ -d vendor ]]; then
		echo "$PWD/vendor/${1%@*}"
	else
		go list -m -f '{{.Dir}}' "${1%@*}"
	fi
}

# The directories of all packages in PACKAGES. A directory in a module may have its own licence.
# shellcheck disable=SC2086 # several words
packages=$(go list -deps -f '{{if .Module}}{{.Dir}}{{end}}' ${PACKAGES:-./cmd/...})

# files MODULE@VERSION PATTERN... prints the files in the module's directories, from its root to the needed packages.
files() {
	local dir below pattern
	dir=$(directory "$1")
	shift
	{
		echo "$dir"
		{ grep -F "$dir/" <<<"$packages" || true; } | while read -r below; do
			while [[ $below != "$dir" ]]; do
				echo "$below"
				below=${below%/*}
			done
		done
	} | sort -u | while read -r below; do
		for pattern; do
			compgen -G "$below/$pattern" || true
		done
	done | sort
}

# spdx FILE prints the identifier of the file's licence.
spdx() {
	local text
	text=$(tr -s '[:space:]' ' ' <"$1")
	case $text in
	*'Apache License'*'Version 2.0'*) echo Apache-2.0 ;;
	*'Permission is hereby granted, free of charge'*) echo MIT ;;
	*'Permission to use, copy, modify, and/or distribute'* | *'Permission to use, copy, modify, and distribute'*) echo ISC ;;
	*'Redistribution and use in source and binary forms'*[Nn]'either the name'*) echo BSD-3-Clause ;;
	*'Redistribution and use in source and binary forms'*) echo BSD-2-Clause ;;
	*) die "unknown licence in $1" ;;
	esac
}

# expression MODULE@VERSION... prints the licences of the modules, joined by AND.
expression() {
	local module file
	for module; do
		[[ -n $(files "$module" 'LICEN[CS]E*' license.md 'COPYING*') ]] || die "no licence in $(directory "$module")"
		for file in $(files "$module" 'LICEN[CS]E*' license.md 'COPYING*'); do
			spdx "$file"
		done
	done | sort -u | paste -sd '&' | sed 's/&/ AND /g'
}

# holders MODULE@VERSION prints the copyright holders, from the licence or else from the heads of the source files.
holders() {
	local dir found
	dir=$(directory "$1")
	found=$(files "$1" 'LICEN[CS]E*' license.md 'COPYING*' 'NOTICE*' | xargs grep -hE '^[ #/*]*(Portions )?Copyright .*[0-9]{4}' || true)
	[[ -n $found ]] || found=$(grep -rhE --include='*.go' --include='*.proto' '^[ #/*]*Copyright .*[0-9]{4}' "$dir" || true)
	[[ -n $found ]] || found="the authors of ${1%@*}"
	sed -E 's/^[^[:alnum:]]*//; s/^(Portions )?Copyright( \((c|C)\)| ©)?:? *//; s/,? *All [Rr]ights [Rr]eserved\.?.*//; s/[[:space:]]+$//' <<<"$found" | sort -u
}

mode=${1:?usage: licences.sh notices|copyright|spdx|modules ...}
shift
case $mode in
modules) for program; do go version -m "$program"; done | awk '$1 == "dep" { print $2 "@" $3 }' | grep -v '^github.com/metalplug/metalplug@' | sort -u ;;
spdx) { echo Apache-2.0 BSD-3-Clause | tr ' ' '\n' && expression "$@" | sed 's/ AND /\n/g'; } | sort -u | paste -sd '&' | sed 's/&/ AND /g' ;;
notices)
	echo 'The programs of metalplug contain the modules below, under these licences, and the runtime and standard library'
	echo 'of Go, whose licence is that of golang.org/x/sys.'
	for module; do
		found=$(files "$module" 'LICEN[CS]E*' license.md 'COPYING*' 'NOTICE*')
		[[ -n $found ]] || die "no licence in $(directory "$module")"
		printf '\n%s\n%s\n%s\n' "${rule:=$(printf '=%.0s' {1..80})}" "$module" "$rule"
		for file in $found; do
			echo
			cat "$file"
		done
	done
	;;
copyright)
	for module; do
		licence=$(expression "$module" | sed 's/ AND / and /g')
		printf '\nFiles: %svendor/%s/*\nCopyright: %s\nLicense: %s\n' "${MODULE:+$MODULE/}" "${module%@*}" "$(holders "$module" | sed '2,$s/^/ /')" "$licence"
		# Print licences in full, once per module, if /usr/share/common-licenses lacks them. Their texts name the holder.
		for file in $(files "$module" 'LICEN[CS]E*' license.md 'COPYING*'); do
			[[ $(spdx "$file") != Apache-2.0 ]] || continue
			sed -E 's/[[:space:]]+$//; s/^$/./; s/^/ /' "$file"
		done
		case $licence in *Apache-2.0*) echo ' On Debian systems, the text of Apache-2.0 is in /usr/share/common-licenses/Apache-2.0.' ;; esac
	done
	;;
*) die "unknown mode $mode: must be notices, copyright, spdx or modules" ;;
esac

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Writes the SBOM of each program, as CycloneDX in JSON, from what the Go linker has written into the program, and one
# file NOTICES with the licences of all modules. The same programs give the same bytes.
#
#   sbom.sh DIRECTORY PROGRAM...
#
# VERSION            of the programs
# SOURCE_DATE_EPOCH  the time of the SBOMs
set -euo pipefail
cd "$(dirname "$0")/.."
out=$1
shift
mkdir -p "$out"
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
# The SBOM contains the hash of the tool: -trimpath makes that independent of the machine.
GOBIN=$tools CGO_ENABLED=0 go install -trimpath github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.9.0

mapfile -t modules < <(for program; do go version -m "$program"; done | awk '$1 == "dep" { print $2 "@" $3 }' | sort -u)

for program; do
	sbom=$out/${program##*/}.cdx.json
	# Without -licenses, which asks the network for our own module: NOTICES has the licences in full.
	"$tools/cyclonedx-gomod" bin -json -std -noserial -version "${VERSION:?}" -output "$sbom" "$program"
	sed -i "0,/\"timestamp\": \"/s/\(\"timestamp\": \"\)[^\"]*/\1$(date -u -d "@$SOURCE_DATE_EPOCH" +%FT%TZ)/" "$sbom"
done

{
	echo "The programs of metalplug contain the modules below, under these licences, and the runtime and standard library"
	echo "of Go, whose licence is that of golang.org/x/sys."
	for module in "${modules[@]}"; do
		licences=()
		for file in "$(go list -m -f '{{.Dir}}' "${module%@*}")"/{LICENSE,LICENCE,COPYING,NOTICE}*; do
			[ ! -f "$file" ] || licences+=("$file")
		done
		[ ${#licences[@]} -gt 0 ] || {
			echo "sbom.sh: find the licence of $module: no such file in its directory" >&2
			exit 1
		}
		printf '\n%s\n%s\n%s\n' "${rule:=$(printf '=%.0s' {1..80})}" "$module" "$rule"
		for file in "${licences[@]}"; do
			echo
			cat "$file"
		done
	done
} >"$out/NOTICES"

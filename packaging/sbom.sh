#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Writes the SBOM of each program as CycloneDX in JSON, from the module list that the Go linker has written into the
# program. It also writes the licences of all modules, as text (NOTICES) and as paragraphs for debian/copyright. The same
# programs give the same bytes.
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
# The SBOM contains the hash of the tool, which -trimpath makes independent of the machine.
GOBIN=$tools CGO_ENABLED=0 GOFLAGS=-trimpath GOAMD64=v1 GOARM64=v8.0 GOEXPERIMENT='' go install github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.9.0

# A tarball from another tool than git has no commit.
commit=$(packaging/epoch.sh hash 2>/dev/null) || commit=
for program; do
	sbom=$out/${program##*/}.cdx.json
	# Without -licenses, which looks up our own module on the network. NOTICES has the licences in full.
	"$tools/cyclonedx-gomod" bin -json -std -noserial -version "${VERSION:?}" -output "$sbom" "$program"
	# The tool does not know suppliers and commits. Scanners know Go's standard library as stdlib, not std.
	jq --arg time "$(date -u -d "@$SOURCE_DATE_EPOCH" +%FT%TZ)" --arg commit "$commit" '.metadata.timestamp = $time |
		.metadata.component |= (.supplier.name = "The metalplug authors" |
			if $commit == "" then . else .pedigree.commits = [{uid: $commit}] end) |
		.components[] |= (if .name == "std" then .name = "stdlib" | .supplier.name = "The Go authors" |
			.purl |= sub("/std@go"; "/stdlib@") else .supplier.name = (.name | split("/")[:2] | join("/")) end)' "$sbom" >"$tools/sbom"
	install -m 644 "$tools/sbom" "$sbom"
done

mapfile -t modules < <(packaging/licences.sh modules "$@")
packaging/licences.sh notices "${modules[@]}" >"$out/NOTICES"
packaging/licences.sh copyright "${modules[@]}" >"$out/copyright"

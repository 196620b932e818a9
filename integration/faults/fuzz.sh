#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs each fuzz target of the module, one after the other: fuzz.sh TIME, such as 60s. What is found is kept in
# testdata/fuzz of the package, where "go test" tries it from then on.
set -euo pipefail
cd "$(dirname "$0")/../.."

time=${1:?usage: fuzz.sh TIME}
targets=0
for package in $(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...); do
	for target in $(go test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
		echo "== $package $target"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$package" | grep -v '^fuzz: elapsed:' || exit 1
		targets=$((targets + 1))
	done
done
echo "$targets targets, $time each"
[ "$targets" -gt 0 ]

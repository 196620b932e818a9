#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# fuzz.sh TIME runs each fuzz target of the module for a time such as 60s, one after the other. It stores failing inputs in
# testdata/fuzz of the package, so that "go test" tries them from then on. It shows the last line of a target's progress.
set -euo pipefail
cd "$(dirname "$0")/../.."

time=${1:?usage: fuzz.sh TIME}
# Work in memory, because a busy disk may stall for longer than Go allows for one input.
TMPDIR=$(mktemp -d -p /dev/shm metalplug-fuzz-XXXXXX)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
log=$TMPDIR/log

# Go 1.26 sometimes reports the end of the time as a failure, without a failing input (golang/go#75804).
only_over() {
	awk '/^--- FAIL: / { inside = 1; next } /^FAIL$/ { inside = 0 } inside { said = said $0 "\n" }
		END { exit said != "    context deadline exceeded\n" }' "$log"
}

targets=0
packages=$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...)
for package in $packages; do
	listed=$(go test -list '^Fuzz' "$package") # fails if the package does not compile
	for target in $(grep '^Fuzz' <<<"$listed" || true); do
		echo "== $package $target"
		failed=
		# Do not minimise new inputs, because Go may take a minute for each, which is the whole time.
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 0x "$package" >"$log" 2>&1 || failed=yes
		awk '/^fuzz: elapsed:/ { last = $0; next } { print } END { print last }' "$log"
		[ -z "$failed" ] || only_over || exit 1
		targets=$((targets + 1))
	done
done
echo "$targets targets, $time each"
[ "$targets" -gt 0 ]

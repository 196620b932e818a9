#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs each fuzz target of the module, one after the other: fuzz.sh TIME, such as 60s. What is found is kept in
# testdata/fuzz of the package, where "go test" tries it from then on. Of a target's progress the last line is shown.
set -euo pipefail
cd "$(dirname "$0")/../.."

time=${1:?usage: fuzz.sh TIME}
# In memory: a disk that others write to may stand still for longer than Go allows one input.
TMPDIR=$(mktemp -d -p /dev/shm metalplug-fuzz-XXXXXX)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
log=$TMPDIR/log

# Go 1.26 takes it for a failure now and then that the time is over, without an input that fails (golang/go#75804).
only_over() {
	awk '/^--- FAIL: / { inside = 1; next } /^FAIL$/ { inside = 0 } inside { said = said $0 "\n" }
		END { exit said != "    context deadline exceeded\n" }' "$log"
}

targets=0
packages=$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...)
for package in $packages; do
	listed=$(go test -list '^Fuzz' "$package") # one that does not compile has no targets, and ends this
	for target in $(grep '^Fuzz' <<<"$listed" || true); do
		echo "== $package $target"
		failed=
		# What is new is not made smaller first, which Go may take a minute for each time: nothing would be left of a minute.
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 0x "$package" >"$log" 2>&1 || failed=yes
		awk '/^fuzz: elapsed:/ { last = $0; next } { print } END { print last }' "$log"
		[ -z "$failed" ] || only_over || exit 1
		targets=$((targets + 1))
	done
done
echo "$targets targets, $time each"
[ "$targets" -gt 0 ]

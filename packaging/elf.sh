#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Checks the hardening of programs, and their requirements on the machine that runs them.
#
#   elf.sh PROGRAM...
#
# The oldest supported glibc is that of RHEL 9. Debian 12 and Ubuntu 22.04 have newer ones.
set -eu

glibc=2.34
needed='libc.so.6|ld-linux-(x86-64.so.2|aarch64.so.1)'
status=0

bad() {
	echo "elf.sh: $program: $*" >&2
	status=1
}

for program; do
	header=$(readelf -hW "$program")
	dynamic=$(readelf -dW "$program")
	segments=$(readelf -lW "$program")
	newest=$(readelf --dyn-syms -W "$program" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -n 1)
	echo "$header" | grep -q 'Type: *DYN' || bad 'not position independent'
	echo "$segments" | grep -q GNU_RELRO || bad 'no RELRO'
	echo "$dynamic" | grep -Eq 'BIND_NOW|NOW' || bad 'RELRO is partial'
	echo "$segments" | grep -E 'GNU_STACK' | grep -q 'RW ' || bad 'the stack is executable'
	! echo "$dynamic" | grep -E 'RPATH|RUNPATH' || bad 'RPATH or RUNPATH is set'
	# Only the daemon may load libudev, because the other programs run with privileges.
	allowed=$needed
	[ "${program##*/}" != metalplugd ] || allowed="$needed|libudev.so.1"
	other=$(echo "$dynamic" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vxE "$allowed" || true)
	[ -z "$other" ] || bad "it needs $other"
	[ -n "$newest" ] || bad 'it names no version of glibc'
	[ "$(printf '%s\n%s\n' "$glibc" "$newest" | sort -V | tail -n 1)" = "$glibc" ] || bad "requires glibc $newest: must be at most $glibc"
	echo "$program: $(stat -c %s "$program") bytes, glibc $newest"
done
exit "$status"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Compiles the module for the policy whose headers are installed, and checks what the module allows, see check.sh.
set -eu
cd "$(dirname "$0")"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp metalplug.te metalplug.fc metalplug.if "$work"
make -s -C "$work" -f /usr/share/selinux/devel/Makefile NAME=default metalplug.pp
./check.sh "$work/metalplug.pp"

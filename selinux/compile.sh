#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Compiles the module for the policy whose headers this machine has, and checks its rights with check.sh. Then it builds the
# module for Fedora and RHEL.
set -eu
cd "$(dirname "$0")"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp metalplug.te metalplug.fc metalplug.if "$work"
make -s -C "$work" -f /usr/share/selinux/devel/Makefile NAME=default metalplug.pp
./check.sh "$work/metalplug.pp"
./fedora.sh

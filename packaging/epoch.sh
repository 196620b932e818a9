#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Prints the time of the last commit in seconds since 1970. "git archive" writes it into this file (gitattributes(5),
# export-subst), so that a tarball without git also has the time.
set -eu

# shellcheck disable=SC2016 # git replaces it
time='$Format:%ct$'
case $time in
[0-9]*) echo "$time" ;;
*) git -C "$(dirname "$0")" log -1 --format=%ct ;;
esac

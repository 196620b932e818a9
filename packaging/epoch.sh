#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Prints the time of the last commit in seconds since 1970, or its hash. "git archive" writes both into this file
# (gitattributes(5), export-subst), so that a tarball without git also has them.
#
#   epoch.sh [hash]
set -eu

# shellcheck disable=SC2016 # git replaces it
commit='$Format:%ct %H$'
case $commit in
[0-9]*) ;;
*) commit=$(git -C "$(dirname "$0")" log -1 --format='%ct %H') ;;
esac
case ${1:-} in
hash) echo "${commit#* }" ;;
*) echo "${commit% *}" ;;
esac

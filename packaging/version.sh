#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints the version of the packages. This is VERSION, or a version below every release, made from SOURCE_DATE_EPOCH.
set -euo pipefail

version=${VERSION:-}
if [[ -z $version || $version = unreleased ]]; then
	version=0.0.0~$(date -u -d "@${SOURCE_DATE_EPOCH:?}" +%Y%m%d%H%M%S)
fi
[[ $version =~ ^[0-9][A-Za-z0-9.+~]*$ ]] || {
	echo "version.sh: invalid VERSION $version: must begin with a digit and have only letters, digits and . + ~" >&2
	exit 2
}
echo "$version"

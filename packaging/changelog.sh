#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Writes Debian's changelog, and the name of the maintainer into the file control.
#
#   changelog.sh DEBIAN    the directory debian/
#
# VERSION, MAINTAINER, SOURCE_DATE_EPOCH as for packages.sh.
set -eu

sed -i "s/@MAINTAINER@/$MAINTAINER/" "$1/control"
cat >"$1/changelog" <<END
metalplug ($VERSION-1) unstable; urgency=medium

  * See /usr/share/doc/metalplug/changelog.gz.

 -- $MAINTAINER  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")
END

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs everything but the SELinux module. metalplug-dra's files are installed only if PROGRAMS contains that program.
#
#   install.sh PROGRAMS DOCUMENTS ROOT
#
# PROGRAMS and DOCUMENTS are the directories that build.sh and docs.sh have filled. ROOT is prepended to each path.
# ZSH is the directory of zsh's completions (default: /usr/share/zsh/site-functions).
set -eu
cd "$(dirname "$0")/.."

programs=$1 documents=$2 root=$3
zsh=${ZSH:-/usr/share/zsh/site-functions}

put() { # put MODE FILE PATH
	install -D -m "$1" "$2" "$root$3"
}

install -d -m 0755 "$root/usr/libexec/metalplug"
# Other files in bin are from make cluster and make dra-sanity.
for program in "$programs"/metalplug*; do
	name=$(basename "$program")
	case $name in
	metalplugd) put 0755 "$program" "/usr/sbin/$name" ;;
	metalplugctl) put 0755 "$program" "/usr/bin/$name" ;;
	metalplug-dra) ;; # below
	metalplug-holders) put 0755 "$program" "/usr/libexec/metalplug/$name" ;;
	metalplug-reset | metalplug-unit) ;; # below
	*)
		echo "install.sh: no directory is known for program $program" >&2
		exit 1
		;;
	esac
done

# These helpers are scripts with metalplugctl as the interpreter. A script has its own path and its own label, from which the kernel
# chooses the helper's AppArmor profile or SELinux domain. A link would have neither.
for helper in metalplug-reset metalplug-unit; do
	printf '#!/usr/bin/metalplugctl %s\n' "$helper" >"$root/usr/libexec/metalplug/$helper"
	chmod 0755 "$root/usr/libexec/metalplug/$helper"
done

for unit in systemd/*.service systemd/*.socket systemd/*.target; do
	case $unit in */metalplug-dra.*) continue ;; esac
	put 0644 "$unit" "/usr/lib/systemd/system/$(basename "$unit")"
done
put 0644 systemd/metalplug.tmpfiles.conf /usr/lib/tmpfiles.d/metalplug.conf
put 0644 systemd/metalplug.sysusers.conf /usr/lib/sysusers.d/metalplug.conf
put 0644 systemd/70-metalplug.rules /usr/lib/udev/rules.d/70-metalplug.rules
put 0644 udev/60-metalplug.rules /usr/lib/udev/rules.d/60-metalplug.rules
put 0644 systemd/metalplug.catalog /usr/lib/systemd/catalog/metalplug.catalog
put 0644 README.md /usr/share/doc/metalplug/README.md
for page in docs/*.md docs/*.svg; do
	put 0644 "$page" "/usr/share/doc/metalplug/$page"
done
# Links to files that are not installed lead to the sources.
sed -i -e 's|](\.\./daemon/config/metalplug\.toml)|](/etc/metalplug/metalplug.toml)|' \
	-e 's|](\(\.\./\)\{0,1\}integration/|](https://github.com/metalplug/metalplug/blob/main/integration/|' \
	"$root"/usr/share/doc/metalplug/README.md "$root"/usr/share/doc/metalplug/docs/*.md
for example in alerts.yml dashboard.json scrape.yml; do
	put 0644 "packaging/prometheus/$example" "/usr/share/doc/metalplug/prometheus/$example"
done

# Keep a file that an administrator has changed.
install -d -m 0755 "$root/etc/metalplug/conf.d"
[ -e "$root/etc/metalplug/metalplug.toml" ] || put 0644 daemon/config/metalplug.toml /etc/metalplug/metalplug.toml

if [ -e "$programs/metalplug-dra" ]; then
	put 0755 "$programs/metalplug-dra" /usr/sbin/metalplug-dra
	put 0644 systemd/metalplug-dra.service /usr/lib/systemd/system/metalplug-dra.service
	put 0644 systemd/metalplug-dra.socket /usr/lib/systemd/system/metalplug-dra.socket
	put 0644 systemd/metalplug-dra.sysusers.conf /usr/lib/sysusers.d/metalplug-dra.conf
	put 0644 "$documents/metalplug-dra.8" /usr/share/man/man8/metalplug-dra.8
	for file in packaging/kubernetes/*; do
		put 0644 "$file" "/usr/share/doc/metalplug-dra/kubernetes/$(basename "$file")"
	done
	install -d -m 0700 "$root/etc/metalplug-dra"
fi

for page in "$documents"/*.[0-9]; do
	name=$(basename "$page")
	[ "$name" != metalplug-dra.8 ] || continue
	put 0644 "$page" "/usr/share/man/man${name##*.}/$name"
done
put 0644 "$documents/metalplugctl.bash" /usr/share/bash-completion/completions/metalplugctl
put 0644 "$documents/metalplugctl.zsh" "$zsh/_metalplugctl"
put 0644 "$documents/metalplugctl.fish" /usr/share/fish/vendor_completions.d/metalplugctl.fish

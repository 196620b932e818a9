#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests the debs of metalplug and metalplug-dra in a container for each release with its own systemd: install, upgrade,
# downgrade, remove and purge, and each of these on a system with a fault. Requires root.
#
#   distributions.sh OLDER NEWER SUITE...
#
# OLDER and NEWER are folders with packages of two versions. SUITE is bookworm, trixie, jammy or noble.
# shellcheck disable=SC2317 # must, fails and the like call functions by name
set -euo pipefail

# lives is the test, which runs in the container. Its exit status is the result.
lives() {
	local version=$1 selinux=$2 architecture from to pid driver repository
	export DEBIAN_FRONTEND=noninteractive
	architecture=$(dpkg --print-architecture)
	from=(/packages/older/metalplug{,-dra}_*_"$architecture".deb)
	to=(/packages/newer/metalplug{,-dra}_*_"$architecture".deb)

	bad() {
		echo "$suite: $*" >&2
		[[ ! -s /tmp/log ]] || tail -n 30 /tmp/log >&2
		journalctl --no-pager -n 20 -u 'metalplug*' >&2
		exit 1
	}
	step() { echo "$suite: $*"; }
	apt() { apt-get -y -q --allow-downgrades -o Dpkg::Options::=--force-confold "$@" >/tmp/log 2>&1; }
	must() { "$@" || bad "$*: exit status $?"; }
	# fails TEXT COMMAND... checks that the command fails and prints the text.
	fails() {
		! "${@:2}" || bad "${*:2}: it did not fail"
		grep -qi -- "$1" /tmp/log || bad "${*:2}: it does not say \"$1\""
	}
	active() {
		[[ $(systemctl is-active metalplugd metalplug-dra metalplug-dra.socket | sort -u) = active ]] || bad "a unit is not active after: $*"
	}
	offered() { # waits until the devices of the recording are offered
		local tries
		for ((tries = 0; tries < 60; tries++)); do
			metalplugctl status >/tmp/log 2>&1 || : # no kubelet runs
			! grep -q '^nvidia.com/gpu .*[78] of 8 healthy' /tmp/log || return 0
			sleep 1
		done
		bad "the recorded devices are not offered after: $*"
	}
	cordoned() { metalplugctl list | grep -q 'Cordoned\|cordoned' || bad "the cordon is lost after: $*"; }
	sound() { # checks the packages, the daemon, its devices and the cordon
		[[ -z $(dpkg --audit) ]] || bad "after $*: $(dpkg --audit)"
		active "$@"
		offered "$@"
		cordoned "$@"
	}
	tree() {
		find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /tmp -o -path /dev -o -path /packages -o -path /script -o -path /var/tmp \
			-o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/log -o -path /var/cache -o -path '/etc/*-' \) -prune \
			-o -printf '%p %y %m %U:%G %l\n' | sort
		cat /etc/{passwd,group,shadow,gshadow}
	}
	# full COMMAND... runs a command while the disk is full.
	full() {
		local status=0
		cat /dev/zero >/fill 2>/dev/null || :
		"$@" || status=$?
		rm /fill
		return "$status"
	}
	# readonly_etc COMMAND... runs a command while /etc is read-only.
	readonly_etc() {
		local status=0
		mount --bind /etc /etc
		mount -o remount,bind,ro /etc
		"$@" || status=$?
		umount /etc
		return "$status"
	}

	mkdir /etc/kubernetes # of a kubelet whose API server does not answer
	echo '{"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}], "contexts": [{"name": "x", "context": {"cluster": "c"}}],
		"current-context": "x"}' >/etc/kubernetes/kubelet.conf
	tree >/tmp/before
	step 'install where policy-rc.d forbids to start services'
	printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
	chmod 755 /usr/sbin/policy-rc.d
	must apt install "${from[@]}"
	[[ $(systemctl is-active metalplugd) = inactive ]] || bad 'policy-rc.d did not keep metalplugd from its start'
	rm /usr/sbin/policy-rc.d

	step 'start, offer, cordon'
	mkdir -p /etc/metalplug/conf.d
	cp /script/gpu-server.umockdev /etc/metalplug/
	printf '[hardware]\nsource = "recording:gpu-server.umockdev"\n' >/etc/metalplug/conf.d/10-recording.toml
	echo '# edited' >>/etc/metalplug/metalplug.toml
	must systemctl start metalplugd
	offered start
	must metalplugctl cordon "$(metalplugctl list -o json | sed -n 's/.*"id": *"\(GPU-[^"]*\)".*/\1/p' | head -1)" --reason repair >/tmp/log 2>&1
	[[ $(systemctl is-enabled metalplug-dra) = disabled ]] || bad 'metalplug-dra is not off by default'
	echo token >/etc/metalplug-dra/token
	must systemctl enable --now metalplug-dra >/tmp/log 2>&1
	sound cordon

	step "systemd $(systemctl --version | sed -n 's/^systemd \([0-9]*\).*/\1/p'): exposure of the units"
	systemd-analyze --no-pager security 2>/dev/null | grep metalplug
	systemd-analyze --man=no verify /usr/lib/systemd/system/metalplug*.{service,socket,target} 2>&1 | grep metalplug | grep -v OpenFile && bad 'a unit is not valid'

	step 'upgrade and downgrade'
	pid=$(systemctl show -P MainPID metalplugd) driver=$(systemctl show -P MainPID metalplug-dra)
	repository=(-o Dir::Etc::SourceParts=/nowhere -o Dir::Etc::SourceList=/script/metalplug.sources -o APT::Sandbox::User=root)
	must apt "${repository[@]}" update
	must apt "${repository[@]}" upgrade
	[[ $(systemctl show -P MainPID metalplugd) != "$pid" ]] || bad 'the upgrade did not restart metalplugd'
	[[ $(systemctl show -P MainPID metalplug-dra) != "$driver" ]] || bad 'the upgrade did not restart metalplug-dra'
	[[ $(metalplugd --version) = *"$version"* ]] || bad "metalplugd is $(metalplugd --version), not $version"
	grep -qx '# edited' /etc/metalplug/metalplug.toml || bad 'the upgrade replaced an edited file'
	sound upgrade
	must apt install "${from[@]}"
	sound downgrade

	step 'a masked unit'
	systemctl stop metalplugd
	systemctl mask metalplugd 2>/dev/null
	must apt install "${to[@]}"
	[[ $(systemctl is-active metalplugd) = inactive ]] || bad 'the upgrade started a masked unit'
	systemctl unmask metalplugd 2>/dev/null
	systemctl start metalplugd
	sound 'a masked unit'

	step 'a full disk'
	fails 'no space left' full apt install "${from[@]}"
	must apt install "${to[@]}"
	sound 'a full disk'
	must dpkg --unpack "${to[@]}" >/tmp/log 2>&1
	full dpkg --configure metalplug >/tmp/log 2>&1 || :
	must dpkg --configure -a >/tmp/log 2>&1
	systemctl start metalplugd
	sound 'a full disk while the package is configured'

	step 'a read-only /etc'
	fails 'read-only file system' readonly_etc apt install --reinstall "${to[@]}"
	must apt install --reinstall "${to[@]}"
	sound 'a read-only /etc'

	step 'SELinux module'
	if [[ $selinux = yes ]]; then
		must apt install /packages/newer/metalplug-selinux_*_all.deb
		semodule -l | grep -qx metalplug || bad 'the SELinux module is not in the store'
		must apt purge metalplug-selinux
		! semodule -l | grep -qx metalplug || bad 'the SELinux module is still in the store'
	else
		fails 'policycoreutils' apt install /packages/newer/metalplug-selinux_*_all.deb
	fi
	sound 'the SELinux module'

	step 'remove and purge'
	full apt remove metalplug || :
	must apt remove metalplug
	! systemctl list-units --all --plain --no-legend 'metalplug*' | grep -v not-found || bad 'units are left'
	! pgrep -l metalplug || bad 'a process is left'
	[[ -e /var/lib/metalplug/state.json && -e /etc/metalplug/metalplug.toml && -e /etc/metalplug-dra/token ]] ||
		bad 'a removal took the state, the configuration or the token'
	must apt purge metalplug metalplug-dra
	tree >/tmp/after
	diff /tmp/before /tmp/after || bad 'a purge leaves something, or took what was not its own'
	step passed
}

if [[ ${1:-} = --inside ]]; then
	suite=$2
	lives "$3" "$4"
	exit
fi

if [[ -z ${METALPLUG_DISTRIBUTIONS_WORK:-} ]]; then # the mounts end with the namespace
	METALPLUG_DISTRIBUTIONS_WORK=$(mktemp -d)
	export METALPLUG_DISTRIBUTIONS_WORK
	trap 'rm -rf "$METALPLUG_DISTRIBUTIONS_WORK"' EXIT
	unshare --mount "$0" "$@"
	exit
fi
work=$METALPLUG_DISTRIBUTIONS_WORK
older=$(realpath "$1") newer=$(realpath "$2")
shift 2
cd "$(dirname "$0")/.."
version=$(dpkg-deb -f "$newer"/metalplug_*_"$(dpkg --print-architecture)".deb Version)
printf '[Unit]\nWants=lives.service\n' >"$work/lives.conf"
cp packaging/distributions.sh udev/recording/bundled/gpu-server.umockdev "$work/"
# The upgrade uses a repository with both versions.
mkdir -p "$work/repo/apt/pool"
cp "$older"/*.deb "$work/repo/apt/pool"
packaging/repo.sh "$newer" "$work/repo" >/dev/null
sed 's|file:///srv/mirror/metalplug|file:///script/repo|' "$work/repo/apt/metalplug.sources" >"$work/metalplug.sources"

# in_container SUITE boots the release and prints the output of its test.
in_container() {
	local tree packages=(apparmor apt) selinux=no
	if [[ $1 != jammy ]]; then # the policy of jammy is too old for the module
		selinux=yes packages+=(policycoreutils selinux-policy-default selinux-utils)
	fi
	tree=$(integration/sandbox/tree.sh "$1" "${packages[@]}")
	mkdir "$work/$1" "$work/$1.changes"
	mount -t tmpfs -o size=1G tmpfs "$work/$1.changes"
	mkdir "$work/$1.changes"/{upper,work,root}
	mount -t overlay -o "lowerdir=$tree,upperdir=$work/$1.changes/upper,workdir=$work/$1.changes/work" overlay "$work/$1.changes/root"
	cat >"$work/$1/lives.service" <<-END
		[Unit]
		Description=Life of the package
		[Service]
		Type=oneshot
		ExecStart=/bin/sh -c 'bash /script/distributions.sh --inside $1 ${version%-*} $selinux >/out/log 2>&1; echo \$\$? >/out/status'
		ExecStopPost=systemctl --no-block exit
	END
	SYSTEMD_NSPAWN_API_VFS_WRITABLE=1 SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 timeout 900 \
		systemd-nspawn --quiet --directory "$work/$1.changes/root" --boot --register=no --keep-unit --private-network \
		--capability=all --machine="life-$1" --console=pipe --system-call-filter=bpf --bind="$work/$1:/out" \
		--bind-ro="$work:/script" --bind-ro="$older:/packages/older" --bind-ro="$newer:/packages/newer" \
		--bind-ro="$work/$1/lives.service:/etc/systemd/system/lives.service" \
		--bind-ro="$work/lives.conf:/etc/systemd/system/multi-user.target.d/lives.conf" </dev/null >"$work/$1/console" 2>&1 || :
	cat "$work/$1/log" || cat "$work/$1/console"
	[[ $(cat "$work/$1/status") = 0 ]]
}

for suite in "$@"; do
	in_container "$suite"
done

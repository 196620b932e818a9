#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Compares the domains' rights with the lists in this script. Every right that is not in a list is a finding.
#
#   check.sh MODULE        links MODULE.pp into the policy of this distribution, and checks the result
#   check.sh --policy FILE checks a binary policy, such as /etc/selinux/targeted/policy/policy.33
#   check.sh --own FILE    does the same, but counts only rules for the types of the domains and for metalplugd_domain. The
#                          base policies of Fedora and RHEL grant every daemon rights that are not in the lists.
#
# Exit status 1: a right was found that is not in the lists. 2: the check failed.
# shellcheck disable=SC2317 # the lists are functions that are called by a name in a variable
set -euo pipefail

die() {
	echo "check.sh: $*" >&2
	exit 2
}

# The objects that a domain may change: class and types. A list may name types that a policy does not have.
#
# init_tmpfs_t is the type of systemd's own descriptors, which every daemon may inherit. The type named after the domain
# covers /proc/self and pipes. ?container_* and var_lib_t are the kubelet's directory.
changes() {
	cat <<-'END'
		metalplugd_t file metalplugd_t metalplugd_var_lib_t metalplugd_cdi_t init_tmpfs_t
		metalplugd_t dir metalplugd_var_lib_t metalplugd_runtime_t metalplugd_cdi_t
		metalplugd_t dir container_var_lib_t container_file_t var_lib_t var_run_t
		metalplugd_t sock_file metalplugd_runtime_t metalplugd_plugin_sock_t container_var_lib_t container_file_t
		metalplugd_t sock_file kubelet_var_lib_t var_lib_t systemd_runtime_notify_t
		metalplug_reset_t file metalplug_reset_t metalplug_sysfs_reset_t init_tmpfs_t
		metalplug_reset_t chr_file fixed_disk_device_t metalplug_dfl_device_t vfio_device_t
		metalplug_reset_t blk_file fixed_disk_device_t
		metalplug_reset_t file metalplug_locks_t
		metalplug_reset_t dir metalplug_locks_t
		metalplug_reset_t sock_file metalplugd_runtime_t
		metalplug_holders_t file metalplug_holders_t init_tmpfs_t
		metalplug_unit_t file metalplug_unit_t init_tmpfs_t metalplugd_cdi_t
		metalplug_unit_t dir metalplug_mounts_t metalplugd_cdi_t var_run_t
		metalplug_unit_t lnk_file metalplug_mounts_t
		metalplug_dra_t file metalplug_dra_t init_tmpfs_t
		metalplug_dra_t sock_file metalplugd_claims_sock_t systemd_runtime_notify_t
	END
	local domain
	for domain in "${domains[@]}"; do
		echo "$domain dir $domain" # /proc/self, in the base policy of Debian 13
		echo "$domain fifo_file $domain init_t initrc_t"
		echo "$domain chr_file null_device_t zero_device_t urandom_device_t random_device_t devtty_t console_device_t"
		echo "$domain chr_file initrc_devpts_t" # of a service that has a terminal, in the base policy of refpolicy
		# Connecting to a socket, such as the journal's or the service manager's, requires write permission.
		echo "$domain sock_file devlog_t syslogd_runtime_t syslogd_var_run_t init_runtime_t init_var_run_t"
		echo "$domain sock_file nscd_runtime_t nscd_var_run_t setrans_runtime_t setrans_var_run_t"
	done
}

# The devices that a domain may open besides null, zero, random and the console. Login terminals are not among them.
opens() {
	cat <<-'END'
		metalplug_reset_t chr_file fixed_disk_device_t metalplug_dfl_device_t vfio_device_t
		metalplug_reset_t blk_file fixed_disk_device_t
	END
	local domain
	for domain in "${domains[@]}"; do
		echo "$domain chr_file null_device_t zero_device_t urandom_device_t random_device_t devtty_t console_device_t"
		echo "$domain chr_file initrc_devpts_t" # of a service that has a terminal, in the base policy of refpolicy
	done
}

# The files that a domain may execute: its own program and libraries.
executes() {
	local domain
	for domain in "${domains[@]}"; do
		echo "$domain file ${domain%_t}_exec_t lib_t ld_so_t textrel_shlib_t"
	done
}

# The files that a domain may map as code. Two domains map the interpreter of their scripts, but may not start it.
maps() {
	executes
	echo 'metalplug_reset_t file bin_t'
	echo 'metalplug_unit_t file bin_t'
}

# A domain's capabilities, in all capability classes.
capabilities() {
	cat <<-'END'
		metalplug_reset_t capability sys_admin
		metalplug_holders_t capability dac_read_search sys_ptrace
		metalplug_holders_t cap_userns sys_ptrace
		metalplug_holders_t capability2 checkpoint_restore
	END
	# Fedora grants it with the attribute fixed_disk_raw_write. The unit removes it (CapabilityBoundingSet=).
	((${#direct[@]} == 0)) || echo 'metalplug_reset_t capability mknod'
}

# The rights that no domain may have on any type: the class ("-" for all) and the permissions.
never() {
	cat <<-'END'
		process ptrace,dyntransition,setexec,setcurrent,setfscreate,setsockcreate,execmem,execstack,execheap
		- relabelfrom,relabelto
		filesystem mount,remount,unmount,associate
		system module_load,module_request,reboot,halt
		security load_policy,setenforce,setbool,setsecparam,compute_create
		packet_socket,rawip_socket,tun_socket,vsock_socket create
		tcp_socket,udp_socket create
		netlink_route_socket,netlink_audit_socket,netlink_generic_socket create
		bpf prog_load,map_create
		perf_event open
		io_uring cmd,override_creds,sqpoll
		service start,stop,reload,enable,disable
	END
}

# A domain's ioctls. A domain may use none, or only those in the module, by domain, target and class.
xperms() {
	cat <<-'END'
		metalplug_reset_t fixed_disk_device_t chr_file
		metalplug_reset_t fixed_disk_device_t blk_file
		metalplug_reset_t metalplug_dfl_device_t chr_file
		metalplug_reset_t vfio_device_t chr_file
	END
}

# The file types on which metalplug-holders must be able to call stat(2). If it could not, it would not find an open device
# of that type.
looks() {
	echo 'unlabeled_t nfs_t fusefs_t autofs_t tmpfs_t device_t container_file_t'
}

domains=(metalplugd_t metalplug_reset_t metalplug_holders_t metalplug_unit_t metalplug_dra_t)
change=write,append,create,unlink,link,rename,setattr,add_name,remove_name,reparent,rmdir,mounton

# granted DOMAIN [OPTIONS] prints the allow rules that count for a domain.
granted() {
	sesearch -A "${direct[@]}" -s "$@" "$policy"
	((${#direct[@]} == 0)) || sesearch -A "${direct[@]}" -s metalplugd_domain "${@:2}" "$policy"
}

# dump DOMAIN writes all of a domain's rules, one on each line: class, target, permissions. It omits rights that depend on a
# boolean that is off (metalplug's boolean for the metrics socket, and the distribution's boolean for the terminals of all
# daemons). It also omits the one special right of metalplug_unit_t, to start and stop units, and that of metalplug_dra_t, to
# connect to the API server.
dump() {
	granted "$1" | grep -vE '\[ (metalplugd_metrics_tcp|(init_)?daemons_use_tty) \]:True|^allow metalplug_unit_t [a-z_]+:service |^allow metalplug_dra_t metalplug_dra_t:(tcp|udp)_socket ' |
		sed -nE 's/^allow [^ ]+ ([^ :]+):([a-z0-9_]+) \{? ?([^};]*).*/\2 \1 \3/p' >"$work/$1"
	[[ -s $work/$1 ]] || die "$policy: $1 has no rule"
}

# rules DOMAIN CLASS PERMISSIONS prints the domain's rules that grant one of the permissions. Class "-" means all classes.
rules() {
	awk -v c="$2" -v p="$3" 'BEGIN { n = split(p, want, ",") }
		c == "-" || $1 == c { for (i = 3; i <= NF; i++) for (j = 1; j <= n; j++) if ($i == want[j]) { print; next } }' "$work/$1"
}

finding() {
	echo "FINDING $*"
	found=1
}

# listed LIST DOMAIN CLASS NAME succeeds if the list has the name for the domain and the class.
listed() {
	awk -v d="$2" -v c="$3" -v n="$4" '$1 == d && $2 == c { for (i = 3; i <= NF; i++) if ($i == n) found = 1 } END { exit !found }' "$work/$1"
}

# beyond LIST CLASS PERMISSIONS reports the rules whose target is not in the list.
beyond() {
	local domain target permissions
	for domain in "${domains[@]}"; do
		while read -r _ target permissions; do
			listed "$1" "$domain" "$2" "$target" || finding "$1: $domain $target:$2 $permissions"
		done < <(rules "$domain" "$2" "$3")
	done
}

check_capabilities() {
	local domain class rights right
	for domain in "${domains[@]}"; do
		for class in capability capability2 cap_userns cap2_userns; do
			rights=$(awk -v c="$class" '$1 == c { $1 = $2 = ""; print }' "$work/$domain")
			for right in $rights; do
				listed capabilities "$domain" "$class" "$right" || finding "$domain has $class $right"
			done
		done
	done
}

check_never() {
	local domain class permissions one hit
	for domain in "${domains[@]}"; do
		while read -r class permissions; do
			for one in ${class//,/ }; do
				hit=$(rules "$domain" "$one" "$permissions")
				[[ -z $hit ]] || finding "$domain: $hit"
			done
		done < <(never)
		hit=$(granted "$domain" -t shadow_t -c file -p read,map 2>/dev/null | grep '^allow' || true)
		[[ -z $hit ]] || finding "$domain reads passwords: $hit"
		# This checks only rules for the type itself, because Fedora's base policy lets every domain start the crash collector.
		hit=$(sesearch -A -s "$domain" -ds -c process -p transition "$policy" 2>/dev/null | grep '^allow' || true)
		[[ -z $hit ]] || finding "$domain may become another: $hit"
	done
}

check_looks() {
	local type class rules
	for type in $(looks); do
		[[ $(seinfo "$policy" --flat -t "$type") = *"$type"* ]] || continue
		rules=$(sesearch -A -s metalplug_holders_t -t "$type" -p getattr "$policy")
		for class in file dir lnk_file chr_file blk_file sock_file fifo_file; do
			[[ $rules = *":$class "* ]] || finding "metalplug_holders_t may not stat $type:$class"
		done
	done
}

check_xperms() {
	local domain target class listed
	while read -r domain target class; do
		[[ $(sesearch -A -s "$domain" -t "$target" -c "$class" -p ioctl "$policy" 2>/dev/null) ]] || continue # it may send none
		listed=$(sesearch --allowxperm -s "$domain" -t "$target" -c "$class" "$policy" 2>/dev/null || true)
		[[ $listed = *ioctl* ]] || finding "$domain may send every ioctl to $target:$class"
	done < <(xperms)
}

# link MODULE.pp builds a binary policy from the distribution's modules and MODULE.pp. It fails if a neverallow rule forbids
# a right. It does not change SELinux on this machine.
link() {
	local modules=/usr/share/selinux/default module
	if [[ ! -d $modules ]]; then
		(cd "$work" && apt-get -qq -o APT::Sandbox::User=root download selinux-policy-default && dpkg-deb -x selinux-policy-default_*.deb base) >&2
		modules=$work/base/usr/share/selinux/default
	fi
	mkdir "$work/cil"
	for module in "$modules"/*.pp.bz2; do
		bunzip2 -c "$module" | /usr/libexec/selinux/hll/pp >"$work/cil/$(basename "$module" .pp.bz2).cil"
	done
	/usr/libexec/selinux/hll/pp <"$1" >"$work/cil/metalplug.cil"
	# setools 4.4 cannot read a version above 33.
	secilc -M true -c 33 -o "$work/policy" -f "$work/contexts" "$work"/cil/*.cil
	policy=$work/policy
}

for program in sesearch seinfo; do
	command -v "$program" >/dev/null || die "$program is missing (package setools)"
done
found=0 direct=()
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
case ${1:-} in
--policy) policy=${2:?which policy} ;;
--own) policy=${2:?which policy} direct=(-ds) ;;
?*.pp) link "$1" ;;
*) die 'usage: check.sh MODULE.pp | --policy FILE | --own FILE' ;;
esac

seinfo "$policy" >/dev/null || die "setools cannot read $policy: see the error above"
# If the policy does not have the domain, it has no rules for it, and the script ends here.
for domain in "${domains[@]}"; do
	dump "$domain"
done
for list in changes opens executes maps capabilities; do
	"$list" >"$work/$list"
done
for class in file dir lnk_file sock_file fifo_file chr_file blk_file; do
	beyond changes "$class" "$change"
done
for class in chr_file blk_file; do
	beyond opens "$class" open
done
beyond executes file execute_no_trans,entrypoint
beyond maps file execute
check_capabilities
check_never
check_looks
check_xperms
! seinfo "$policy" --permissive 2>/dev/null | grep -w metalplug || finding 'a domain is permissive'
((found)) || echo "The domains have no rights that are not in the lists"
exit "$found"

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Compiles the module for the policies of Fedora and RHEL.
#
#   fedora.sh           compiles and links the module with stand-ins for what fedora.names lists. The macros are those of this
#                       system's policy headers. It needs no network and no other policy.
#   fedora.sh INCLUDE   compiles the module with real headers, such as those in /usr/share/selinux/devel/include of Fedora,
#                       and checks that they have the interfaces, macros and permissions in fedora.names
set -euo pipefail
cd "$(dirname "$0")"

die() {
	echo "fedora.sh: $*" >&2
	exit 1
}

# stand_ins prints an interface for each name in fedora.names.
stand_ins() {
	awk -v q="\`" -v e="'" '
		function add(n) { return "typeattribute $" n " fedora_attribute; " }
		$1 == "adds"   { rules = add(1) ($3 == 2 ? add(2) : "") }
		$1 == "allows" { rules = "allow $1 fedora_attribute:dir search; " }
		$1 == "adds" || $1 == "allows" {
			print "interface(" q $2 e "," q " gen_require(" q " attribute fedora_attribute; " e ") " rules e ")"
		}' fedora.names
}

# names KIND prints the names of a kind in fedora.names.
names() {
	awk -v kind="$1" '$1 == kind { print $2 }' fedora.names
}

# defined_macros FILE... prints the macros that the files define.
defined_macros() {
	sed -nE "s/^define\(\`(\w+)'.*/\1/p" "$@" | sort -u
}

# compile DIR builds DIR/metalplug.cil from the sources in DIR.
compile() {
	local support=(/usr/share/selinux/devel/include/support/*.spt)
	local used
	used=$(comm -12 <(grep -ohE '\w+' "$1"/metalplug.{te,if,fc} | sort -u) <(defined_macros "${support[@]}" | grep -vxF -f <(names macro)))
	if [[ -n $used ]]; then
		echo "fedora.sh: fedora.names does not list the macros: $used" >&2
		return 1
	fi
	local macros=(m4 -s -D enable_mcs -D distro_redhat -D mls_num_sens=16 -D mls_num_cats=1024 -D mcs_num_cats=1024)
	stand_ins >"$1/stand-ins.if"
	# The headers' Makefile has the same two steps.
	{
		echo 'divert(-1)'
		m4 "${support[@]}" "$1/stand-ins.if" "$1/metalplug.if" | sed 's/dollarsstar/$*/g'
		echo divert
	} >"$1/interfaces"
	"${macros[@]}" "${support[@]}" "$1/interfaces" "$1/metalplug.te" >"$1/expanded" || return
	checkmodule -M -m -o "$1/metalplug.mod" "$1/expanded" || return
	"${macros[@]}" "${support[@]}" "$1/metalplug.fc" >"$1/contexts" || return
	semodule_package -o "$1/metalplug.pp" -m "$1/metalplug.mod" -f "$1/contexts" || return
	/usr/libexec/selinux/hll/pp "$1/metalplug.pp" >"$1/metalplug.cil"
}

# base prints a policy with the types, attributes, classes and permissions of fedora.names.
base() {
	awk '
		$1 == "class" { name = $2; $1 = $2 = ""; print "(class " name " (" $0 "))"; order = order " " name }
		END { print "(classorder (" order "))" }' fedora.names
	awk '$1 == "type" { print "(type " $2 ") (roletype object_r " $2 ")" } $1 == "attribute" { print "(typeattribute " $2 ")" }' fedora.names
	cat <<-'END'
		(mls true) (handleunknown allow)
		(sensitivity s0) (sensitivityorder (s0))
		(category c0) (categoryorder (c0)) (sensitivitycategory s0 (c0))
		(user system_u) (userlevel system_u (s0)) (userrange system_u ((s0) (s0)))
		(role object_r) (role system_r) (userrole system_u object_r) (userrole system_u system_r)
		(roleattribute cil_gen_require) (typeattribute cil_gen_require) (typeattribute fedora_attribute)
		(sid kernel) (sidorder (kernel)) (sidcontext kernel (system_u object_r unlabeled_t ((s0) (s0))))
	END
}

# build DIR compiles and links the sources in DIR.
build() {
	compile "$1" && base >"$1/base.cil" || return
	secilc -M true -o "$1/policy" -f "$1/file_contexts" "$1/base.cil" "$1/metalplug.cil"
}

# refuses NAME LINE checks that the module does not build with this additional line.
refuses() {
	local dir=$work/$1
	mkdir "$dir"
	cp metalplug.te metalplug.fc metalplug.if "$dir"
	echo "$2" >>"$dir/metalplug.te"
	! build "$dir" >/dev/null 2>&1 || die "the module builds with $2"
}

# real INCLUDE compiles the module with the headers in a directory, and searches them for the interfaces, macros and
# permissions. Headers declare no types.
real() {
	local kind name rest permission permissions missing
	cp metalplug.te metalplug.fc metalplug.if "$work"
	make -s -C "$work" -f "$1/Makefile" HEADERDIR="$1" NAME=targeted metalplug.pp || die "the module does not compile with $1"
	missing=$(names macro | grep -vxF -f <(defined_macros "$1"/support/*.spt) || true)
	[[ -z $missing ]] || die "$1 has no macro $missing"
	while read -r kind name rest; do
		case $kind in
		adds | allows) grep -qE "^(interface|template)\(\`$name'" "$1"/*/*.if || die "$1 has no interface $name" ;;
		class)
			permissions=$(grep "^define(\`all_${name}_perms'" "$1/support/all_perms.spt") || die "$1 has no class $name"
			for permission in $rest; do
				[[ $permissions = *" $permission "* ]] || die "$1 has no permission $permission for $name"
			done
			;;
		esac
	done <fedora.names
	echo "The module compiles with the headers in $1"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [[ $# -gt 0 ]]; then
	real "$(realpath "$1")"
	exit
fi
mkdir "$work/module"
cp metalplug.te metalplug.fc metalplug.if "$work/module"
build "$work/module" || die 'the module does not build for Fedora and RHEL'
# If one of these built, the check would prove nothing.
refuses attribute 'kernel_read_system_state(metalplugd_domain)'
refuses interface 'files_runtime_file(metalplug_locks_t)'
refuses macro 'allow metalplugd_t self:fifo_file getattr_fifo_file_perms;'
refuses permission 'allow metalplugd_t self:process execmem;'
refuses type 'gen_require(`type init_tmpfs_t;'"')"' allow metalplugd_t init_tmpfs_t:file read;'
echo 'The module builds for Fedora and RHEL'

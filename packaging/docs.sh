#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Generates the man pages and the shell completions from the programs and the configuration.
#
#   docs.sh DIRECTORY [METALPLUGCTL]
#
# METALPLUGCTL is a program that this machine can run. Without this argument the script builds one.
# SOURCE_DATE_EPOCH is the date of the pages.
set -eu
cd "$(dirname "$0")/.."

out=$1
man=packaging/man
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ $# -gt 1 ]; then
	cp "$2" "$work/metalplugctl"
else
	# These are the same flags as those of "make", so that nothing is compiled twice, even in another directory.
	CGO_ENABLED=1 go build -trimpath -tags netgo,osusergo,grpcnotrace,nethttpomithttp2 -o "$work/metalplugctl" ./cmd/metalplugctl
fi

# escape quotes characters that are special in a man page.
escape() {
	sed -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^[.']/\\\\\&&/"
}

# literal inserts a program's output into a page without changes.
literal() {
	echo '.Bd -literal'
	escape
	echo '.Ed'
}

# help inserts a program's help into a page. Flags become a list, and indented lines become displays. Other lines become
# paragraphs.
help() {
	escape | awk '
		function enter(new) {
			if (block != "" && new != block)
				print block == "list" ? ".El" : ".Ed"
			if (new == "list" && new != block)
				print ".Bl -tag -width Ds -compact"
			if (new == "display" && new != block)
				print ".Bd -literal -compact"
			block = new
		}
		/^$/ { enter(""); gap = 1; next }
		/^ +(\\-[a-z], )?\\-\\-/ {
			enter("list")
			sub(/^ +/, "")
			match($0, /   +/)
			print ".It Li \"" substr($0, 1, RSTART - 1) "\"\n" substr($0, RSTART + RLENGTH)
			next
		}
		/^  / { enter("display"); print; next }
		{
			if (gap)
				print ".Pp"
			print
			gap = 0
		}
		END { enter("") }'
}

{
	"$work/metalplugctl" --help | help
	"$work/metalplugctl" --help | sed -n '/^Available Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' | grep -v '^help$' |
		while read -r command; do
			echo ".Ss $command"
			"$work/metalplugctl" "$command" --help | help
		done
} >"$work/COMMANDS"
awk -f "$man/reference.awk" daemon/config/metalplug.toml >"$work/REFERENCE"
for example in "$man"/examples/*.txt; do # integration/operator and integration/drift compare them with the programs
	name=$(basename "$example" .txt | tr '[:lower:]' '[:upper:]')
	literal <"$example" >"$work/$name"
done

date=$(LC_ALL=C date -u -d "@${SOURCE_DATE_EPOCH:-$(date +%s)}" '+%B %-d, %Y')
# page inserts the date into a page, and replaces each line @NAME@ with the file of that name.
page() {
	sed -e "s/\\\$Mdocdate\\\$/$date/" -e "s|^@\([A-Z]*\)@\$|cat $work/\1|e" "$1"
}
page "$man/metalplugd.8" >"$out/metalplugd.8"
page "$man/metalplug-reset.8" >"$out/metalplug-reset.8"
page "$man/metalplug-dra.8" >"$out/metalplug-dra.8"
page "$man/metalplugctl.1.in" >"$out/metalplugctl.1"
page "$man/metalplug.toml.5.in" >"$out/metalplug.toml.5"

for shell in bash zsh fish; do
	"$work/metalplugctl" completion "$shell" >"$out/metalplugctl.$shell"
done

# SPDX-License-Identifier: Apache-2.0
#
# Makes mdoc(7) of metalplug.toml: explanation ("# text") becomes paragraphs, settings ("#key = value") and what is
# indented within explanation become displays.

function text(line) {
	gsub(/\\/, "\\e", line)
	gsub(/-/, "\\-", line)
	if (line ~ /^[.']/)
		line = "\\&" line
	return line
}

function display(on) {
	if (on && !shown)
		print ".Bd -literal -offset indent"
	if (!on && shown)
		print ".Ed"
	shown = on
}

NR == 1 { next } # the title of the file

/^# *$/ || /^$/ { gap = 1; next }

{
	line = substr($0, 2)
	setting = line !~ /^ / || line ~ /^     /
	if (gap && !(setting && shown))
		display(0)
	if (setting) {
		if (gap && shown)
			print ""
		display(1)
		sub(/^     /, "", line)
	} else {
		display(0)
		if (gap)
			print ".Pp"
		sub(/^ /, "", line)
	}
	gap = 0
	print text(line)
}

END { display(0) }

# SPDX-License-Identifier: Apache-2.0
#
# Converts metalplug.toml to mdoc(7). A line "# ---- title ----" becomes a heading. A setting ("#key = value") with an
# explanation ("# text") directly below becomes an item of a list. Other explanations become paragraphs. Other settings, and
# indented lines within an explanation, become displays.

function text(line) {
	gsub(/\\/, "\\e", line)
	gsub(/-/, "\\-", line)
	if (line ~ /^[.']/)
		line = "\\&" line
	return line
}

function quoted(line) {
	gsub(/"/, "\\(dq", line)
	return "\"" line "\""
}

function list(on) {
	if (on && !listed)
		print ".Bl -tag -width Ds"
	if (!on && listed)
		print ".El"
	listed = on
}

# flush prints the collected settings, as items if an explanation follows them, otherwise as a display.
function flush(explained, i) {
	if (!waiting)
		return
	if (!explained) {
		list(0)
		print ".Bd -literal -offset indent"
	}
	for (i = 1; i <= waiting; i++)
		if (explained && setting[i] == title)
			continue
		else if (explained && setting[i] ~ /^\[/) {
			list(0)
			print ".Pp\n.Li " quoted(text(setting[i]))
		} else if (explained) {
			list(1)
			print ".It Li " quoted(text(setting[i]))
		} else
			print text(setting[i])
	if (!explained)
		print ".Ed"
	waiting = 0
}

function example(on) {
	if (on && !shown)
		print ".Bd -literal -offset indent"
	if (!on && shown)
		print ".Ed"
	shown = on
}

NR == 1 { next } # the title of the file

/^# *$/ || /^$/ {
	if (waiting && setting[waiting] ~ /^\[/)
		next # a table, whose keys follow
	flush(0)
	gap = 1
	next
}

/^# ---- .* ----$/ {
	example(0)
	list(0)
	sub(/^# ---- /, "")
	sub(/ ----$/, "")
	title = $0
	print ".Ss " text($0)
	gap = 0
	next
}

/^#     / {
	list(0)
	if (gap && shown)
		print ""
	example(1)
	print text(substr($0, 7))
	gap = 0
	next
}

/^# / {
	example(0)
	if (waiting)
		flush(1)
	else if (gap) {
		list(0)
		print ".Pp"
	}
	print text(substr($0, 3))
	gap = 0
	next
}

/^#/ {
	example(0)
	setting[++waiting] = substr($0, 2)
	gap = 0
}

END {
	flush(0)
	example(0)
	list(0)
}

// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/coreos/go-systemd/v22/journal"

	"github.com/metalplug/metalplug/internal/fsutil"
)

// LevelNotice is the slog level of normal but significant messages, which have priority 5 in the journal.
const LevelNotice = slog.Level(2)

// formatAttr is the text handler's ReplaceAttr function. It omits the time and empty attributes, and shows [LevelNotice] as
// NOTICE.
func formatAttr(groups []string, a slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return a
	}
	switch {
	case a.Key == slog.TimeKey, a.Value.Equal(slog.StringValue("")):
		return slog.Attr{}
	case a.Key == slog.LevelKey && a.Value.Any() == LevelNotice:
		return slog.String(slog.LevelKey, "NOTICE")
	}
	return a
}

// ParseLevel returns the level with the given name, which must be debug, info, notice, warn or error.
func ParseLevel(name string) (slog.Level, error) {
	levels := map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "notice": LevelNotice, "warn": slog.LevelWarn, "error": slog.LevelError,
	}
	level, ok := levels[name]
	if !ok {
		return 0, fmt.Errorf("invalid log level %q: must be debug, info, notice, warn or error", name)
	}
	return level, nil
}

// journalHandler writes log lines in the journal's native protocol. journalHandler calls Write once for each line.
type journalHandler struct {
	level slog.Level
	attrs []slog.Attr
	w     io.Writer
}

// Enabled reports whether lines of the given level are written.
func (h *journalHandler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level }

// Handle writes a log line. The line's text consists of the message and the attributes. Handle also writes each attribute as a
// separate field. The fields for the message and the priority come first, because [textOf] expects them there.
func (h *journalHandler) Handle(_ context.Context, r slog.Record) error {
	var text strings.Builder
	var fields []byte
	text.WriteString(r.Message)
	add := func(a slog.Attr) bool {
		value := a.Value.Resolve().String()
		if value == "" {
			return true
		}
		fields = appendField(fields, "METALPLUG_"+strings.ToUpper(a.Key), value)
		if a.Key != "stack" {
			fmt.Fprintf(&text, " %s=%s", a.Key, value)
		}
		return true
	}
	for _, a := range h.attrs {
		add(a)
	}
	r.Attrs(add)
	if id := MessageIDs()[r.Message]; id != "" {
		fields = appendField(fields, "MESSAGE_ID", id)
	}
	entry := appendField(nil, "PRIORITY", strconv.Itoa(int(priority(r.Level))))
	entry = appendField(entry, "MESSAGE", fsutil.Printable(text.String()))
	_, err := h.w.Write(append(entry, fields...))
	return err
}

// textOf converts an entry from [journalHandler] to a line for standard error. The line begins with the priority (sd-daemon(3)).
func textOf(entry []byte) []byte {
	priority, rest, _ := bytes.Cut(entry, []byte("\n"))
	message, _, _ := bytes.Cut(rest, []byte("\n"))
	return fmt.Appendf(nil, "<%s>%s\n", bytes.TrimPrefix(priority, []byte("PRIORITY=")), bytes.TrimPrefix(message, []byte("MESSAGE=")))
}

// fieldSize is the maximum length of a field's value in bytes. A datagram must fit into the send buffer of its socket, which is
// 212,992 bytes unless net.core.wmem_default has been changed (socket(7)). One value must be much shorter, because an entry has
// many fields and repeats their values in its text.
const fieldSize = 12 << 10

// appendField appends a field in the journal's native protocol (https://systemd.io/JOURNAL_NATIVE_PROTOCOL/). A value
// that contains a newline is preceded by its size, a 64-bit little-endian number.
func appendField(entry []byte, name, value string) []byte {
	if len(value) > fieldSize {
		value = value[:fieldSize] + "..."
	}
	entry = append(entry, name...)
	if strings.Contains(value, "\n") {
		entry = binary.LittleEndian.AppendUint64(append(entry, '\n'), uint64(len(value)))
	} else {
		entry = append(entry, '=')
	}
	return append(append(entry, value...), '\n')
}

// WithAttrs returns a handler that adds these attributes to each line.
func (h *journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := *h
	next.attrs = slices.Concat(h.attrs, attrs)
	return &next
}

// WithGroup returns the same handler, because the journal's fields are flat.
func (h *journalHandler) WithGroup(string) slog.Handler { return h }

func priority(level slog.Level) journal.Priority {
	switch {
	case level >= slog.LevelError:
		return journal.PriErr
	case level >= slog.LevelWarn:
		return journal.PriWarning
	case level >= LevelNotice:
		return journal.PriNotice
	case level >= slog.LevelInfo:
		return journal.PriInfo
	}
	return journal.PriDebug
}

//go:embed metalplug.catalog
var catalog string

// MessageIDs maps log messages to their MESSAGE_ID. Every message at the level error has an ID, and so does every message that an
// operator may have to act on or search for. metalplug.catalog lists and explains the IDs (journalctl -x). An ID never changes
// and is never reused for another message. Each entry in the catalog begins with the lines "-- ID" and "# MESSAGE". Callers must
// not change the map.
var MessageIDs = sync.OnceValue(func() map[string]string {
	ids := make(map[string]string)
	for _, entry := range strings.Split(catalog, "\n-- ")[1:] {
		id, rest, _ := strings.Cut(entry, "\n# ")
		message, _, _ := strings.Cut(rest, "\n")
		ids[message] = id
	}
	return ids
})

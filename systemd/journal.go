// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/coreos/go-systemd/v22/journal"
)

// LevelNotice is slog's place for what is normal but significant: the journal's priority 5.
const LevelNotice = slog.Level(2)

// Keys are all keys that a log line of the daemon may have. In the journal they are upper case with the prefix
// METALPLUG_.
func Keys() []string {
	return []string{
		"action", "class", "detail", "device", "duration", "endpoint", "err", "pod", "resource", "seqnum", "serial", "stack",
		"syspath", "user",
	}
}

// Logger returns a logger of the daemon: to the journal where standard error is connected to it, else as text to w,
// without time, which whoever reads it adds.
func Logger(w io.Writer, level slog.Level) *slog.Logger {
	if ok, err := journal.StderrIsJournalStream(); ok && err == nil {
		return slog.New(&journalHandler{level: level, send: journal.Send})
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: plain}))
}

// plain leaves the time out and names the level notice.
func plain(groups []string, a slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return a
	}
	switch a.Key {
	case slog.TimeKey:
		return slog.Attr{}
	case slog.LevelKey:
		if a.Value.Any() == LevelNotice {
			return slog.String(slog.LevelKey, "NOTICE")
		}
	}
	return a
}

// ParseLevel returns the level of that name: debug, info, notice, warn or error.
func ParseLevel(name string) (slog.Level, error) {
	levels := map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "notice": LevelNotice,
		"warn": slog.LevelWarn, "error": slog.LevelError,
	}
	level, ok := levels[name]
	if !ok {
		return 0, fmt.Errorf("log level %q is none of debug, info, notice, warn, error", name)
	}
	return level, nil
}

// journalHandler writes log lines by the journal's native protocol.
type journalHandler struct {
	level slog.Level
	attrs []slog.Attr
	send  func(message string, priority journal.Priority, fields map[string]string) error
}

// Enabled tells whether a line of that level is written.
func (h *journalHandler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level }

// Handle writes a line: the message and its particulars as text, and each of them as a field.
func (h *journalHandler) Handle(_ context.Context, r slog.Record) error {
	fields := make(map[string]string)
	var text strings.Builder
	text.WriteString(r.Message)
	add := func(a slog.Attr) bool {
		value := a.Value.Resolve().String()
		if value == "" {
			return true
		}
		fields["METALPLUG_"+strings.ToUpper(a.Key)] = value
		if a.Key != "stack" {
			fmt.Fprintf(&text, " %s=%s", a.Key, value)
		}
		return true
	}
	if id := messageIDs[r.Message]; id != "" {
		fields["MESSAGE_ID"] = id
	}
	for _, a := range h.attrs {
		add(a)
	}
	r.Attrs(add)
	return h.send(text.String(), priority(r.Level), fields)
}

// WithAttrs returns a handler whose lines have these particulars too.
func (h *journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := *h
	next.attrs = slices.Concat(h.attrs, attrs)
	return &next
}

// WithGroup returns the same: the journal's fields are flat.
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

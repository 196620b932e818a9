//go:build integration

// SPDX-License-Identifier: Apache-2.0

// Package wire is the protocol between a test and the agent in its machine. A frame has a JSON header and raw bytes, so
// that 100 MB pass through an emulated CPU without base64.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// The kinds of frames. A request and all its answers share ID.
const (
	// Run runs Argv with the body as standard input and answers Done.
	Run = "run"
	// Start runs Argv, sends a Line for each line of its output, then Done.
	Start = "start"
	// Input writes the body to the standard input of the command that was started with the same ID.
	Input = "input"
	// Kill kills the command that was started with the same ID.
	Kill = "kill"
	// Push writes the body to Path with Mode and answers Done.
	Push = "push"
	// Pull answers Done with the content of Path.
	Pull = "pull"
	// Line carries one line of output, with the time when it was read.
	Line = "line"
	// Done ends a request. It contains the exit code or error, and the output.
	Done = "done"
)

// maxHeader is the maximum size of a header in bytes. The connection rejects a longer one.
const maxHeader = 1 << 20

// Frame is the header of one message.
type Frame struct {
	ID   uint64   `json:"id"`
	Op   string   `json:"op"`
	Argv []string `json:"argv,omitempty"`
	Path string   `json:"path,omitempty"`
	Mode uint32   `json:"mode,omitempty"`
	// TimeoutMS is the time limit of a Run in milliseconds. 0 means no limit.
	TimeoutMS int64 `json:"timeoutMS,omitempty"`
	// Code is the exit code in Done, or -1 when a signal ended the command.
	Code int `json:"code,omitempty"`
	// Err in Done is the reason why there is no exit code.
	Err string `json:"err,omitempty"`
	// UnixNano and MonotonicNano are the times of a Line on the machine's two clocks.
	UnixNano      int64 `json:"unixNano,omitempty"`
	MonotonicNano int64 `json:"monotonicNano,omitempty"`
	// Stdout in Done is the number of bytes of the body that are standard output. The rest is standard error.
	Stdout int `json:"stdout,omitempty"`
	// Size is the length of the body. Write sets it.
	Size int `json:"size"`
}

// Write sends a frame and its body in one write.
func Write(w io.Writer, f Frame, body []byte) error {
	f.Size = len(body)
	header, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode %s frame: %w", f.Op, err)
	}
	message := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(header)+len(body)), uint32(len(header)))
	message = append(append(message, header...), body...)
	if _, err := w.Write(message); err != nil {
		return fmt.Errorf("send %s frame: %w", f.Op, err)
	}
	return nil
}

// Read receives one frame and its body.
func Read(r io.Reader) (Frame, []byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return Frame{}, nil, fmt.Errorf("receive frame: %w", err)
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > maxHeader {
		return Frame{}, nil, fmt.Errorf("receive frame: header of %d bytes", n)
	}
	header := make([]byte, n)
	if _, err := io.ReadFull(r, header); err != nil {
		return Frame{}, nil, fmt.Errorf("receive frame header: %w", err)
	}
	var f Frame
	if err := json.Unmarshal(header, &f); err != nil {
		return Frame{}, nil, fmt.Errorf("decode frame header: %w", err)
	}
	body := make([]byte, f.Size)
	if _, err := io.ReadFull(r, body); err != nil {
		return Frame{}, nil, fmt.Errorf("receive frame body: %w", err)
	}
	return f, body, nil
}

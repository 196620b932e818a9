// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// callError is an error of a call to the kubelet as people read it.
type callError struct {
	text string
	err  error // as gRPC has it
}

// Error returns the text.
func (e callError) Error() string { return e.text }

// Unwrap returns what gRPC returned.
func (e callError) Unwrap() error { return e.err }

// said takes off an error of a call what gRPC puts around the cause: the name of the code, and how far it had come. A
// call that took as long as limit is one that nobody answered.
func said(err error, limit time.Duration) error {
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	if s.Code() == codes.DeadlineExceeded {
		return callError{fmt.Sprintf("no answer after %v: is what listens there the kubelet, and is it well?", limit), err}
	}
	text := s.Message()
	// connection error: desc = "transport: …: dial unix /x: connect: …" (internal/transport/http2_client.go).
	if quoted, ok := strings.CutPrefix(text, "connection error: desc = "); ok {
		if plain, err := strconv.Unquote(quoted); err == nil {
			text = strings.TrimPrefix(plain, "transport: ")
		}
	}
	if _, cause, ok := strings.Cut(text, ": connect: "); ok && strings.Contains(text, "dial unix ") {
		text = "connect: " + cause // where to is told beside it
	}
	return callError{text, err}
}

// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// hungUp describes a listener that accepts a connection and then closes it, or answers something else than gRPC. The
// kernel's or HTTP/2's own error depends on timing. It may be a broken pipe, a connection that was reset, or a frame that
// is too large.
const hungUp = "hung up, or speaks another protocol: is what listens there the kubelet? ss -xlp names it"

// Readable removes from an error of a call the text that gRPC puts around the cause, which is the name of the code and
// the progress of the call. limit is the timeout of the call, for the message about a call without an answer.
func Readable(err error, limit time.Duration) error {
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	if s.Code() == codes.DeadlineExceeded {
		return fmt.Errorf("no answer after %v: is what listens there the kubelet, and is it well?", limit)
	}
	if s.Code() != codes.Unavailable { // no kubelet returns it, so it is about the connection
		return errors.New(s.Message())
	}
	// The message reads connection error: desc = "transport: …: dial unix /x: connect: …"
	// (internal/transport/http2_client.go).
	if _, cause, ok := strings.Cut(s.Message(), ": connect: "); ok && strings.Contains(s.Message(), "dial unix ") {
		return errors.New("connect: " + strings.TrimSuffix(cause, `"`)) // the caller names the socket
	}
	return errors.New(hungUp)
}

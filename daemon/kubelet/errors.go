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

// hungUp is the error text for a server that closes the connection immediately or does not speak gRPC. Depending on the timing,
// the kernel or HTTP/2 reports a broken pipe, a connection reset, or a frame that is too large.
const hungUp = "disconnected, or uses another protocol; to check that the kubelet listens there: ss -xlp"

// CleanError returns the cause of a failed call, without the text that gRPC adds, such as the name of the status code. The
// parameter limit is the timeout of the call, which the new error names if there was no answer.
func CleanError(err error, limit time.Duration) error {
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	if s.Code() == codes.DeadlineExceeded {
		return fmt.Errorf("no answer after %v; check that the kubelet listens there and works", limit)
	}
	// The kubelet itself never returns the code Unavailable, so this code means that the connection failed.
	if s.Code() != codes.Unavailable {
		return errors.New(s.Message())
	}
	// The message has the form connection error: desc = "transport: …: dial unix /x: connect: …"
	// (internal/transport/http2_client.go).
	if _, cause, ok := strings.Cut(s.Message(), ": connect: "); ok && strings.Contains(s.Message(), "dial unix ") {
		return errors.New("connect: " + strings.TrimSuffix(cause, `"`)) // the caller adds the name of the socket
	}
	return errors.New(hungUp)
}

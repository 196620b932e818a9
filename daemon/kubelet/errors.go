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

// hungUp is said of whoever accepts a connection and then closes it, or answers something else than gRPC. What the kernel or
// HTTP/2 calls that depends on who was quicker: a broken pipe, a connection that was reset, a frame that is too large.
const hungUp = "hung up, or speaks another protocol: is what listens there the kubelet? ss -xlp names it"

// Readable takes off an error of a call what gRPC puts around the cause: the name of the code, and how far it had come. A
// call that took as long as limit is one that nobody answered.
func Readable(err error, limit time.Duration) error {
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	if s.Code() == codes.DeadlineExceeded {
		return fmt.Errorf("no answer after %v: is what listens there the kubelet, and is it well?", limit)
	}
	if s.Code() != codes.Unavailable { // which no kubelet says: it is about the connection
		return errors.New(s.Message())
	}
	// connection error: desc = "transport: …: dial unix /x: connect: …" (internal/transport/http2_client.go).
	if _, cause, ok := strings.Cut(s.Message(), ": connect: "); ok && strings.Contains(s.Message(), "dial unix ") {
		return errors.New("connect: " + strings.TrimSuffix(cause, `"`)) // the caller names the socket
	}
	return errors.New(hungUp)
}

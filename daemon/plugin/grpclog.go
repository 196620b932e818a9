// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"io"
	"log/slog"

	"google.golang.org/grpc/grpclog"
)

// LogTo makes gRPC write its errors to log at level debug. Otherwise it would write them to standard error and wait for
// the reader. Relevant errors are also returned by the calls. Call LogTo before any other function of gRPC.
func LogTo(log *slog.Logger) {
	lines := slog.NewLogLogger(log.Handler(), slog.LevelDebug).Writer()
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, lines))
}

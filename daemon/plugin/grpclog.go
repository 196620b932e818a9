// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"io"
	"log/slog"

	"google.golang.org/grpc/grpclog"
)

// LogTo makes gRPC write its errors to the given log at level debug. By default, gRPC writes them to standard error, and blocks
// if no process reads them. Even without this log, no important error is lost, because the calls to gRPC return these errors.
// LogTo must be called before any other gRPC function.
func LogTo(log *slog.Logger) {
	lines := slog.NewLogLogger(log.Handler(), slog.LevelDebug).Writer()
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, lines))
}

// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"io"
	"log/slog"

	"google.golang.org/grpc/grpclog"
)

// LogTo makes gRPC write its errors to log at level debug. By default, gRPC writes them to standard error and waits for the
// reader. gRPC's calls also return the relevant errors. Call LogTo before any other function of gRPC.
func LogTo(log *slog.Logger) {
	lines := slog.NewLogLogger(log.Handler(), slog.LevelDebug).Writer()
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, lines))
}
